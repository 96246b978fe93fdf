"""The graph of an estimate equals the graph that the device records when the model runs, operator by operator."""

from __future__ import annotations

import copy
import gc
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from msgspec import structs
from torch import nn

from neurontools.compiler.engines.estimate import estimate
from neurontools.compiler.engines.modelled_core import engine_costs
from neurontools.compiler.graph import View
from neurontools.compiler.work import flops
from neurontools.estimate.decoder import Transformer
from neurontools.estimate.direct_reads import read_directly
from neurontools.estimate.graphs import record_run, training_step
from neurontools.estimate.model_files import PlainModel
from neurontools.estimate.models import Architecture, ModelPhase, RankRun
from neurontools.estimate.parallel import RankMesh, recorded_rank
from neurontools.estimate.quantized import store_weights
from neurontools.estimate.recording import record
from neurontools.estimate.steps import Steps
from neurontools.machine.instances.catalogue import instance_type
from neurontools.xla import api
from neurontools.xla.distributed.worker_group import WorkerGroup

if TYPE_CHECKING:
    from pathlib import Path

    from neurontools.compiler.graph import Graph, Node
    from tests.xla.conftest import InMemoryAccelerator

pytestmark = pytest.mark.torch

LLAMA = Architecture(2, 32, 4, 2, 8, 48, 40, 64)
GPT2 = Architecture(
    2, 32, 4, 4, 8, 64, 40, 64, "layer", gated=False, activation="gelu", rotary=False, bias=True, tied=True
)
BERT = Architecture(
    2, 32, 4, 4, 8, 64, 40, 64, "layer", gated=False, activation="gelu", rotary=False, bias=True, causal=False
)
MIXTURE = replace(LLAMA, experts=4, chosen=2)
CASES = [
    pytest.param(sizes, RankRun(phase, 2, 16, checkpoints=checkpoints), id=f"{name}-{phase}-{checkpoints}")
    for name, sizes in (("llama", LLAMA), ("gpt2", GPT2), ("bert", BERT), ("mixture", MIXTURE))
    for phase, checkpoints in (
        (ModelPhase.PROMPT, False),
        (ModelPhase.DECODING, False),
        (ModelPhase.TRAINING, False),
        (ModelPhase.TRAINING, True),
    )
    if sizes.causal or phase is not ModelPhase.DECODING
]


def recorded_on_device(machine: InMemoryAccelerator, sizes: Architecture, run: RankRun) -> Graph:
    """Run a model on the device, and return the graph that it recorded."""
    mesh = RankMesh(run.tensor, run.data)
    model = Transformer(sizes, mesh, checkpoints=run.checkpoints).to(getattr(torch, run.dtype))
    if run.weights:
        store_weights(model, run.weights)
    if run.is_stage:
        model.drop_embedding()
    model = model.to("xla")
    if sizes.tied:
        model.head.weight = model.tokens.weight  # which `to` makes two of, on this device
    run_phase(model, run, mesh, vocabulary=sizes.vocabulary, causal=sizes.causal)
    return machine.graphs[-1]


def run_phase(
    model: Any, run: RankRun, mesh: RankMesh, *, vocabulary: int, causal: bool, has_encoder: bool = False
) -> None:
    """Run a phase of a model on the device, as its last graph."""
    length = 1 if run.phase is ModelPhase.DECODING else run.length
    tokens = torch.randint(0, vocabulary, (run.batch, length)).to("xla")
    source = model.source(run.batch, run.source) if has_encoder else None
    if run.phase.is_trained:
        step, labels = training_step(model, mesh, run), tokens.clone()
        hidden = torch.zeros(run.batch, length, model.width, dtype=getattr(torch, run.dtype), device="xla")
        api.mark_step()
        kept = step(hidden.requires_grad_() if run.is_stage else tokens, labels, source)
    else:
        with torch.no_grad():
            cache = model.make_cache(run.batch, run.length, run.source) if causal else None
            for part in (part for parts in cache or () for part in parts):
                part.zero_()
            at = torch.tensor([run.length - 1]).to("xla") if run.phase is ModelPhase.DECODING else None
            api.mark_step()
            kept = model.next_token(tokens, cache, at, None if at is not None else source)
    gc.collect()  # some models keep results in reference cycles
    api.mark_step()
    assert kept is not None


def graph_of(model: PlainModel, run: RankRun) -> Graph:
    return record_run(model, run).graph


def assert_same(estimated: Graph, run: Graph) -> None:
    """Compare graphs: operators, arguments, buffers, and with them FLOPs and bytes."""
    assert [comparable(node) for node in estimated.nodes] == [comparable(node) for node in run.nodes]
    assert (estimated.slots, estimated.inputs, estimated.outputs) == (run.slots, run.inputs, run.outputs)
    assert sum(map(flops, estimated.nodes)) == sum(map(flops, run.nodes)) > 0


def comparable(node: Node) -> Node:
    """Return a node without its origin, and without strides of dimensions of size 1, which mean nothing."""

    def strip(arg: Any) -> Any:
        match arg:
            case View():
                strides = (stride * (size != 1) for stride, size in zip(arg.strides, arg.shape, strict=True))
                return structs.replace(arg, strides=tuple(strides))
            case tuple():
                return tuple(map(strip, arg))
        return arg

    return structs.replace(
        node,
        args=strip(node.args),
        kwargs=strip(node.kwargs),
        results=strip(node.results),
        source="",
        layer="",
    )


@pytest.mark.parametrize(("sizes", "run"), CASES)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_estimate_records_what_the_device_records(
    machine: InMemoryAccelerator, sizes: Architecture, run: RankRun, dtype: str
) -> None:
    run = run._replace(dtype=dtype)
    assert_same(graph_of(PlainModel("tiny", sizes), run), recorded_on_device(machine, sizes, run))


@pytest.mark.parametrize("mesh", [RankMesh(2), RankMesh(1, 2), RankMesh(2, 2)], ids=str)
@pytest.mark.parametrize(
    ("sizes", "phase"),
    [
        (LLAMA, ModelPhase.PROMPT),
        (LLAMA, ModelPhase.DECODING),
        (LLAMA, ModelPhase.TRAINING),
        (GPT2, ModelPhase.TRAINING),
        (MIXTURE, ModelPhase.DECODING),
        (MIXTURE, ModelPhase.TRAINING),
    ],
)
def test_parts_of_a_model_are_recorded_as_on_the_device(
    machine: InMemoryAccelerator,
    monkeypatch: pytest.MonkeyPatch,
    sizes: Architecture,
    phase: ModelPhase,
    mesh: RankMesh,
) -> None:
    """The other workers do not run: the exchange is left out, which recording does not see."""
    monkeypatch.setattr(WorkerGroup, "all_reduce", lambda *_: None)
    run = RankRun(phase, 2, 16, mesh.tensor, mesh.data)
    with recorded_rank(mesh):
        on_device = recorded_on_device(machine, sizes, run)
    assert_same(graph_of(PlainModel("tiny", sizes), run), on_device)
    is_shared = mesh.tensor > 1 or phase is ModelPhase.TRAINING
    assert is_shared == any("all_reduce_" in node.op for node in on_device.nodes)


@pytest.mark.parametrize(
    "run",
    [
        RankRun(ModelPhase.DECODING, 2, 16, weights="int8"),
        RankRun(ModelPhase.PROMPT, 2, 16, 2, weights="int8"),
        RankRun(ModelPhase.GRADIENTS, 2, 16, accumulates=True),
        RankRun(ModelPhase.GRADIENTS, 2, 16, 2, is_stage=True),
        RankRun(ModelPhase.TRAINING, 2, 16, 1, 2, zero1=True),
        RankRun(ModelPhase.TRAINING, 2, 16, 2, 2, is_stage=True, accumulates=True, zero1=True),
    ],
    ids=str,
)
@pytest.mark.parametrize("sizes", [LLAMA, MIXTURE], ids=["llama", "mixture"])
def test_ways_to_run_are_recorded_as_on_the_device(
    machine: InMemoryAccelerator, monkeypatch: pytest.MonkeyPatch, sizes: Architecture, run: RankRun
) -> None:
    monkeypatch.setattr(WorkerGroup, "all_reduce", lambda *_: None)
    monkeypatch.setattr(WorkerGroup, "reduce_scatter", lambda _, x, *__: x[0].clone())
    monkeypatch.setattr(WorkerGroup, "all_gather", lambda _, x, *__: torch.stack([x, x]))
    with recorded_rank(RankMesh(run.tensor, run.data)):
        on_device = recorded_on_device(machine, sizes, run)
    assert_same(graph_of(PlainModel("tiny", sizes), run), on_device)


@pytest.mark.parametrize("kind", [nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d])
def test_convolutions_are_recorded_as_on_the_device(
    machine: InMemoryAccelerator, kind: type[nn.Module]
) -> None:
    def step(layer: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = layer(x)
        return y.detach(), *torch.autograd.grad(y.sum(), list(layer.parameters()))

    layer, dimensions = kind(4, 6, 3, stride=2), int(kind.__name__[-2])
    x = torch.rand(2, 4, *[8] * dimensions)
    estimated = record(step, copy.deepcopy(layer).to("meta"), x.to("meta"))
    on_device, moved = layer.to("xla"), x.to("xla")
    api.mark_step()
    kept = step(on_device, moved)
    api.mark_step()
    assert kept
    assert_same(estimated, machine.graphs[-1])


@pytest.mark.parametrize("sizes", [LLAMA, MIXTURE], ids=["llama", "mixture"])
def test_repeated_layers_are_scheduled_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sizes: Architecture
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    device = instance_type("trn1.32xlarge").device
    model = PlainModel("tiny", replace(sizes, layers=7))
    for phase in ModelPhase:
        run = RankRun(phase, 2, 16, 2)
        step = Steps(model).step(run, device, 1)
        cost = estimate(read_directly(graph_of(model, run)), device)
        host_ns = 0.0 if phase.is_trained else engine_costs(device.core.name).host_step_ns
        assert step.time_ns - host_ns == pytest.approx(cost.total_ns, rel=0.01)
        assert step.flops == cost.matmul_flops
