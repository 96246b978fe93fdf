"""Graphs of one rank of a model: a prompt, a decoding step, a micro-batch of training, a training step."""

from __future__ import annotations

import importlib
import sys
from contextlib import contextmanager
from functools import lru_cache
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

import torch
from torch.overrides import TorchFunctionMode

from neurontools.estimate.models import ModelPhase, Recorded
from neurontools.estimate.parallel import (
    DividedStates,
    RankMesh,
    recorded_rank,
    reduce_gradients,
    token_loss,
)
from neurontools.estimate.quantized import store_weights
from neurontools.estimate.recording import record

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    from torch import nn

    from neurontools.estimate.models import RankedModel, RankRun

_FILLERS = frozenset({torch.Tensor.normal_, torch.Tensor.uniform_})


@contextmanager
def without_compiler() -> Iterator[None]:
    """Keep torch from importing its compiler, which takes longer than all the rest, only to keep it away from a call.

    Meta kernels and optimizers ask for `disable` and `graph_break`. Any other name imports the compiler.
    """
    name = "torch._dynamo"
    if name in sys.modules:
        yield
        return
    stub = ModuleType(name)

    def imported(attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        if sys.modules.get(name) is stub:
            del sys.modules[name]
        return getattr(importlib.import_module(name), attribute)

    stub.__dict__.update(
        disable=lambda function, *_, **__: function, graph_break=lambda *_, **__: None, __getattr__=imported
    )
    sys.modules[name] = stub
    try:
        yield
    finally:
        if sys.modules.get(name) is stub:
            del sys.modules[name]


class _Unfilled(TorchFunctionMode):  # type: ignore[misc]
    """Leaves weights without random values, for which torch would import its compiler on the meta device."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        values = kwargs or {}
        if func in _FILLERS or getattr(func, "__module__", "") == "torch.nn.init":
            return args[0] if args else values["tensor"]
        return func(*args, **values)


def record_run(model: RankedModel, run: RankRun) -> Recorded:
    """Record what rank 0 of a model does.

    Raises:
        ModelError: the model cannot be built, or not in as many parts.
        UnrecordableError: the model reads values while it runs.
    """
    with without_compiler():
        return _recorded(model, run)


def _recorded(model: RankedModel, run: RankRun) -> Recorded:
    mesh = RankMesh(run.tensor, run.data)
    layers = run.layers or model.facts.stacks
    is_trained = run.phase.is_trained
    with recorded_rank(mesh), torch.set_grad_enabled(is_trained):
        with torch.device("meta"), _Unfilled():
            built = _built(
                cast("Hashable", model), mesh, layers, run.dtype, run.weights, run.checkpoints, run.is_stage
            )
            has_cache = model.facts.causal and not is_trained
            cache = built.make_cache(run.batch, run.length, run.source) if has_cache else []
            program, arguments = _program(built, model, mesh, run, cache)
        graph = record(program, *arguments)
    weights = sum(weight.nbytes for weight in built.parameters())
    return Recorded(graph, weights, sum(part.nbytes for parts in cache for part in parts))


@lru_cache(maxsize=16)
def _built(
    model: Any,
    mesh: RankMesh,
    layers: tuple[int, ...],
    dtype: str,
    weights: str,
    checkpoints: bool,
    is_stage: bool,
) -> Any:
    built = model.build(mesh, layers, checkpoints=checkpoints).to(getattr(torch, dtype))
    if weights:
        store_weights(built, weights)
    if is_stage:
        built.drop_embedding()
    return built


def _program(
    built: Any,
    model: RankedModel,
    mesh: RankMesh,
    run: RankRun,
    cache: list[tuple[torch.Tensor, ...]],
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return what a rank runs, and its arguments."""
    length = 1 if run.phase is ModelPhase.DECODING else run.length
    tokens = torch.empty((run.batch, length), dtype=torch.int64)
    source = built.source(run.batch, run.source) if model.facts.has_encoder else None
    if run.phase.is_trained:
        step = training_step(built, mesh, run)
        hidden = (
            torch.empty(run.batch, length, built.width, dtype=getattr(torch, run.dtype), requires_grad=True)
            if run.is_stage
            else tokens
        )
        return step, (hidden, torch.empty_like(tokens), source)
    if run.phase is ModelPhase.DECODING:
        return built.next_token, (tokens, cache, torch.empty(1, dtype=torch.int64))
    return built.next_token, (tokens, cache or None, None, source)


def training_step(
    model: Any, mesh: RankMesh, run: RankRun
) -> Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]:
    """Return a function of tokens, labels and source that runs a micro-batch; the states of AdamW exist already."""
    parameters: list[nn.Parameter] = [each for each in model.parameters() if each.requires_grad]
    states = DividedStates(parameters, mesh) if run.zero1 and mesh.data > 1 else None
    updated = parameters if states is None else states.parts
    optimizer = torch.optim.AdamW(updated, lr=1e-3, foreach=True)
    for parameter in updated:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if run.accumulates:
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)

    def step(tokens: torch.Tensor, labels: torch.Tensor, source: torch.Tensor | None = None) -> torch.Tensor:
        logits = model.logits(tokens, source)
        loss = token_loss(logits.flatten(0, 1), labels.flatten(), mesh)
        loss.backward()
        if run.phase is ModelPhase.TRAINING:
            if states is None:
                reduce_gradients(parameters, mesh)
                optimizer.step()
            else:
                states.scatter_gradients()
                optimizer.step()
                states.gather_weights()
            for parameter in (*parameters, *updated):
                parameter.grad = None
        return loss.detach()

    return step
