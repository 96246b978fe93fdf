"""Check gradients of an operator against finite differences, in the precision of the kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neurontools.customop.checking.calls import (
    REFUSAL_KINDS,
    CallTimeoutError,
    CheckedOperator,
    backward_named,
    backward_ways,
    evaluate,
)
from neurontools.customop.checking.inputs import cases
from neurontools.customop.checking.report import Findings
from neurontools.customop.errors import NeuronCustomOpError
from neurontools.customop.marshalling import import_torch
from neurontools.customop.runner import TensorInput, make_arguments
from neurontools.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from neurontools.customop.checking.inputs import Case, Value
    from neurontools.customop.checking.report import CheckSettings

_SMALL_ELEMENTS = 200
GRADIENT_CASES = 3
_STEP = 1.0 / 64  # exact in every floating type; larger than rounding, smaller than the distance to a kink
_KINK = 0.25  # distance of values from 0, where relu and similar functions have a kink
_TOLERANCE = 0.02


def check_gradients(
    caller: CheckedOperator,
    settings: CheckSettings,
    findings: Findings,
    pattern: list[Value],
    ranks: tuple[int, ...],
) -> str:
    """Compare gradients on small inputs and add findings.

    Without expressions in the settings, the backward operator that is found by name is called in each way that its
    parameters allow, until one gives the gradient.

    Returns:
        The compared expressions, "" if there are none.

    Raises:
        UsageError: an expression is for an input that is not a tensor.
        CallTimeoutError: a call takes too long.
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
    first: tuple[str, Findings] | None = None
    compared: list[str] = []
    for way in ways:
        found = Findings()
        if not _compare(caller, settings.seed, found, way, small, known_failing=findings.has("shapes")):
            continue
        words = ", ".join(expression for _, expression in way)
        if not found.found:
            return words
        compared.append(words)
        first = first or (words, found)
    if first is None:
        return ""
    words, found = first
    tried = "" if len(compared) == 1 else f"tried {' and '.join(compared)}; give the call with --backward"
    for (check, kind), (count, case, message, remedy) in found.found.items():
        findings.found[check, kind] = count, case, message, remedy or tried
    return words


def without_gradients(caller: CheckedOperator, settings: CheckSettings) -> tuple[tuple[str, str], ...]:
    """Return why no gradient is checked and the remedy; empty if one is."""
    name = caller.entry.name
    if settings.backward is not None or name.endswith(("backward", "_grad")):
        return ()
    partner = backward_named(caller.package, caller.entry)
    if partner is None:
        return (("gradient", "no backward operator; give one with --backward 'OP(g, x0)'"),)
    if not backward_ways(caller.entry, partner):
        return (("gradient", f"give the call of {partner.name}, e.g. --backward '{partner.name}(g, x0, y)'"),)
    return ()


def _compare(
    caller: CheckedOperator,
    seed: int,
    findings: Findings,
    gradients: tuple[tuple[int, str], ...],
    small: Iterable[Case],
    *,
    known_failing: bool,
) -> bool:
    """Compare gradients on some cases; with `known_failing`, failures of the operator itself are not reported again.

    Raises:
        CallTimeoutError: a call takes too long.
    """
    functions = caller.functions()
    made = 0
    for case in small:
        for position, expression in gradients:
            if position >= len(case.inputs) or not isinstance(case.inputs[position], TensorInput):
                raise UsageError(f"--backward {position}={expression}: input {position} is not a tensor")
            try:
                problem = gradient_problem(
                    caller.forward,
                    lambda names, text=expression: evaluate(text, {**functions, **names}),  # type: ignore[misc]
                    make_arguments(case.inputs),
                    position,
                    seed,
                )
            except NeuronCustomOpError as error:
                if error.kind == "timeout":
                    raise CallTimeoutError(error, case) from error
                if error.kind not in REFUSAL_KINDS and not (
                    known_failing and error.op == caller.entry.qualified
                ):
                    findings.add(
                        "gradient", error.kind, f"{expression}: {error.message}", case, error.remedy or ""
                    )
                    made += 1
                break
            if problem:
                findings.add("gradient", expression, f"{expression}: {problem}", case)
        else:
            made += 1
        if made >= GRADIENT_CASES:
            break
    return made > 0


def gradient_problem(
    forward: Callable[[Sequence[Any]], Any],
    backward: Callable[[dict[str, object]], Any],
    arguments: Sequence[Any],
    position: int,
    seed: int,
) -> str:
    """Return the error of the gradient of an input, "" if it is correct.

    Args:
        forward: the operator.
        backward: returns the gradient from `g` (gradient of the output), `y` (the output), `x0`, `x1`, ... (inputs).
        arguments: its inputs, small tensors.
        position: the input whose gradient is checked.
        seed: seed of the output's gradient.

    Elements where two step sizes disagree are skipped: the function has a kink or is too steep there.
    """
    torch = import_torch()
    inputs = [_away_from_zero(value) if isinstance(value, torch.Tensor) else value for value in arguments]
    x = inputs[position]
    if not x.dtype.is_floating_point:
        return ""
    y = forward(inputs)
    generator = torch.Generator().manual_seed(seed)
    g = torch.randn(y.shape, generator=generator).to(y.dtype)
    names = {f"x{index}": value for index, value in enumerate(inputs)}
    gradient = backward({**names, "x": x, "g": g, "y": y})
    if gradient.shape != x.shape:
        return f"has shape {list(gradient.shape)}, the input {list(x.shape)}"

    def slope(flat: int, step: float) -> float:
        sides = []
        for signed in (step, -step):
            moved = x.clone()
            moved.reshape(-1)[flat] += signed
            sides.append(
                (forward([*inputs[:position], moved, *inputs[position + 1 :]]).double() * g.double()).sum()
            )
        return float(sides[0] - sides[1]) / (2 * step)

    worst, problem = 0.0, ""
    for flat in range(x.numel()):
        coarse, fine = slope(flat, _STEP), slope(flat, _STEP / 2)
        scale = max(1.0, abs(fine))
        if abs(coarse - fine) > _TOLERANCE * scale:
            continue
        actual = float(gradient.reshape(-1)[flat])
        apart = abs(actual - fine) / scale
        if not apart <= max(_TOLERANCE, worst):
            worst = apart
            problem = f"element {flat} is {actual:.6g}, finite differences give {fine:.6g}"
    return problem


def _away_from_zero(tensor: Any) -> Any:
    torch = import_torch()
    if not tensor.dtype.is_floating_point:
        return tensor
    sign = torch.where(tensor < 0, -1.0, 1.0).to(tensor.dtype)
    return tensor + sign * _KINK
