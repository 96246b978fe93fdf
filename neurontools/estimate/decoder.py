"""A transformer in plain torch, of which one rank holds a part: decoders such as Llama and GPT-2, encoders such as BERT."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.utils.checkpoint import checkpoint

from neurontools.estimate.experts import Experts, Router
from neurontools.estimate.parallel import RankMesh, VocabularyPart, add, split

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.estimate.models import Architecture

_THETA = 10000.0


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None = None, *, causal: bool
) -> torch.Tensor:
    """Return attention, [batch, heads, length, depth], of which keys and values may have fewer heads.

    A single query is multiplied with all keys of its group, without copies of them, as kernels of decoding do.
    """
    groups = query.size(1) // key.size(1)
    if query.size(2) > 1:
        if groups > 1:
            key, value = (
                x[:, :, None].expand(-1, -1, groups, -1, -1).reshape(x.size(0), -1, *x.shape[2:])
                for x in (key, value)
            )
        return F.scaled_dot_product_attention(query, key, value, is_causal=causal, scale=scale)
    batch, heads, _, depth = query.shape
    grouped = query.view(batch, key.size(1), groups, depth)
    scores = torch.matmul(grouped, key.transpose(2, 3)) * (depth**-0.5 if scale is None else scale)
    weights = scores.softmax(-1, dtype=torch.float32).to(query.dtype)
    return torch.matmul(weights, value).view(batch, heads, 1, value.size(-1))


class RmsNorm(nn.Module):  # type: ignore[misc]
    """Divides by the root of the mean square, in float32."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the normalized tensor."""
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        return self.weight * wide.to(x.dtype)


class FeedForward(nn.Module):  # type: ignore[misc]
    """A feed-forward block of one rank."""

    def __init__(self, sizes: Architecture, mesh: RankMesh) -> None:
        super().__init__()
        inner, bias = sizes.inner // mesh.tensor, sizes.bias
        self.mesh, self.activation = mesh, getattr(F, sizes.activation)
        self.gate = nn.Linear(sizes.width, inner, bias) if sizes.gated else None
        self.up = nn.Linear(sizes.width, inner, bias)
        self.down = nn.Linear(inner, sizes.width, bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's result for the residual stream."""
        h = split(x, self.mesh)
        gate = self.activation(self.up(h) if self.gate is None else self.gate(h))
        return add(self.down(gate if self.gate is None else gate * self.up(h)), self.mesh)


class RoutedFeedForward(nn.Module):  # type: ignore[misc]
    """A feed-forward block of experts."""

    def __init__(self, sizes: Architecture, mesh: RankMesh) -> None:
        super().__init__()
        activation = getattr(F, sizes.activation)
        self.router = Router(sizes.width, sizes.experts, sizes.chosen)
        self.experts = Experts(sizes.experts, sizes.width, sizes.inner, activation, mesh, gated=sizes.gated)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's result for the residual stream."""
        rows = x.reshape(-1, x.size(-1))
        return self.experts(rows, *self.router(rows)).view(x.shape)


class Layer(nn.Module):  # type: ignore[misc]
    """Attention and feed-forward block of one rank."""

    def __init__(self, sizes: Architecture, mesh: RankMesh) -> None:
        super().__init__()
        self.mesh, self.causal, self.depth = mesh, sizes.causal, sizes.head_width
        self.heads, self.kv_heads = sizes.heads // mesh.tensor, max(1, sizes.kv_heads // mesh.tensor)
        norm = RmsNorm if sizes.norm == "rms" else nn.LayerNorm
        bias, depth = sizes.bias, self.depth
        self.norms = nn.ModuleList([norm(sizes.width), norm(sizes.width)])
        self.query = nn.Linear(sizes.width, self.heads * depth, bias)
        self.key = nn.Linear(sizes.width, self.kv_heads * depth, bias)
        self.value = nn.Linear(sizes.width, self.kv_heads * depth, bias)
        self.output = nn.Linear(self.heads * depth, sizes.width, bias)
        self.feed_forward = (RoutedFeedForward if sizes.experts else FeedForward)(sizes, mesh)

    def forward(
        self,
        x: torch.Tensor,
        rotation: tuple[torch.Tensor, torch.Tensor] | None,
        cache: tuple[torch.Tensor, torch.Tensor] | None = None,
        at: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the residual stream after the layer.

        Args:
            x: before it, [batch, length, width].
            rotation: cosines and sines of the positions.
            cache: keys and values of earlier tokens; those of x are written to it.
            at: positions of x in the cache; without them x is a prompt, which starts at 0.
        """
        h = split(self.norms[0](x), self.mesh)
        query, key, value = self._heads(self.query(h)), self._heads(self.key(h)), self._heads(self.value(h))
        if rotation is not None:
            query, key = _rotated(query, *rotation), _rotated(key, *rotation)
        if cache is not None:
            if at is None:
                for kept, new in zip(cache, (key, value), strict=True):
                    kept[:, :, : new.size(2)].copy_(new)
            else:
                key, value = (
                    kept.index_copy_(2, at, new) for kept, new in zip(cache, (key, value), strict=True)
                )
        mixed = attend(query, key, value, causal=self.causal)
        x = x + add(self.output(mixed.transpose(1, 2).flatten(2)), self.mesh)
        return x + self.feed_forward(self.norms[1](x))

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(x.size(0), x.size(1), -1, self.depth).transpose(1, 2)


def _rotated(x: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
    half = x.size(-1) // 2
    return x * cosines + torch.cat((-x[..., half:], x[..., :half]), -1) * sines


class Transformer(nn.Module):  # type: ignore[misc]
    """One rank's part of a transformer; rank 0's, where ranks differ.

    Args:
        sizes: its architecture.
        mesh: the ranks that share it.
        checkpoints: whether a training step recomputes the activations of each layer in the backward pass.
    """

    def __init__(self, sizes: Architecture, mesh: RankMesh, *, checkpoints: bool = False) -> None:
        super().__init__()
        self.sizes, self.mesh, self.checkpoints = sizes, mesh, checkpoints
        self.width = sizes.width
        self.tokens: nn.Module | None = VocabularyPart(sizes.vocabulary, sizes.width, mesh)
        self.positions = None if sizes.rotary else nn.Embedding(sizes.positions, sizes.width)
        self.layers = nn.ModuleList([Layer(sizes, mesh) for _ in range(sizes.layers)])
        self.norm = RmsNorm(sizes.width) if sizes.norm == "rms" else nn.LayerNorm(sizes.width)
        self.head = nn.Linear(sizes.width, -(-sizes.vocabulary // mesh.tensor), bias=False)
        if sizes.tied:
            self.head.weight = self.tokens.weight

    def drop_embedding(self) -> None:
        """Become the last stage of a pipeline."""
        self.tokens = None

    def make_cache(self, batch: int, length: int, _source: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return empty keys and values of each layer."""
        weight = self.norm.weight
        heads = max(1, self.sizes.kv_heads // self.mesh.tensor)
        shape = batch, heads, length, self.sizes.head_width
        return [(weight.new_empty(shape), weight.new_empty(shape)) for _ in self.layers]

    def forward(
        self,
        tokens: torch.Tensor,
        cache: Sequence[tuple[torch.Tensor, torch.Tensor]] | None = None,
        at: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the residual stream of tokens, or of itself in a stage; `cache` and `at` are as in `Layer`."""
        x = tokens if self.tokens is None else self.tokens(tokens)
        where = torch.arange(tokens.size(1), device=tokens.device) if at is None else at
        if self.positions is not None:
            x = x + self.positions(where)
        rotation = self._rotation(where, x.dtype) if self.positions is None else None
        for number, layer in enumerate(self.layers):
            if self.checkpoints:
                x = checkpoint(layer, x, rotation, use_reentrant=False, preserve_rng_state=False)
            else:
                x = layer(x, rotation, None if cache is None else cache[number], at)
        return self.norm(x)

    def _rotation(self, where: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        half = torch.arange(0, self.sizes.head_width, 2, device=where.device, dtype=torch.float32)
        angles = where.to(torch.float32)[:, None] / _THETA ** (half / self.sizes.head_width)
        angles = torch.cat((angles, angles), -1)
        return angles.cos().to(dtype), angles.sin().to(dtype)

    def next_token(
        self, tokens: torch.Tensor, cache: Any = None, at: torch.Tensor | None = None, _source: object = None
    ) -> torch.Tensor:
        """Return the logits of the token after the last one; of an encoder the residual stream of all."""
        x = self(tokens, cache, at)
        return self.head(x[:, -1:]) if self.sizes.causal else x

    def logits(self, tokens: torch.Tensor, _source: object = None) -> torch.Tensor:
        """Return the logits of all tokens."""
        return self.head(split(self(tokens), self.mesh))
