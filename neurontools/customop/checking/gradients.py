"""A gradient against finite differences of the forward operator, in the precision that kernels have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neurontools.customop.marshalling import import_torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

GRADIENT_CASES = 3
_STEP = 1.0 / 64  # exact in every floating type; larger than rounding, smaller than the distance to a kink
_KINK = 0.25  # values stay that far from 0, where relu and its like have theirs
_TOLERANCE = 0.02


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
