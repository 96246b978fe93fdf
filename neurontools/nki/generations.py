"""The two generations of NKI: which names and arguments belong to one alone, and what the other has instead."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neurontools.nki.context import fail
from neurontools.nki.limits import document

if TYPE_CHECKING:
    from collections.abc import Sequence

FIRST, SECOND = "neuronxcc.nki, the first generation", "nki, the second generation"


def title(*, first: bool) -> str:
    """Return what messages call a generation."""
    return FIRST if first else SECOND


def foreign_name(name: str, *, in_first: bool) -> tuple[str, str] | None:
    """Return the generation that alone has a name, and what a kernel of the other uses instead.

    Args:
        name: of a function, an attribute, or an argument.
        in_first: whether a kernel of the first generation uses it.

    Returns:
        None for names that no generation has, or both.
    """
    instead = document()["generations"]["second" if in_first else "first"].get(name)
    return None if instead is None else (title(first=not in_first), str(instead))


def without_hints(function: str, options: dict[str, Any], parameters: Sequence[str]) -> dict[str, Any]:
    """Return the keywords that a function of the first generation has: hints for the compiler have no effect here.

    Raises:
        KernelError: for a keyword that is neither, at the kernel's line.
    """
    kept = {name: value for name, value in options.items() if name in parameters}
    for name in options.keys() - kept.keys() - set(document()["hints_of_first"]):
        generation, instead = foreign_name(name, in_first=True) or ("", "")
        if generation:
            fail(function, f"{name}= belongs to {generation}", f"here: {instead}")
        remedy = f"its parameters: {', '.join(parameters)}"
        fail(function, f"got an unexpected keyword argument {name!r}", remedy)
    return kept
