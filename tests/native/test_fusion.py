"""Where eager operators are cut into graphs: whole repetitions of a loop."""

from __future__ import annotations

import pytest

from neurontools.compiler.graph_nodes import Node, View
from neurontools.native.activation import AdaptiveFusion


def calls(period: int, count: int, first: int = 0) -> list[Node]:
    """Return a program that repeats `period` operators of different shapes; every call has a slot of its own."""
    return [
        Node(
            "aten.add.Tensor", (), (), (View(slot, "float32", (1 + (first + slot) % period,), (1,), 0), None)
        )
        for slot in range(count)
    ]


@pytest.mark.parametrize("period", [1, 3, 64, 100, 191])
def test_a_loop_is_cut_after_a_whole_number_of_repetitions(period: int) -> None:
    cut = next(
        count for count in range(256, 1000) if AdaptiveFusion.is_complete(calls(period, count, first=2))
    )
    assert cut % period == 0
    assert cut < 256 + period


def test_other_programs_are_cut_at_the_limit() -> None:
    assert AdaptiveFusion.limit == 256
    assert AdaptiveFusion.is_complete(calls(10_000, 256))
