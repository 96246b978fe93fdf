"""Checking the gradient of an operator against finite differences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neurontools.customop.checking.calls import (
    REFUSALS,
    Caller,
    backward_named,
    backward_ways,
    evaluate,
    tensors_of,
)
from neurontools.customop.checking.inputs import cases
from neurontools.customop.checking.report import Tally
from neurontools.customop.errors import NeuronCustomOpError
from neurontools.customop.marshalling import import_torch
from neurontools.customop.runner import TensorInput
from neurontools.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from neurontools.customop.checking.inputs import Case, Value
    from neurontools.customop.checking.report import CheckSettings

_SMALL_ELEMENTS = 200
GRADIENT_CASES = 3
_STEP = 1.0 / 64  # exact in every floating type; larger than rounding, smaller than the distance to a kink
_KINK = 0.25  # values stay that far from 0, where relu and its like have theirs
_TOLERANCE = 0.02


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


def gradient_problem(
    forward: Callable[[Sequence[Any]], Any],
    backward: Callable[[dict[str, object]], Any],
    arguments: Sequence[Any],
    position: int,
    seed: int,
) -> str:
    """Return what is wrong with the gradient of an input, "" when nothing is.

    Args:
        forward: the operator.
        backward: gives the gradient from `g` (gradient of the output), `y` (the output), `x0`, `x1`, ... (inputs).
        arguments: its inputs, small tensors.
        position: the input whose gradient is looked at.
        seed: decides the gradient of the output.

    Elements where two step sizes disagree are left out: there the function has a kink or is too steep to tell.
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

    worst, told = 0.0, ""
    for flat in range(x.numel()):
        coarse, fine = slope(flat, _STEP), slope(flat, _STEP / 2)
        scale = max(1.0, abs(fine))
        if abs(coarse - fine) > _TOLERANCE * scale:
            continue
        ours = float(gradient.reshape(-1)[flat])
        apart = abs(ours - fine) / scale
        if not apart <= max(_TOLERANCE, worst):
            worst = apart
            told = f"element {flat} is {ours:.6g}, finite differences give {fine:.6g}"
    return told


def _away_from_zero(tensor: Any) -> Any:
    torch = import_torch()
    if not tensor.dtype.is_floating_point:
        return tensor
    sign = torch.where(tensor < 0, -1.0, 1.0).to(tensor.dtype)
    return tensor + sign * _KINK
