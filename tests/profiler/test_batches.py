"""The batch of a step, and what differs in the inputs of two profiles' steps, from the graphs alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from neurontools.compiler.graph import Node
from neurontools.profiler.analysis.batches import (
    StepInputChange,
    StepInputs,
    compare_inputs,
    inputs_of_graphs,
)
from tests.compiler.graphs import graph_of, mlp, tensor
from tests.profiler.advice.programs import gpt

if TYPE_CHECKING:
    from neurontools.compiler.graph import Graph


def forward(rows: int, width: int = 8) -> Graph:
    """A product whose result the backward pass takes."""
    return mlp(rows, width)


def backward(rows: int, width: int = 8) -> Graph:
    """The rest of the step: labels and the activation of `forward`, with an update of the weight."""
    hidden, label, weight, out = (
        tensor(0, rows, width),
        tensor(1, rows, dtype="int64"),
        tensor(2, width, width),
        tensor(3, rows, width),
    )
    return graph_of(
        Node("aten.nll_loss_backward.default", (hidden, label), (), (out,)),
        Node("aten.add_.Tensor", (weight, weight), (), (weight,)),
        inputs=(0, 1, 2),
    )


def loss(rows: int, activation: str) -> Graph:
    """A graph with data of its own that returns a number."""
    x, weight, hidden, out = tensor(0, rows, 8), tensor(1, 8, 8), tensor(2, rows, 8), tensor(4)
    return graph_of(
        Node("aten.mm.default", (x, weight), (), (hidden,)),
        Node(f"aten.{activation}.default", (hidden,), (), (tensor(3, rows, 8),)),
        Node("aten.mean.default", (tensor(3, rows, 8),), (), (out,)),
        inputs=(0, 1),
    )


def inputs(*graphs: tuple[Graph, float]) -> StepInputs:
    return inputs_of_graphs(graphs)


def change(before: StepInputs, after: StepInputs) -> StepInputChange:
    return compare_inputs(before, after)


@pytest.mark.parametrize(
    ("graphs", "batch", "samples"),
    [
        ([(mlp(4), 1.0)], 4, 4),
        ([(mlp(4), 3.0)], 4, 12),
        ([(gpt(batch=4), 1.0)], 4, 4),
        ([(forward(4), 1.0), (backward(4), 1.0)], 4, 4),
        ([(loss(4, "relu"), 1.0), (loss(4, "tanh"), 1.0)], 4, 8),
        ([(loss(4, "relu"), 3.0), (loss(4, "tanh"), 1.0)], 4, 16),
        ([(mlp(1), 1.0)], 1, 1),
    ],
    ids=[
        "one graph",
        "three executions",
        "a GPT",
        "a step in two graphs",
        "accumulation",
        "more accumulation",
        "one",
    ],
)
def test_the_batch_of_a_step_follows_from_the_data_of_its_graphs(
    graphs: list[tuple[Graph, float]], batch: int, samples: float
) -> None:
    found = inputs_of_graphs(graphs)
    assert (found.batch, found.samples, found.reason) == (batch, samples, "")


@pytest.mark.parametrize(
    ("graphs", "reason"),
    [
        ([], "the inputs of a step have no common batch"),
        ([(mlp(4), 1.0), (mlp(6, 16), 1.0)], "the graphs of a step have several batches"),
        ([(mlp(4), 1.0), (mlp(4, 16), 2.0)], "the graphs of a step take its data different numbers of times"),
    ],
)
def test_a_batch_that_is_not_certain_is_none(graphs: list[tuple[Graph, float]], reason: str) -> None:
    found = inputs_of_graphs(graphs)
    assert (found.samples, found.reason) == (None, reason)


@pytest.mark.parametrize(
    ("before", "after", "texts", "samples"),
    [
        (inputs((mlp(4), 1)), inputs((mlp(4), 1)), (), (4, 4)),
        (inputs((mlp(4), 1)), inputs((mlp(8), 1)), ("batch 4 -> 8",), (4, 8)),
        (inputs((mlp(1), 1)), inputs((mlp(8), 1)), ("batch 1 -> 8",), (1, 8)),
        (inputs((mlp(4), 1)), inputs((mlp(4), 2)), ("samples of a step 4 -> 8",), (4, 8)),
        (
            inputs((gpt(batch=4), 1)),
            inputs((gpt(batch=8), 1)),
            ("batch 4 -> 8",),
            (4, 8),
        ),
        (
            inputs((gpt(length=256), 1)),
            inputs((gpt(length=128), 1)),
            (
                "input int64[4,256] -> int64[4,128]",
                "input int64[1,256] -> int64[1,128]",
                "and 1 more input",
            ),
            None,
        ),
        (
            inputs((mlp(4, 8), 1)),
            inputs((mlp(8, 16), 1)),
            ("batch 4 -> 8", "input float32[4,8] -> float32[8,16]"),
            None,
        ),
    ],
    ids=["same", "batch", "from one", "accumulation", "GPT", "length", "batch and width"],
)
def test_what_differs_in_the_inputs_is_named(
    before: StepInputs, after: StepInputs, texts: tuple[str, ...], samples: tuple[float, float] | None
) -> None:
    found = change(before, after)
    assert tuple(dict.fromkeys(found.texts)) == texts
    assert found.samples == samples
    assert bool(found.reason) is (samples is None)


def test_a_batch_that_one_side_does_not_show_follows_from_both() -> None:
    types = (("float32", (4, 8)), ("float32", (16, 8)))
    larger = (("float32", (12, 8)), ("float32", (16, 8)))
    found = change(StepInputs(types, reason="several"), StepInputs(larger, reason="several"))
    assert found.texts == ("batch 4 -> 12",)
    assert found.samples == (4, 12)
