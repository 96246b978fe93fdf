"""Graphs of one rank of a model: a prompt, a decoding step, a training step."""

from __future__ import annotations

from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch

from neurontools.estimate.parallel import RankMesh, recorded_rank, reduce_gradients, token_loss
from neurontools.estimate.recording import record

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from torch import nn

    from neurontools.compiler.graph import Graph
    from neurontools.estimate.models import RankedModel


class ModelPhase(StrEnum):
    """What an execution does."""

    PROMPT = "prompt"
    DECODING = "decoding"
    TRAINING = "training"


class Recorded(NamedTuple):
    """A graph of one rank, and the bytes of its weights, and of its keys and values."""

    graph: Graph
    weight_bytes: int
    cache_bytes: int


def graph_of(
    model: RankedModel, phase: ModelPhase, batch: int, length: int, degree: int = 1, **options: Any
) -> Graph:
    """Return the graph that rank 0 of a model records; the arguments are those of `record_phase`."""
    return record_phase(model, phase, batch, length, degree, **options).graph


def record_phase(
    model: RankedModel,
    phase: ModelPhase,
    batch: int,
    length: int,
    degree: int = 1,
    *,
    data: int = 1,
    layers: int | None = None,
    dtype: torch.dtype = torch.bfloat16,
    checkpoints: bool = False,
) -> Recorded:
    """Record what rank 0 of a model does.

    Args:
        model: the model.
        phase: a prompt of `length` tokens, one token after `length - 1` others, or a training step.
        batch: sequences of one replica.
        length: tokens of a sequence.
        degree: ranks that share the model (tensor parallelism).
        data: replicas, whose gradients a training step averages.
        layers: number of layers; None for all.
        dtype: of weights, activations and optimizer states.
        checkpoints: whether a training step recomputes the activations of each layer in the backward pass.

    Raises:
        ModelError: the model cannot be built, or not in as many parts.
        UnrecordableError: the model reads values while it runs.
    """
    mesh = RankMesh(degree, data)
    cache: list[tuple[torch.Tensor, torch.Tensor]] = []
    with torch.device("meta"):
        built = _built(cast("Hashable", model), mesh, layers or model.layers, dtype, checkpoints)
        tokens = torch.empty((batch, 1 if phase is ModelPhase.DECODING else length), dtype=torch.int64)
        if phase is ModelPhase.TRAINING:
            step: Callable[..., Any] = training_step(built, mesh)
            arguments: tuple[Any, ...] = tokens, torch.empty_like(tokens)
        else:
            cache = built.make_cache(batch, length) if model.causal else []
            at = torch.empty(1, dtype=torch.int64) if phase is ModelPhase.DECODING else None
            step, arguments = built.next_token, (tokens, cache or None, at)
    with recorded_rank(mesh), torch.set_grad_enabled(phase is ModelPhase.TRAINING):
        graph = record(step, *arguments)
    weights = sum(weight.nbytes for weight in built.parameters())
    return Recorded(graph, weights, sum(part.nbytes for pair in cache for part in pair))


@lru_cache(maxsize=16)
def _built(model: Any, mesh: RankMesh, layers: int, dtype: torch.dtype, checkpoints: bool) -> Any:
    return model.build(mesh, layers, checkpoints=checkpoints).to(dtype)


def training_step(model: nn.Module, mesh: RankMesh) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Return a function of tokens and labels that makes a step of AdamW; its states exist already."""
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, foreach=True)
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)

    def step(tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        logits = model.logits(tokens)
        loss = token_loss(logits.flatten(0, 1), labels.flatten(), mesh)
        loss.backward()
        reduce_gradients(parameters, mesh)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step
