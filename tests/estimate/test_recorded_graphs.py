"""The graph of an estimate equals the graph that the device records when the model runs, operator by operator."""

from __future__ import annotations

import copy
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
from neurontools.estimate.decoder import Architecture, Transformer
from neurontools.estimate.graphs import ModelPhase, graph_of, training_step
from neurontools.estimate.models import PlainModel
from neurontools.estimate.parallel import RankMesh, recorded_rank
from neurontools.estimate.recording import record
from neurontools.estimate.steps import Steps
from neurontools.machine.instances.catalogue import instance_type
from neurontools.xla import api
from neurontools.xla.distributed.worker_group import WorkerGroup

if TYPE_CHECKING:
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
ONE_RANK = RankMesh()
CASES = [
    pytest.param(sizes, phase, checkpoints, id=f"{name}-{phase}{'-checkpoints' * checkpoints}")
    for name, sizes in (("llama", LLAMA), ("gpt2", GPT2), ("bert", BERT))
    for phase, checkpoints in (
        (ModelPhase.PROMPT, False),
        (ModelPhase.DECODING, False),
        (ModelPhase.TRAINING, False),
        (ModelPhase.TRAINING, True),
    )
    if sizes.causal or phase is not ModelPhase.DECODING
]


def recorded_on_device(
    machine: InMemoryAccelerator,
    sizes: Architecture,
    phase: ModelPhase,
    batch: int,
    length: int,
    *,
    checkpoints: bool,
    dtype: torch.dtype,
    mesh: RankMesh = ONE_RANK,
) -> Graph:
    """Run a model on the device, and return the graph that it recorded."""
    model = Transformer(sizes, mesh, checkpoints=checkpoints).to(dtype).to("xla")
    if sizes.tied:
        model.head.weight = model.tokens.weight  # which `to` makes two of, on this device
    run_phase(model, phase, mesh, batch, length, vocabulary=sizes.vocabulary, causal=sizes.causal)
    return machine.graphs[-1]


def run_phase(
    model: Any, phase: ModelPhase, mesh: RankMesh, batch: int, length: int, *, vocabulary: int, causal: bool
) -> None:
    """Run a phase of a model on the device, as its last graph."""
    tokens = torch.randint(0, vocabulary, (batch, 1 if phase is ModelPhase.DECODING else length)).to("xla")
    if phase is ModelPhase.TRAINING:
        step, labels = training_step(model, mesh), tokens.clone()
        api.mark_step()
        kept = step(tokens, labels)
    else:
        with torch.no_grad():
            cache = (
                [tuple(part.zero_() for part in pair) for pair in model.make_cache(batch, length)]
                if causal
                else None
            )
            at = torch.tensor([length - 1]).to("xla") if phase is ModelPhase.DECODING else None
            api.mark_step()
            kept = model.next_token(tokens, cache, at)
    api.mark_step()
    assert kept is not None


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


@pytest.mark.parametrize(("sizes", "phase", "checkpoints"), CASES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_estimate_records_what_the_device_records(
    machine: InMemoryAccelerator,
    sizes: Architecture,
    phase: ModelPhase,
    checkpoints: bool,
    dtype: torch.dtype,
) -> None:
    run = recorded_on_device(machine, sizes, phase, 2, 16, checkpoints=checkpoints, dtype=dtype)
    estimated = graph_of(PlainModel("tiny", sizes), phase, 2, 16, dtype=dtype, checkpoints=checkpoints)
    assert_same(estimated, run)


@pytest.mark.parametrize("mesh", [RankMesh(2), RankMesh(1, 2), RankMesh(2, 2)], ids=str)
@pytest.mark.parametrize(
    ("sizes", "phase"),
    [
        (LLAMA, ModelPhase.PROMPT),
        (LLAMA, ModelPhase.DECODING),
        (LLAMA, ModelPhase.TRAINING),
        (GPT2, ModelPhase.TRAINING),
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
    with recorded_rank(mesh):
        run = recorded_on_device(
            machine, sizes, phase, 2, 16, checkpoints=False, dtype=torch.bfloat16, mesh=mesh
        )
    estimated = graph_of(PlainModel("tiny", sizes), phase, 2, 16, mesh.tensor, data=mesh.data)
    assert_same(estimated, run)
    is_shared = mesh.tensor > 1 or phase is ModelPhase.TRAINING
    assert is_shared == any("all_reduce_" in node.op for node in run.nodes)


@pytest.mark.parametrize("kind", [nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d])
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


def test_repeated_layers_are_scheduled_once() -> None:
    sizes = replace(LLAMA, layers=7)
    device = instance_type("trn1.32xlarge").device
    model = PlainModel("tiny", sizes)
    for phase in ModelPhase:
        step = Steps(model, torch.bfloat16).step(phase, 2, 16, 2, device, 1)
        cost = estimate(graph_of(model, phase, 2, 16, 2), device)
        host_ns = 0.0 if phase is ModelPhase.TRAINING else engine_costs(device.core.name).host_step_ns
        assert step.time_ns - host_ns == pytest.approx(cost.total_ns, rel=0.01)
        assert step.flops == cost.matmul_flops
