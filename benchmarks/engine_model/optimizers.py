"""Optimizers as the single-tensor forms of torch, one weight after another."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.engine_model.builder import GraphBuilder
    from neurontools.compiler.graph import View


def adamw(b: GraphBuilder) -> None:
    """Step as torch.optim.AdamW does."""
    for weight in b.parameters:
        if weight.slot not in b.gradients:
            continue
        b.call("mul_.Scalar", weight, 0.999, results=(weight,))
        step = _adam_direction(b, weight)
        b.call("addcdiv_.default", weight, *step, results=(weight,), value=-0.001)


def lamb(b: GraphBuilder) -> None:
    """Step as LAMB does: Adam's direction, scaled by the ratio of two norms."""
    for weight in b.parameters:
        if weight.slot not in b.gradients:
            continue
        momentum, root = _adam_direction(b, weight)
        direction = b.like("div.Tensor", momentum, root)
        b.call("add_.Tensor", direction, weight, results=(direction,), alpha=0.01)
        norms = [b.compute("linalg_vector_norm.default", x, shape=()) for x in (weight, direction)]
        trust = b.compute("div.Tensor", *norms, shape=())
        b.call("mul_.Tensor", direction, trust, results=(direction,))
        b.call("add_.Tensor", weight, direction, results=(weight,), alpha=-0.001)


def _adam_direction(b: GraphBuilder, weight: View) -> tuple[View, View]:
    gradient = b.gradient(weight)
    mean, square = b.input(*weight.shape), b.input(*weight.shape)
    b.call("lerp_.Scalar", mean, gradient, 0.1, results=(mean,))
    b.call("mul_.Scalar", square, 0.999, results=(square,))
    b.call("addcmul_.default", square, gradient, gradient, results=(square,), value=0.001)
    root = b.like("sqrt.default", square)
    scaled = b.like("div.Scalar", root, 0.9)
    b.call("add_.Scalar", scaled, 1e-8, results=(scaled,))
    return mean, scaled


OPTIMIZERS: dict[str, Callable[[GraphBuilder], None]] = {"adamw": adamw, "lamb": lamb}
