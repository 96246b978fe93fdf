"""The layer and line of operators in a learned graph: forward, backward, optimizer, recomputation."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from msgspec import structs
from torch import nn
from torch.utils.checkpoint import checkpoint

from neurontools.compiler.compile import compile_graph
from neurontools.compiler.graph_nodes import BACKWARD
from neurontools.compiler.neff import network_name, parse
from neurontools.machine.instances.catalogue import instance_type
from neurontools.xla import api

if TYPE_CHECKING:
    from collections.abc import Iterator

    from neurontools.compiler.graph import Graph
    from tests.xla.conftest import InMemoryAccelerator


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.proj(x).softmax(-1)


class Model(nn.Module):
    def __init__(self, *, recompute: bool = False) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Attention() for _ in range(2))
        self._recompute = recompute

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self._recompute else block(x)
        return x


def train(machine: InMemoryAccelerator, model: nn.Module) -> Graph:
    """Return the graph of a training step."""
    on_device = model.to("xla")
    optimizer = torch.optim.SGD(on_device.parameters(), lr=0.1, foreach=False)
    x = torch.ones(2, 4).to("xla")
    on_device(x).square().sum().backward()
    optimizer.step()
    api.mark_step()
    (graph,) = machine.graphs
    return graph


def layers(graph: Graph, op: str) -> list[str]:
    return [node.layer for node in graph.nodes if node.op.startswith(op)]


def test_operators_know_the_path_of_their_module(machine: InMemoryAccelerator) -> None:
    graph = train(machine, Model())
    assert layers(graph, "aten.addmm") == ["Model.blocks.0.proj", "Model.blocks.1.proj"]
    assert layers(graph, "aten._softmax.") == ["Model.blocks.0", "Model.blocks.1"]
    assert layers(graph, "aten.pow") == ["", BACKWARD]


def test_backward_operators_belong_to_the_layer_and_line_of_their_forward_operator(
    machine: InMemoryAccelerator,
) -> None:
    graph = train(machine, Model())
    assert layers(graph, "aten._softmax_backward") == [
        f"Model.blocks.{number}{BACKWARD}" for number in (1, 0)
    ]
    products = [node for node in graph.nodes if node.op.startswith("aten.mm")]
    assert [node.layer for node in products] == [
        f"Model.blocks.{number}.proj{BACKWARD}" for number in (1, 1, 0)
    ]
    (forward,) = {node.source for node in graph.nodes if node.op.startswith("aten.addmm")}
    assert {node.source for node in products} == {forward}


def test_updates_belong_to_the_optimizer(machine: InMemoryAccelerator) -> None:
    graph = train(machine, Model())
    assert set(layers(graph, "aten.add_")) == {"SGD.step"}


def test_recomputed_operators_belong_to_their_layer(machine: InMemoryAccelerator) -> None:
    graph = train(machine, Model(recompute=True))
    both = ["Model.blocks.0.proj", "Model.blocks.1.proj"]
    assert layers(graph, "aten.addmm") == [*both, *reversed(both)]
    assert all(layer.endswith(BACKWARD) for layer in layers(graph, "aten._softmax_backward"))


def test_a_backward_of_operators_that_were_known_has_their_layers(
    machine: InMemoryAccelerator,
) -> None:
    model = Model().to("xla")
    x = torch.ones(2, 4).to("xla")
    with torch.no_grad():
        evaluated = model(x).square().sum()
    api.mark_step()
    loss = model(x).square().sum()
    loss.backward()
    api.mark_step()
    graph = machine.graphs[-1]
    assert evaluated.item() == loss.item()
    assert layers(graph, "aten.addmm") == ["Model.blocks.0.proj", "Model.blocks.1.proj"]
    assert layers(graph, "aten._softmax_backward") == [f"Model.blocks.{n}{BACKWARD}" for n in (1, 0)]
    products = [node for node in graph.nodes if node.op.startswith("aten.mm")]
    assert [node.layer for node in products] == [f"Model.blocks.{n}.proj{BACKWARD}" for n in (1, 1, 0)]
    assert {node.source for node in products} == {graph.nodes[0].source}


def test_the_schedule_tells_the_layer_and_the_digest_does_not_depend_on_it(
    machine: InMemoryAccelerator,
) -> None:
    graph = train(machine, Model())
    bare = replace(graph, nodes=tuple(structs.replace(node, layer="") for node in graph.nodes))
    assert bare.digest() == graph.digest()
    assert bare != graph
    device = instance_type("trn1.2xlarge").device
    neff = parse(compile_graph(graph, device, ["--target=trn1"], network_name(graph)))
    assert "Model.blocks.1.proj" in {operation.layer for operation in neff.cost.ops}


def test_a_module_that_was_added_later_is_found_too(machine: InMemoryAccelerator) -> None:
    model = nn.Sequential(nn.Linear(4, 4)).to("xla")
    x = torch.ones(2, 4).to("xla")
    model(x)
    model.append(nn.Linear(4, 4).to("xla"))
    model(x)
    api.mark_step()
    assert layers(machine.graphs[-1], "aten.addmm")[-1] == "Sequential.1"


def test_a_module_that_refuses_to_list_its_parts_is_found_too(machine: InMemoryAccelerator) -> None:
    class Remote(nn.Linear):
        def named_modules(self, *_: object, **__: object) -> Iterator[tuple[str, nn.Module]]:
            raise ValueError("not supported for RemoteModule")

    class Hybrid(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.remote = Remote(4, 4).to("xla")
            self.again = self.remote

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.again(self.remote(x))

    Hybrid()(torch.ones(2, 4).to("xla"))
    api.mark_step()
    assert set(layers(machine.graphs[-1], "aten.addmm")) == {"Hybrid.remote"}
