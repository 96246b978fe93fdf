"""Executables of large graphs: pieces that repeat are written once, with equal results and no more memory."""

from __future__ import annotations

import random
import weakref
from typing import TYPE_CHECKING, Any

import pytest
import torch

from neurontools.compiler.graph import Graph, Lifted, Node, Slot, View
from neurontools.xla import execution
from neurontools.xla.execution import generate
from neurontools.xla.geometry import intern_layout

if TYPE_CHECKING:
    from collections.abc import Callable

INPUTS = [torch.tensor([0.5, -1.0, 2.0, 0.25]), torch.tensor([1.5, 0.75, -0.5, 3.0])]
SCALARS = [0.5, -0.25]


def vector(slot: int) -> View:
    return View(slot, "float32", (4,), (1,), 0)


class Layers:
    """A graph of a few kinds of layers in random order: updates in place, views, several results, unused ones."""

    def __init__(self, seed: int) -> None:
        self.choice = random.Random(seed)
        self.nodes: list[Node] = []
        self.made = 2

    def call(self, op: str, *args: Any, more: tuple[None, ...] = (), **kwargs: Any) -> View:
        result = vector(self.made)
        self.made += 1
        self.nodes.append(Node(f"aten.{op}", args, tuple(kwargs.items()), (result, *more)))
        return result

    def layer(self, x: View, y: View) -> View:
        match self.choice.randrange(4):
            case 0:
                total = self.call("add.Tensor", x, y)
                scaled = self.call("mul.Scalar", total, Lifted(self.choice.randrange(2)))
                return self.call("tanh.default", scaled)
            case 1:
                copy = self.call("sin.default", x)
                self.nodes.append(Node("aten.add_.Tensor", (copy, y), (), (copy,)))
                return self.call("cos.default", copy)
            case 2:
                ordered = self.call("sort.default", x, more=(None,))
                flipped = View(ordered.slot, "float32", (2, 2), (1, 2), 0)
                self.call("sum.default", flipped)  # no call reads it
                return self.call("atan.default", ordered)
        whole = self.call("div.Tensor_mode", x, y, rounding_mode="floor")
        return self.call("lerp.Scalar", self.call("clamp.default", whole, -1.5, 1.5), y, 0.5)

    def graph(self, count: int = 100) -> Graph:
        live = [vector(0), vector(1)]
        for _ in range(count):
            kept = live[-self.choice.randrange(1, 5) :]
            live = [*kept, self.layer(kept[-1], self.choice.choice(kept))]
        return Graph((Slot(16),) * self.made, (0, 1), 2, tuple(self.nodes), (live[-1].slot,))


class LiveTensors:
    """Counts the results that exist before each call: how much memory an executable holds."""

    def __init__(self) -> None:
        self.counts: list[int] = []
        self.count = 0
        self.known: dict[Any, Callable[..., Any]] = {}

    def bind(self, operator: Any, call: Node) -> Callable[..., Any]:
        if operator not in self.known:
            self.known[operator] = self.counting(operator.overload)
        return self.known[operator]

    def counting(self, overload: Any) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            self.counts.append(self.count)
            result = overload(*args, **kwargs)
            if not overload._schema.is_mutable:
                for tensor in (result,) if isinstance(result, torch.Tensor) else result[:1]:
                    self.count += 1
                    weakref.finalize(tensor, self.dropped)
            return result

        return run

    def dropped(self) -> None:
        self.count -= 1


def generated(graph: Graph, fewest: int, monkeypatch: pytest.MonkeyPatch, numerics: Any = None) -> Any:
    monkeypatch.setattr(execution, "_FEWEST_CALLS_THAT_SHARE", fewest)
    layout = intern_layout(16, (torch.float32, (4,), (1,), 0))
    return generate(graph, [layout, layout], numerics)


@pytest.mark.parametrize("seed", range(20))
def test_shared_pieces_compute_the_same_and_hold_nothing_longer(seed, monkeypatch):
    graph = Layers(seed).graph()
    outcomes, counts = [], []
    for fewest in (1, 10**6):
        live = LiveTensors()
        run = generated(graph, fewest, monkeypatch, live)
        outcomes.append(run(INPUTS, SCALARS))
        counts.append(live.counts)
    torch.testing.assert_close(*outcomes, rtol=0, atol=0, equal_nan=True)
    assert counts[0] == counts[1]


def test_repeated_layers_become_one_function(monkeypatch):
    layers, x = Layers(0), vector(0)
    for _ in range(100):
        wave = layers.call("sin.default", x)
        layers.nodes.append(Node("aten.add_.Tensor", (wave, vector(1)), (), (wave,)))
        x = layers.call("mul.Tensor", layers.call("cos.default", wave), vector(1))
    graph = Graph((Slot(16),) * layers.made, (0, 1), 2, tuple(layers.nodes), (x.slot,))
    shared, plain = (generated(graph, fewest, monkeypatch) for fewest in (1, 10**6))
    assert len(shared.__code__.co_code) < 0.5 * len(plain.__code__.co_code)
    assert torch.equal(shared(INPUTS, SCALARS)[0], plain(INPUTS, SCALARS)[0])


def test_a_small_graph_is_one_function(monkeypatch):
    graph = Layers(1).graph(20)
    assert not [
        name for name in generated(graph, 500, monkeypatch).__code__.co_names if name.startswith("run")
    ]


def test_texts_and_names_of_arguments_are_left_alone(monkeypatch):
    """They may look like names of values: an equation, a parameter of a user's operator."""
    library = torch.library.Library("shared_code_test", "FRAGMENT")
    library.define("scaled(Tensor s0, *, Tensor t1, str v0) -> Tensor")
    library.impl("scaled", lambda s0, *, t1, v0: s0 * t1 * len(v0), "CPU")
    nodes = []
    for position in range(40):
        made = (vector(2 + 2 * position), vector(3 + 2 * position))
        x = vector(1 + 2 * position) if position else vector(0)
        named = (("t1", vector(1)), ("v0", "$s0"))
        nodes.append(Node("shared_code_test.scaled.default", (x,), named, (made[0],)))
        nodes.append(Node("aten.tanh.default", (made[0],), (), (made[1],)))
    graph = Graph((Slot(16),) * 82, (0, 1), 0, tuple(nodes), (81,))
    expected = INPUTS[0]
    for _ in range(40):
        expected = torch.tanh(expected * INPUTS[1] * 3)
    assert torch.equal(generated(graph, 1, monkeypatch)(INPUTS, [])[0], expected)
