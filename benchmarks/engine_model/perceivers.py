"""Perceivers that classify images, on the meta device."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812

from benchmarks.engine_model.diffusion import Layers

Tensor = torch.Tensor


def perceiver(sizes: dict[str, int], dtype: torch.dtype = torch.float32) -> Tensor:
    """Classify an image with a Perceiver, without its preprocessing of pixels."""
    made, width = Layers(dtype), sizes["width"]
    latents = made.numbers(1, sizes["latents"], width)
    inputs = made.layer_norm(made.numbers(1, sizes["inputs"], sizes["channels"]))
    x = _perceive(made, latents, inputs, 1, sizes["channels"])
    kept = len(made.made)
    for block in range(sizes["blocks"]):  # all have the same weights
        made.again = made.made[kept:] if block else []
        for _ in range(sizes["self_layers"]):
            x = _perceive(made, x, None, sizes["heads"], width)
    query = made.numbers(1, 1, width)
    mixed = made.attend(made.layer_norm(query), made.layer_norm(x), 1, bias=True)
    y = made.linear(mixed, width)
    y = y + made.linear(F.gelu(made.linear(made.layer_norm(y), width)), width)
    return made.linear(y, 1000)


def _perceive(made: Layers, x: Tensor, inputs: Tensor | None, heads: int, inner: int) -> Tensor:
    normal = made.layer_norm(x)
    mixed = made.attend(normal, normal if inputs is None else inputs, heads, inner=inner, bias=True)
    x = x + made.linear(mixed, x.shape[-1])
    return x + made.linear(F.gelu(made.linear(made.layer_norm(x), x.shape[-1])), x.shape[-1])
