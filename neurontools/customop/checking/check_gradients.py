"""Checking the gradient of an operator against finite differences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.customop.checking.calls import REFUSALS, Caller, tensors_of
from neurontools.customop.checking.check_inputs import cases
from neurontools.customop.checking.expressions import backward_named, backward_ways, evaluate
from neurontools.customop.checking.gradients import GRADIENT_CASES, gradient_problem
from neurontools.customop.checking.tally import Tally
from neurontools.customop.errors import NeuronCustomOpError
from neurontools.customop.runner import TensorInput
from neurontools.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from neurontools.customop.checking.check_inputs import Case, Value
    from neurontools.customop.checking.check_report import CheckSettings

_SMALL_ELEMENTS = 200


def check_gradients(
    caller: Caller,
    settings: CheckSettings,
    tally: Tally,
    pattern: list[Value],
    ranks: tuple[int, ...],
) -> str:
    """Compare gradients on small inputs; findings go to the tally.

    Without expressions in the settings, the backward operator that is there by name is called in each way that its
    parameters allow, until one way gives the gradient.

    Returns:
        The expressions that were compared, "" when nothing was.

    Raises:
        UsageError: an expression is about an input that is no tensor.
    """
    if not pattern:
        return ""
    if settings.backward is not None:
        ways = [settings.backward]
    else:
        partner = backward_named(caller.package, caller.entry)
        ways = [((0, way),) for way in backward_ways(caller.entry, partner)] if partner else []
    made = cases(pattern, ranks[:2], 0, settings.seed) if ways else ()
    small = [case for case in made if 0 < case.elements <= _SMALL_ELEMENTS]
    first: tuple[str, Tally] | None = None
    compared: list[str] = []
    for way in ways:
        found = Tally()
        if not _compare(caller, settings.seed, found, way, small, told=tally.has("shapes")):
            continue
        words = ", ".join(expression for _, expression in way)
        if not found.found:
            return words
        compared.append(words)
        first = first or (words, found)
    if first is None:
        return ""
    words, found = first
    tried = "" if len(compared) == 1 else f"tried {' and '.join(compared)}; --backward says how it is called"
    for (check, kind), (count, case, message, remedy) in found.found.items():
        tally.found[check, kind] = count, case, message, remedy or tried
    return words


def without_gradients(caller: Caller, settings: CheckSettings) -> tuple[tuple[str, str], ...]:
    """Return that no gradient is looked at and what to do about it, nothing where one is."""
    name = caller.entry.name
    if settings.backward is not None or name.endswith(("backward", "_grad")):
        return ()
    partner = backward_named(caller.package, caller.entry)
    if partner is None:
        return (("gradient", "no backward operator; give one with --backward 'OP(g, x0)'"),)
    if not backward_ways(caller.entry, partner):
        return (("gradient", f"say how {partner.name} is called, as --backward '{partner.name}(g, x0, y)'"),)
    return ()


def _compare(
    caller: Caller,
    seed: int,
    tally: Tally,
    gradients: tuple[tuple[int, str], ...],
    small: Iterable[Case],
    *,
    told: bool,
) -> bool:
    """Compare gradients on some cases; `told`: it is known already that the operator itself fails."""
    functions = caller.functions()
    made = 0
    for case in small:
        for position, expression in gradients:
            if position >= len(case.inputs) or not isinstance(case.inputs[position], TensorInput):
                raise UsageError(f"--backward {position}={expression}: input {position} is no tensor")
            try:
                problem = gradient_problem(
                    caller.forward,
                    lambda names, text=expression: evaluate(text, {**functions, **names}),  # type: ignore[misc]
                    tensors_of(case),
                    position,
                    seed,
                )
            except NeuronCustomOpError as error:
                if error.kind not in REFUSALS and not (told and error.op == caller.entry.qualified):
                    tally.add(
                        "gradient", error.kind, f"{expression}: {error.message}", case, error.remedy or ""
                    )
                    made += 1
                break
            if problem:
                tally.add("gradient", expression, f"{expression}: {problem}", case)
        else:
            made += 1
        if made >= GRADIENT_CASES:
            break
    return made > 0
