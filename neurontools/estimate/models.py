"""Models of which ranks hold parts, and what limits them: heads and positions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from neurontools.errors import NeuronToolsError

if TYPE_CHECKING:
    from torch import nn

    from neurontools.estimate.decoder import Architecture
    from neurontools.estimate.parallel import RankMesh

MOST = 1 << 24  # of one dimension


class ModelError(NeuronToolsError):
    """A model cannot be read or built."""


class RankedModel(Protocol):
    """A model of which ranks hold parts.

    Its parts have the methods of `decoder.Transformer`: `next_token`, `make_cache` and `logits`.
    """

    @property
    def name(self) -> str:
        """What messages call it."""

    @property
    def layers(self) -> int:
        """Number of layers."""

    @property
    def heads(self) -> int:
        """Heads of queries."""

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values."""

    @property
    def positions(self) -> int:
        """Tokens of the longest sequence."""

    @property
    def causal(self) -> bool:
        """Whether it is a decoder."""

    def build(self, mesh: RankMesh, layers: int, *, checkpoints: bool = False) -> nn.Module:
        """Return rank 0's part with some of the layers, on the device of torch's context."""


@dataclass(frozen=True, slots=True)
class PlainModel:
    """A transformer described by its sizes."""

    name: str
    sizes: Architecture

    layers = property(lambda self: self.sizes.layers)
    heads = property(lambda self: self.sizes.heads)
    kv_heads = property(lambda self: self.sizes.kv_heads)
    positions = property(lambda self: self.sizes.positions)
    causal = property(lambda self: self.sizes.causal)

    def build(self, mesh: RankMesh, layers: int, *, checkpoints: bool = False) -> nn.Module:
        """Return rank 0's part with some of the layers."""
        from neurontools.estimate.decoder import Transformer

        return Transformer(replace(self.sizes, layers=layers), mesh, checkpoints=checkpoints)


def check_degree(model: RankedModel, degree: int) -> None:
    """Check that a model can be shared by a number of ranks.

    Raises:
        ModelError: the degree does not divide the heads.
    """
    kv_heads = model.kv_heads
    if model.heads % degree or (kv_heads % degree and degree % kv_heads):
        fitting = ", ".join(map(str, degrees(model, model.heads)))
        raise ModelError(
            f"a tensor-parallel degree of {degree} does not divide {model.heads} heads with {kv_heads} of keys and values",
            f"choose one of {fitting}",
        )


def degrees(model: RankedModel, most: int) -> list[int]:
    """Return the tensor-parallel degrees up to a number that a model can have: powers of two that divide its heads."""
    powers = (1 << power for power in range(most.bit_length()))
    kv_heads = model.kv_heads
    return [
        degree
        for degree in powers
        if degree <= most and not model.heads % degree and (not kv_heads % degree or not degree % kv_heads)
    ]


def check_length(model: RankedModel, length: int) -> None:
    """Check that a sequence is no longer than a model's longest.

    Raises:
        ModelError: it is.
    """
    if length > model.positions:
        raise ModelError(
            f"{length} tokens are more than the {model.positions} positions of {model.name}",
            f"give lengths up to {model.positions}",
        )
