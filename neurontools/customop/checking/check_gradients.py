"""Checking the gradient of an operator against finite differences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.customop.checking.calls import REFUSALS, Caller, tensors_of
from neurontools.customop.checking.check_inputs import cases
from neurontools.customop.checking.expressions import backward_of, evaluate
from neurontools.customop.checking.gradients import GRADIENT_CASES, gradient_problem
from neurontools.customop.errors import NeuronCustomOpError
from neurontools.customop.runner import TensorInput
from neurontools.errors import UsageError

if TYPE_CHECKING:
    from neurontools.customop.checking.check_report import CheckSettings
    from neurontools.customop.checking.discovery import Value
    from neurontools.customop.checking.tally import Tally


def gradients_of(caller: Caller, settings: CheckSettings) -> tuple[tuple[int, str], ...]:
    """Return expressions for gradients, by input: those of the settings, or those of a pair by name."""
    if settings.backward is not None:
        return settings.backward
    partner = backward_of(caller.package, caller.entry)
    if partner is None:
        return ()
    names = ", ".join(f"x{position}" for position in range(len(caller.entry.parameters)))
    return ((0, f"{partner.name}(g, {names})"),)


def check_gradients(
    caller: Caller,
    settings: CheckSettings,
    tally: Tally,
    pattern: list[Value],
    ranks: tuple[int, ...],
) -> bool:
    """Compare gradients on small inputs; findings go to the tally. Returns whether any was compared.

    Raises:
        UsageError: an expression is about an input that is no tensor.
    """
    gradients = gradients_of(caller, settings)
    functions = caller.functions()
    made = 0
    for case in cases(pattern, ranks[:2], 0, settings.seed):
        if not 0 < case.elements <= 200:
            continue
        for position, expression in gradients:
            if position >= len(case.inputs) or not isinstance(case.inputs[position], TensorInput):
                raise UsageError(f"--backward {position}={expression}: input {position} is no tensor")
            try:
                problem = gradient_problem(
                    caller.forward,
                    lambda names, text=expression: evaluate(text, {**functions, **names}),  # type: ignore[misc]
                    tensors_of(case),
                    position,
                    settings.seed,
                )
            except NeuronCustomOpError as error:
                if error.kind not in REFUSALS:
                    tally.add("gradient", error.kind, f"{expression}: {error.message}", case)
                break
            if problem:
                tally.add("gradient", expression, f"{expression}: {problem}", case)
        else:
            made += 1
        if made >= GRADIENT_CASES:
            break
    return made > 0
