"""Models of which ranks hold parts, what limits them (heads, positions), and what a rank runs of them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from neurontools.errors import NeuronToolsError

if TYPE_CHECKING:
    from torch import nn

    from neurontools.compiler.graph import Graph
    from neurontools.estimate.parallel import RankMesh

MOST = 1 << 24  # of one dimension


class ModelError(NeuronToolsError):
    """A model cannot be read or built."""


class ModelPhase(StrEnum):
    """What an execution does; a step of several micro-batches updates the weights in its last one."""

    PROMPT = "prompt"
    DECODING = "decoding"
    GRADIENTS = "gradients"
    TRAINING = "training"

    @property
    def is_trained(self) -> bool:
        """Whether it computes gradients."""
        return self in {ModelPhase.GRADIENTS, ModelPhase.TRAINING}


class RankRun(NamedTuple):
    """What rank 0 of a model runs.

    Args:
        phase: a prompt of `length` tokens, one token after `length - 1` others, or a micro-batch of training.
        batch: sequences of one replica.
        length: tokens of a sequence.
        tensor: ranks that share a layer (tensor parallelism).
        data: replicas, whose gradients a training step averages.
        source: tokens that the encoder of an encoder-decoder reads.
        layers: number of layers of each stack; empty for all.
        dtype: of weights, activations and optimizer states, a name of torch.
        weights: type of the stored weights of linear layers, "" for `dtype`.
        checkpoints: whether training recomputes the activations of each layer in the backward pass.
        is_stage: whether it is the last stage of a pipeline, which has the output but no embedding.
        accumulates: whether earlier micro-batches have left gradients, to which these are added.
        zero1: whether each replica has a part of the optimizer states (ZeRO-1).
    """

    phase: ModelPhase
    batch: int
    length: int
    tensor: int = 1
    data: int = 1
    source: int = 0
    layers: tuple[int, ...] = ()
    dtype: str = "bfloat16"
    weights: str = ""
    checkpoints: bool = False
    is_stage: bool = False
    accumulates: bool = False
    zero1: bool = False


class Recorded(NamedTuple):
    """A graph of one rank, and the bytes of its weights, and of its keys and values."""

    graph: Graph
    weight_bytes: int
    cache_bytes: int


@dataclass(frozen=True, slots=True)
class Architecture:
    """The sizes and kinds of a transformer's layers.

    Args:
        layers: number of layers.
        width: of the residual stream.
        heads: of queries.
        kv_heads: of keys and values.
        head_width: of one head.
        inner: width within the feed-forward block, or within one expert.
        vocabulary: number of tokens.
        positions: longest sequence.
        norm: "rms" or "layer".
        gated: whether the feed-forward block has a gate.
        activation: name of a function of `torch.nn.functional`.
        rotary: whether positions rotate queries and keys; else they are embeddings.
        bias: whether linear layers have a bias.
        tied: whether embedding and output share their weights.
        causal: whether a token sees earlier ones only: a decoder.
        experts: feed-forward blocks of a layer of which each token uses some; 0 for one block.
        chosen: experts that a token uses.
    """

    layers: int
    width: int
    heads: int
    kv_heads: int
    head_width: int
    inner: int
    vocabulary: int
    positions: int
    norm: str = "rms"
    gated: bool = True
    activation: str = "silu"
    rotary: bool = True
    bias: bool = False
    tied: bool = False
    causal: bool = True
    experts: int = 0
    chosen: int = 0


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What is known of a model before it is built.

    Args:
        name: what messages call it.
        stacks: number of layers; of an encoder-decoder those of both.
        heads: of queries.
        kv_heads: of keys and values.
        positions: tokens of the longest sequence.
        causal: whether it makes tokens.
        source: tokens that its encoder always reads, 0 for any number.
        lead: layers before those that repeat.
        period: layers after which a layer is like an earlier one.
        weights: stored type of the weights, "" for the type of the activations.
        experts: feed-forward blocks of a layer, 0 without choice.
    """

    name: str
    stacks: tuple[int, ...]
    heads: int
    kv_heads: int
    positions: int
    causal: bool = True
    source: int = 0
    lead: int = 1
    period: int = 1
    weights: str = ""
    experts: int = 0

    @property
    def has_encoder(self) -> bool:
        """Whether it is an encoder-decoder."""
        return len(self.stacks) > 1

    @property
    def family(self) -> str:
        """The family by whose published times its own are judged: decoder, encoder, or other."""
        if self.has_encoder or self.experts:
            return "other"
        return "decoder" if self.causal else "encoder"


class RankedModel(Protocol):
    """A model of which ranks hold parts."""

    @property
    def facts(self) -> ModelFacts:
        """Its sizes."""

    def key(self) -> dict[str, Any]:
        """Return what identifies it, as JSON."""

    def build(self, mesh: RankMesh, layers: tuple[int, ...], *, checkpoints: bool = False) -> nn.Module:
        """Return rank 0's part with some of the layers of each stack, on the device of torch's context.

        It has the methods of `decoder.Transformer`: `next_token`, `make_cache`, `logits` and `embed`.
        """


def check_degree(facts: ModelFacts, degree: int) -> None:
    """Check that a model can be shared by a number of ranks.

    Raises:
        ModelError: the degree does not divide the heads.
    """
    kv_heads = facts.kv_heads
    if facts.heads % degree or (kv_heads % degree and degree % kv_heads):
        fitting = ", ".join(map(str, degrees(facts, facts.heads)))
        raise ModelError(
            f"a tensor-parallel degree of {degree} does not divide {facts.heads} heads with {kv_heads} of keys and values",
            f"choose one of {fitting}",
        )


def degrees(facts: ModelFacts, most: int) -> list[int]:
    """Return the tensor-parallel degrees up to a number that a model can have: powers of two that divide its heads."""
    powers = (1 << power for power in range(most.bit_length()))
    kv_heads = facts.kv_heads
    return [
        degree
        for degree in powers
        if degree <= most and not facts.heads % degree and (not kv_heads % degree or not degree % kv_heads)
    ]


def check_length(facts: ModelFacts, length: int) -> None:
    """Check that a sequence is no longer than a model's longest.

    Raises:
        ModelError: it is.
    """
    if length > facts.positions:
        raise ModelError(
            f"{length} tokens are more than the {facts.positions} positions of {facts.name}",
            f"give lengths up to {facts.positions}",
        )
