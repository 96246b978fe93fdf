"""What the compiler refuses, with the documented error codes."""

from __future__ import annotations

import pytest

from neurontools.compiler import limits
from neurontools.compiler.compile import compile_graph
from neurontools.compiler.graph import Graph, Node, Slot
from neurontools.compiler.limits import AS_E4M3, instructions
from neurontools.compiler.options import CompileError
from neurontools.machine.instances.catalogue import instance_type
from tests.compiler.graphs import tensor

TRN1 = instance_type("trn1.2xlarge").device
TRN2 = instance_type("trn2.48xlarge").device


def relu(dtype: str) -> Graph:
    node = Node(
        "aten.relu.default", (tensor(0, 4, dtype=dtype),), (), (tensor(1, 4, dtype=dtype),), "train.py:7"
    )
    return Graph((Slot(16), Slot(16)), (0,), 0, (node,), (1,))


def product(side: int, count: int = 1) -> Graph:
    """Products of square matrices, each with the result of the one before it."""
    nodes = tuple(
        Node(
            "aten.mm.default",
            (tensor(n, side, side), tensor(n, side, side)),
            (),
            (tensor(n + 1, side, side),),
        )
        for n in range(count)
    )
    return Graph((Slot(4 * side * side),) * (count + 1), (0,), 0, nodes, (count,))


def compile_for(graph: Graph, device=TRN1, *flags: str) -> bytes:
    target = "trn1" if device is TRN1 else "trn2"
    return compile_graph(graph, device, [f"--target={target}", *flags], "n")


@pytest.mark.parametrize(
    ("dtype", "code", "text"),
    [
        (
            "complex64",
            "NCC_EVRF004",
            "Complex data types are not supported: complex64 in aten.relu.default (train.py:7)",
        ),
        ("float8_e4m3fnuz", "NCC_EVRF005", "float8_e4m3fnuz in aten.relu.default"),
        ("float8_e5m2fnuz", "NCC_EVRF005", "is not supported"),
        ("float8_e4m3fn", "NCC_EVRF051", "Data type F8E4M3FN is not supported on TRN1"),
    ],
)
def test_types_that_the_device_lacks(dtype: str, code: str, text: str) -> None:
    with pytest.raises(CompileError) as caught:
        compile_for(relu(dtype))
    assert caught.value.message.startswith(f"[{code}] ")
    assert text in caught.value.message
    assert isinstance(caught.value, RuntimeError)


def test_e4m3fn_stands_for_e4m3_where_a_flag_says_so() -> None:
    assert compile_for(relu("float8_e4m3fn"), TRN1, AS_E4M3)
    assert compile_for(relu("float8_e5m2"))


def test_a_graph_has_to_fit_into_the_memory_of_its_core() -> None:
    chain = tuple(Node("aten.relu.default", (tensor(n, 4),), (), (tensor(n + 1, 4),)) for n in range(4))
    slots = (Slot(7 << 29),) * 5  # together 17.5 GiB, but at most four at a time
    assert compile_for(Graph(slots, (0,), 0, chain, (4,)))
    with pytest.raises(CompileError, match=r"NCC_EOOM001.*memory limit: 68.0 GiB of inputs") as caught:
        compile_for(Graph((Slot(34 << 30), Slot(34 << 30)), (0,), 0, relu("float32").nodes, (1,)))
    assert "smaller batch" in caught.value.remedy
    larger = Graph((Slot(10 << 30), Slot(10 << 30)), (0,), 0, relu("float32").nodes, (1,))
    with pytest.raises(CompileError, match=r"a core of .* has 16.0 GiB"):
        compile_for(larger)
    assert compile_for(larger, TRN2)  # two physical cores of 12 GiB each


def test_a_graph_has_at_most_five_million_instructions() -> None:
    (node,) = product(1024).nodes
    assert instructions(node) == 8 * 8 * 2
    assert instructions(relu("float32").nodes[0]) == 1
    assert compile_for(product(16_384, 4))  # 2.1 million
    with pytest.raises(
        CompileError, match=r"NCC_EVRF007.*instructions generated exceeds the limit: about 5,242,880"
    ):
        compile_for(product(16_384, 10))


def test_a_graph_may_fill_its_core_to_the_last_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = TRN1.memory_bytes // TRN1.physical_cores
    nodes = relu("float32").nodes
    full = Graph((Slot(limit - 64), Slot(64)), (0,), 0, nodes, (1,))
    limits.check_memory(full, TRN1, 1)
    with pytest.raises(CompileError, match="NCC_EOOM001"):
        limits.check_memory(Graph((Slot(limit - 64), Slot(65)), (0,), 0, nodes, (1,)), TRN1, 1)
    parts = Graph((Slot(limit - 64), Slot(64), Slot(64)), (0,), 0, nodes, (1,))
    limits.check_memory(parts, TRN1, 1)  # the third is neither input, output nor used
    monkeypatch.setattr(limits, "MAX_INSTRUCTIONS", 128)
    limits.check_instructions(product(1024), 1 << 62)
    monkeypatch.setattr(limits, "MAX_INSTRUCTIONS", 127)
    with pytest.raises(CompileError, match="NCC_EVRF007"):
        limits.check_instructions(product(1024), 1 << 62)
