"""Graphs of one rank of a model: a prompt, a decoding step, a training step."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

import torch

from neurontools.estimate.parallel import Mesh, recorded_rank, reduce_gradients, token_loss
from neurontools.estimate.recording import record

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from neurontools.compiler.graph import Graph


class Phase(StrEnum):
    """What an execution does."""

    PROMPT = "prompt"
    TOKEN = "token"
    TRAINING = "training"


class Model(Protocol):
    """A model whose graphs can be recorded."""

    layers: int

    def build(self, mesh: Mesh, layers: int, *, checkpoints: bool = False) -> Any:
        """Return one rank's part with some of the layers, on the device of torch's context."""


def graph_of(
    model: Model,
    phase: Phase,
    batch: int,
    length: int,
    degree: int = 1,
    *,
    data: int = 1,
    layers: int | None = None,
    dtype: torch.dtype = torch.bfloat16,
    checkpoints: bool = False,
) -> Graph:
    """Return the graph that rank 0 of a model records.

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
    """
    mesh = Mesh(degree, data)
    with torch.device("meta"):
        built = model.build(mesh, layers or model.layers, checkpoints=checkpoints).to(dtype)
        width = 1 if phase is Phase.TOKEN else length
        tokens = torch.empty((batch, width), dtype=torch.int64)
        arguments: tuple[Any, ...] = (tokens,)
        if phase is Phase.TRAINING:
            step = training_step(built, mesh)
            arguments = tokens, torch.empty_like(tokens)
        else:
            step = built.next_token
            cache = built.make_cache(batch, length)
            at = torch.empty(1, dtype=torch.int64) if phase is Phase.TOKEN else None
            arguments = tokens, cache, at
    with recorded_rank(mesh), torch.set_grad_enabled(phase is Phase.TRAINING):
        return record(step, *arguments)


def training_step(model: nn.Module, mesh: Mesh) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
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
