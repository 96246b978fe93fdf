"""Tensor parallelism of one rank: its part of weights, heads and vocabulary, and the collectives between the parts.

The functions work on any device. On several workers of a run they exchange data; while a graph is recorded on the meta
device, they record the same operators.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from neurontools.xla.distributed import collectives, worker_group

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@dataclass(frozen=True, slots=True)
class RankMesh:
    """The ranks of a run: `data` replicas of a model over `tensor` ranks each."""

    tensor: int = 1
    data: int = 1

    def tensor_groups(self) -> list[list[int]]:
        """Return the ranks that share a model."""
        return [list(range(start, start + self.tensor)) for start in range(0, self.size, self.tensor)]

    def data_groups(self) -> list[list[int]]:
        """Return the ranks that hold the same part of a model."""
        return [list(range(part, self.size, self.tensor)) for part in range(self.tensor)]

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self.tensor * self.data


@contextmanager
def recorded_rank(mesh: RankMesh) -> Iterator[None]:
    """Be rank 0 of a mesh whose other ranks do not run, to record what it does."""
    collectives.define()
    before = worker_group.current()
    worker_group.replace(worker_group.Communicator(None, 0, mesh.size, timedelta(0)))
    try:
        yield
    finally:
        worker_group.replace(before)


class _Split(torch.autograd.Function):  # type: ignore[misc]
    """Before layers that are split by their outputs: the gradients of the parts are added."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, mesh: RankMesh) -> torch.Tensor:
        ctx.mesh = mesh
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _reduced(gradient, ctx.mesh), None


class _Add(torch.autograd.Function):  # type: ignore[misc]
    """After layers that are split by their inputs: the results of the parts are added."""

    @staticmethod
    def forward(_ctx: Any, value: torch.Tensor, mesh: RankMesh, reduce_type: str) -> torch.Tensor:
        return _reduced(value, mesh, reduce_type).view_as(value)

    @staticmethod
    def backward(_ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return gradient, None, None


def _reduced(value: torch.Tensor, mesh: RankMesh, reduce_type: str = "sum") -> torch.Tensor:
    value = value.contiguous()
    collectives.all_reduce_([value], reduce_type, groups=mesh.tensor_groups())
    return value


def split(value: torch.Tensor, mesh: RankMesh) -> torch.Tensor:
    """Return the input of layers of which each rank has some outputs."""
    result: torch.Tensor = _Split.apply(value, mesh) if mesh.tensor > 1 and torch.is_grad_enabled() else value
    return result


def add(value: torch.Tensor, mesh: RankMesh, reduce_type: str = "sum") -> torch.Tensor:
    """Return the reduction of each rank's partial result, in place."""
    if mesh.tensor == 1:
        return value
    result: torch.Tensor = _Add.apply(value, mesh, reduce_type)
    return result


class VocabularyPart(nn.Embedding):  # type: ignore[misc]
    """The first of equal parts of an embedding: rank 0's; tokens of other parts are zero until the parts are added."""

    def __init__(self, vocabulary: int, width: int, mesh: RankMesh) -> None:
        super().__init__(-(-vocabulary // mesh.tensor), width)
        self.mesh = mesh

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the rows of the tokens."""
        if self.mesh.tensor == 1:
            return super().forward(tokens)
        mask = tokens >= self.num_embeddings
        rows = super().forward(tokens.masked_fill(mask, 0))
        return add(rows.masked_fill(mask.unsqueeze(-1), 0.0), self.mesh)


def token_loss(logits: torch.Tensor, labels: torch.Tensor, mesh: RankMesh) -> torch.Tensor:
    """Return the mean cross entropy of this rank's part of the logits, [tokens, vocabulary], in float32."""
    logits = logits.float()
    if mesh.tensor == 1:
        return F.cross_entropy(logits, labels)
    with torch.no_grad():
        largest = add(logits.amax(-1, keepdim=True), mesh, "max")
    shifted = logits - largest
    own = torch.arange(logits.size(-1), device=logits.device)
    target = shifted.where(labels.unsqueeze(-1) == own, 0.0).sum(-1)
    return (add(shifted.exp().sum(-1), mesh).log() - add(target, mesh)).mean()


def reduce_gradients(parameters: Sequence[nn.Parameter], mesh: RankMesh) -> None:
    """Average the gradients over the replicas, in buckets."""
    if mesh.data == 1:
        return
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    for bucket in collectives.buckets(gradients):
        collectives.all_reduce_(bucket, "sum", 1.0 / mesh.data, mesh.data_groups())


class DividedStates:
    """Optimizer states of which each replica has a part (ZeRO-1): rank 0's part of each weight, flattened.

    Gradients are summed to the replica that updates them, and the updated parts are gathered from all.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], mesh: RankMesh) -> None:
        self._parameters, self._mesh = parameters, mesh
        sizes = (-(-parameter.numel() // mesh.data) for parameter in parameters)
        self.parts = [
            nn.Parameter(parameter.detach().new_empty(size))
            for parameter, size in zip(parameters, sizes, strict=True)
        ]

    def scatter_gradients(self) -> None:
        """Give each part the mean of its gradients."""
        for parameter, part in zip(self._parameters, self.parts, strict=True):
            if parameter.grad is not None:
                flat = parameter.grad.flatten()
                flat = F.pad(flat, (0, part.numel() * self._mesh.data - flat.numel()))
                groups = self._mesh.data_groups()
                part.grad = collectives.reduce_scatter(flat, "sum", 1.0 / self._mesh.data, groups=groups)

    def gather_weights(self) -> None:
        """Copy the parts of all replicas to the weights."""
        for parameter, part in zip(self._parameters, self.parts, strict=True):
            whole = collectives.all_gather(part.detach(), groups=self._mesh.data_groups())
            with torch.no_grad():
                parameter.copy_(whole[: parameter.numel()].view_as(parameter))
