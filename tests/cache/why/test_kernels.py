"""Changed kernels as the cause of a compile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from neurontools.cache.why.causes import CauseName
from neurontools.compiler.graph import Graph, Node
from tests.cache.why.test_causes import told
from tests.compiler.graphs import graph_of, tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

IDENTITY: dict[str, tuple[str, ...]] = {
    "source": ("kernels.py:scaled=aa11", "kernels.py:twice=bb22"),
    "captured": ("FACTOR=2.0",),
    "arguments": ("a=tensor 0", "alpha=1.0"),
    "launch": ("grid=1", "cores=1", "target=trn2"),
}


def step(name: str = "nki.scaled.in1_out1", rows: int = 8, **changes: Sequence[str]) -> Graph:
    """A kernel between two operators."""
    constants = tuple((IDENTITY | changes).items())
    tensors = [tensor(number, rows, 4) for number in range(4)]
    return graph_of(
        Node("aten.relu.default", (tensors[0],), (), (tensors[1],), "train.py:4"),
        Node(name, (tensors[1],), constants, (tensors[2],), "train.py:5"),
        Node("aten.exp.default", (tensors[2],), (), (tensors[3],), "train.py:6"),
        inputs=(0,),
    )


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"source": ("kernels.py:scaled=cc33", "kernels.py:twice=bb22")}, "its source changed"),
        (
            {"source": ("kernels.py:scaled=aa11", "kernels.py:twice=cc33")},
            "kernels.py:twice, which it calls, changed",
        ),
        (
            {"source": ("kernels.py:scaled=cc33",)},
            "its source changed; kernels.py:twice, which it calls, was removed",
        ),
        ({"captured": ("FACTOR=4.0",)}, "captured value FACTOR: 2.0 -> 4.0"),
        ({"captured": ()}, "captured value FACTOR: 2.0 -> none"),
        ({"arguments": ("a=tensor 0", "alpha=3.0")}, "argument alpha: 1.0 -> 3.0"),
        ({"arguments": ("a=tensor 0", "alpha='x=1, y'")}, "argument alpha: 1.0 -> 'x=1, y'"),
        ({"launch": ("grid=2", "cores=2", "target=trn2")}, "launch grid: 1 -> 2; launch cores: 1 -> 2"),
        ({"name": "nki.scaled.in1_out2"}, "its tensors: in1_out1 -> in1_out2"),
    ],
)
def test_what_changed_of_a_kernel_is_named(changes: dict[str, Any], text: str) -> None:
    (cause,) = told(step(), step(**changes))
    assert cause.name is CauseName.KERNEL
    assert cause.text == f"kernel scaled of kernels.py: {text}"


def test_another_shape_is_a_shape_and_another_kernel_a_computation() -> None:
    assert [cause.name for cause in told(step(rows=8), step(rows=12))] == [CauseName.SHAPE]
    assert [cause.name for cause in told(step(), step("nki.other.in1_out1"))] == [CauseName.CODE]


@pytest.mark.parametrize("source", ["no list", (), ((("nested",),),), (1.5, None)])
def test_identities_that_are_none_are_passed_over(source: Any) -> None:
    assert len(told(step(), step(source=source))) == 1
