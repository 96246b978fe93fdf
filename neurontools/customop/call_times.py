"""What calls of loaded operators take by the model, for graphs that know shapes but no values."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.customop.cost import Operand
    from neurontools.customop.package import Package

_operators: dict[str, tuple[Package, int]] = {}
_counted: dict[tuple[str, int, tuple[Operand, ...]], int] = {}


def remember_operator(package: Package, index: int) -> None:
    """Model an operator of a loaded library from now on, in place of one of an older library of that name."""
    _operators[package.manifest.operators[index].qualified] = (package, index)


def operator_ns(qualified: str, operands: Sequence[Operand]) -> int | None:
    """Return the modelled time of a call of a loaded operator in nanoseconds.

    Args:
        qualified: `library::operator`.
        operands: what it is called with; the same operands take the same time, whatever tensors hold.

    Returns:
        The time, None when no loaded library has the operator.
    """
    if qualified not in _operators:
        return None
    package, index = _operators[qualified]
    key = (package.sha256, index, tuple(operands))
    if key not in _counted:
        # Loaded late: most who load a library compile no graph.
        from neurontools.customop.trial import trial_ns

        _counted[key] = trial_ns(package, index, operands)
    return _counted[key]
