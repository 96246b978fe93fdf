"""T5 on the meta device, as one of its workers runs it: the encoder, and a token of the decoder."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from benchmarks.engine_model.diffusion import Layers
from benchmarks.engine_model.sharded import ReversedExchange, empty

Tensor = torch.Tensor


def encode_t5(
    sizes: dict[str, Any], length: int, dtype: torch.dtype, workers: int, layers: int, batch: int = 1
) -> Tensor:
    """Run one worker's share of T5's encoder."""
    made, width = Layers(dtype), sizes["width"]
    heads, depth = sizes["heads"] // workers, sizes.get("head_width", 64)
    x = F.embedding(empty(batch, length, dtype=torch.int64), made.numbers(sizes["vocabulary"], width))
    bias = made.numbers(heads, length, length).repeat(batch, 1, 1)
    for _ in range(layers):
        normal = _norm(made, x)
        mixed = made.attend(normal, normal, heads, inner=heads * depth, added=bias)
        x = x + _sum(made.linear(mixed, width, bias=False), workers)
        x = x + _mlp(made, x, sizes, workers)
    return _norm(made, x)


def _norm(made: Layers, x: Tensor) -> Tensor:
    """Divide rows by their root mean square."""
    wide = x.float()
    scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
    return made.numbers(x.shape[-1]) * scaled.to(x.dtype)


def _sum(x: Tensor, workers: int) -> Tensor:
    """Add the parts that the workers have."""
    return ReversedExchange.apply(x, "all_reduce_", "", workers)  # type: ignore[no-any-return]


def _mlp(made: Layers, x: Tensor, sizes: dict[str, Any], workers: int) -> Tensor:
    """T5's feed-forward block: relu, or gelu with a gate."""
    normal, inner = _norm(made, x), sizes["inner"] // workers
    y = made.linear(normal, inner, bias=False)
    y = F.gelu(y) * made.linear(normal, inner, bias=False) if sizes.get("gated", True) else F.relu(y)
    return _sum(made.linear(y, sizes["width"], bias=False), workers)


def decode_t5(
    sizes: dict[str, Any], beams: int, context: int, dtype: torch.dtype, workers: int, layers: int
) -> tuple[Tensor, list[Tensor]]:
    """Make a token with one worker's share of T5's decoder: caches of its own positions and of the encoder's.

    Returns:
        The scores, and the tensors that outlive the call: weights and caches.
    """
    made, width = Layers(dtype), sizes["width"]
    heads, depth = sizes["heads"] // workers, sizes["head_width"]
    position = empty(1, dtype=torch.int64)
    x = F.embedding(empty(beams, 1, dtype=torch.int64), made.numbers(sizes["vocabulary"], width))
    bias = made.numbers(beams * heads, 1, context)
    for _ in range(layers):
        for is_own in (True, False):
            normal = _norm(made, x)
            query = made.linear(normal, heads * depth, bias=False).view(beams * heads, 1, depth)
            cached = [made.numbers(beams, heads, context, depth) for _ in range(2)]
            if is_own:
                for cache in cached:
                    cache.index_copy_(
                        2,
                        position,
                        made.linear(normal, heads * depth, bias=False).view(beams, heads, 1, depth),
                    )
            keys, values = (cache.view(beams * heads, context, depth) for cache in cached)
            weights = torch.softmax(torch.bmm(query, keys.transpose(1, 2)) + bias, -1)
            mixed = torch.bmm(weights, values).view(beams, 1, heads * depth)
            x = x + _sum(made.linear(mixed, width, bias=False), workers)
        x = x + _mlp(made, x, sizes, workers)
    return made.linear(_norm(made, x), sizes["vocabulary"], bias=False), made.made
