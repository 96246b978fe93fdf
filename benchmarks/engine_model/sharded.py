"""Decoders and T5 as one of their workers runs them: a prompt, a token, and a training step of a micro-batch.

Weights are sharded as the serving and training libraries do: attention by heads, the MLP by columns and then rows, words
by the vocabulary. Layers are plain torch on the meta device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812

from neurontools.estimate.parallel import RankMesh, recorded_rank
from neurontools.estimate.recording import record
from neurontools.xla.distributed import collectives

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.compiler.graph import Graph

Tensor = torch.Tensor
_FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


def record_worker(workers: int, function: Callable[..., Any], *arguments: Any) -> Graph:
    """Return the graph of the first of some workers."""
    with recorded_rank(RankMesh(workers)):
        return record(function, *arguments)


def empty(*shape: int, dtype: torch.dtype, is_weight: bool = False) -> Tensor:
    """Return a tensor without values."""
    return torch.empty(shape, dtype=dtype, device="meta", requires_grad=is_weight and dtype.is_floating_point)


class ReversedExchange(torch.autograd.Function):
    """An exchange whose gradient goes the other way: sums to copies, gathered rows to summed shares."""

    @staticmethod
    def forward(_ctx: Any, x: Tensor, forth: str, back: str, workers: int) -> Tensor:
        _ctx.back, _ctx.workers = back, workers
        return _exchanged(x, forth, workers)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        return _exchanged(grads[0], ctx.back, ctx.workers), None, None, None


def _exchanged(x: Tensor, op: str, workers: int) -> Tensor:
    x = x.contiguous().view_as(x)
    match op if workers > 1 else "":
        case "all_reduce_":
            collectives.all_reduce_([x], "sum")
        case "all_gather":
            return collectives.all_gather(x)
        case "reduce_scatter":
            return collectives.reduce_scatter(x, "sum")
    return x


class Decoder:
    """One worker's share of a decoder.

    Args:
        sizes: layers, width, heads, kv_heads, inner and vocabulary of the model; `gated` unless False.
        workers: the tensor-parallel degree.
        dtype: of activations.
        layers: how many layers it has.
        is_trained: whether weights take gradients; activations between layers are then split over the workers by rows
            (sequence parallelism).
        has_kernel: whether whole sequences attend by a kernel, without scores in HBM.
    """

    def __init__(
        self,
        sizes: dict[str, Any],
        workers: int,
        dtype: torch.dtype,
        layers: int,
        *,
        is_trained: bool = False,
        has_kernel: bool = False,
    ) -> None:
        self.workers, self.dtype = workers, dtype
        self.layers, self.is_trained, self.has_kernel = layers, is_trained, has_kernel
        self.width = sizes["width"]
        self.depth = sizes.get("head_width") or self.width // sizes["heads"]
        self.heads = -(-sizes["heads"] // workers)
        self.kv_heads = -(-sizes["kv_heads"] // workers)
        self.heads = -(-self.heads // self.kv_heads) * self.kv_heads
        self.inner = -(-sizes["inner"] // workers)
        self.words = -(-sizes["vocabulary"] // workers)
        self.is_gated = sizes.get("gated", True)
        self.parameters: list[Tensor] = []
        self.caches: list[Tensor] = []  # which outlive a token, so that writing to them is no lost work

    def weight(self, *shape: int) -> Tensor:
        """Return a new matrix, or the numbers of a norm."""
        made = empty(*shape, dtype=self.dtype, is_weight=self.is_trained)
        self.parameters.append(made)
        return made

    def linear(self, x: Tensor, width: int) -> Tensor:
        """Multiply with a new weight."""
        return F.linear(x, self.weight(width, x.shape[-1]))

    def norm(self, x: Tensor) -> Tensor:
        """Divide rows by their root mean square (in float32), or normalize them as GPT does."""
        weight = self.weight(self.width)
        if not self.is_gated:
            return F.layer_norm(x, (self.width,), weight, self.weight(self.width))
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        return weight * scaled.to(x.dtype)

    def enter(self, x: Tensor) -> Tensor:
        """Bring what a sharded layer reads to all workers."""
        if not self.is_trained:
            return x
        return ReversedExchange.apply(x, "all_gather", "reduce_scatter", self.workers)  # type: ignore[no-any-return]

    def leave(self, x: Tensor) -> Tensor:
        """Add the parts that the workers have."""
        forth, back = ("reduce_scatter", "all_gather") if self.is_trained else ("all_reduce_", "")
        return ReversedExchange.apply(x, forth, back, self.workers)  # type: ignore[no-any-return]

    def mlp(self, x: Tensor) -> Tensor:
        """Two linear layers, the first with a gate or gelu."""
        up = self.linear(x, self.inner)
        inner = F.silu(self.linear(x, self.inner)) * up if self.is_gated else F.gelu(up)
        return self.leave(self.linear(inner, self.width))

    def rotate(self, x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
        """Rotate queries or keys (batch x heads x length x depth) by their positions; GPT adds positions elsewhere."""
        if not self.is_gated:
            return x
        left, right = x.chunk(2, -1)
        return x * turn[0] + torch.cat((-right, left), -1) * turn[1]

    def project(self, x: Tensor, batch: int, length: int, turn: tuple[Tensor, Tensor]) -> list[Tensor]:
        """Return queries, keys and values as batch x heads x length x depth."""
        made = []
        for heads in (self.heads, self.kv_heads, self.kv_heads):
            y = self.linear(x, heads * self.depth)
            made.append(y.view(batch, length, heads, self.depth).transpose(1, 2))
        return [self.rotate(made[0], turn), self.rotate(made[1], turn), made[2]]

    def attend_all(
        self, x: Tensor, batch: int, length: int, turn: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Attend over a whole sequence; return keys and values too."""
        query, key, value = self.project(x, batch, length, turn)
        shared = self.heads // self.kv_heads
        keys, values = ((y.repeat_interleave(shared, 1) if shared > 1 else y) for y in (key, value))
        if self.has_kernel:
            mixed = _FLASH(query, keys, values, 0.0, True)[0]
        else:
            scores = query @ keys.transpose(-1, -2) / self.depth**0.5 + empty(
                length, length, dtype=self.dtype
            )
            mixed = torch.softmax(scores.float(), -1).to(self.dtype) @ values
        return (
            self.leave(self.linear(mixed.transpose(1, 2).reshape(*x.shape[:-1], -1), self.width)),
            key,
            value,
        )

    def attend_one(
        self, x: Tensor, batch: int, context: int, turn: tuple[Tensor, Tensor], mask: Tensor, position: Tensor
    ) -> Tensor:
        """Attend from one position over a cache, in which it is written first."""
        query, key, value = self.project(x, batch, 1, turn)
        shape = (batch, self.kv_heads, context, self.depth)
        keys, values = (empty(*shape, dtype=self.dtype).index_copy_(2, position, new) for new in (key, value))
        self.caches += [keys, values]
        grouped = query.reshape(batch * self.kv_heads, self.heads // self.kv_heads, self.depth)
        scores = grouped @ keys.view(-1, context, self.depth).transpose(1, 2) / self.depth**0.5
        weights = torch.softmax((scores + mask).float(), -1).to(self.dtype)
        mixed = weights @ values.view(-1, context, self.depth)
        return self.leave(self.linear(mixed.reshape(batch, 1, -1), self.width))

    def embed(self, tokens: Tensor) -> Tensor:
        """Return the words of tokens; each worker has a part of the table."""
        return self.leave(F.embedding(tokens, self.weight(self.words, self.width)))

    def scores(self, x: Tensor) -> Tensor:
        """Return the scores of all words of some rows."""
        made = self.linear(self.norm(x), self.words)
        return collectives.all_gather(made.t().contiguous()) if self.workers > 1 else made

    def turns(self, length: int) -> tuple[Tensor, Tensor]:
        """Return the cosines and sines of positions."""
        return empty(1, 1, length, self.depth, dtype=self.dtype), empty(
            1, 1, length, self.depth, dtype=self.dtype
        )

    def prompt(self, batch: int, length: int) -> tuple[Tensor, ...]:
        """Run a prompt; return the scores of each last position, and keys and values for the cache."""
        x, kept = self.embed(empty(batch, length, dtype=torch.int64)), []
        turn = self.turns(length)
        for _ in range(self.layers):
            mixed, key, value = self.attend_all(self.norm(x), batch, length, turn)
            kept += [key.contiguous(), value.contiguous()]
            x = x + mixed
            x = x + self.mlp(self.norm(x))
        return self.scores(x[:, -1]), *kept

    def token(self, batch: int, context: int) -> Tensor:
        """Make one token for each sequence."""
        x, turn = self.embed(empty(batch, 1, dtype=torch.int64)), self.turns(1)
        mask, position = empty(1, 1, context, dtype=self.dtype), empty(1, dtype=torch.int64)
        for _ in range(self.layers):
            x = x + self.attend_one(self.norm(x), batch, context, turn, mask, position)
            x = x + self.mlp(self.norm(x))
        return self.scores(x[:, -1])

    def train(self, length: int, *, has_words: bool) -> list[Tensor]:
        """Run a sequence forward and backward; return the gradients. A middle pipeline stage has no words."""
        turn = self.turns(length)
        tokens = empty(length, dtype=torch.int64)
        start = empty(length // self.workers, self.width, dtype=self.dtype, is_weight=True)
        x = self.embed(tokens) if has_words else start
        for _ in range(self.layers):
            x = x + self.attend_all(self.enter(self.norm(x)), 1, length, turn)[0]
            x = x + self.mlp(self.enter(self.norm(x)))
        if has_words:
            made = self.linear(self.enter(self.norm(x)), self.words)
            loss = F.cross_entropy(made, tokens)  # each worker's share of the words
            return list(torch.autograd.grad(loss, self.parameters))
        back = empty(*x.shape, dtype=self.dtype)
        return list(torch.autograd.grad(x, [start, *self.parameters], back))
