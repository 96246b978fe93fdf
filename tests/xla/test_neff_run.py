"""A NEFF file that is executed by itself."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest
import torch

from neurontools.compiler.compile import compile_graph
from neurontools.compiler.graph import Graph, Lifted, Node, Slot, View
from neurontools.errors import NeuronToolsError
from neurontools.machine.instances.catalogue import instance_type
from neurontools.xla.accelerator import DeviceError
from neurontools.xla.neff_executable import NeffRunError, execute_neff, npy_bytes, raw_bytes

if TYPE_CHECKING:
    from tests.xla.conftest import InMemoryAccelerator

A, B, C = (View(slot, "float32", (2, 2), (2, 1), 0) for slot in range(3))


def neff(*nodes: Node, lifted: int = 0) -> bytes:
    """Return a NEFF with two inputs and one result, each of four numbers."""
    graph = Graph(tuple(Slot(16) for _ in range(3)), (0, 1), lifted, nodes, (2,))
    return compile_graph(graph, instance_type("trn1.2xlarge").device, ("--target=trn1",), "test")


ADD = Node("aten.add.Tensor", (A, B), (), (C,))
RANDOM = Node("aten.rand_like.default", (A,), (), (C,))


def test_given_inputs_are_used_and_others_are_zeros(machine: InMemoryAccelerator) -> None:
    run = execute_neff(neff(ADD), {"slot1": struct.pack("<4f", 1, 2, 3, 4)}, executions=3)
    assert run.results["slot2"].tolist() == [1, 2, 3, 4]
    assert machine.executions == 3
    assert raw_bytes(run.results) == {"slot2": struct.pack("<4f", 1, 2, 3, 4)}
    assert npy_bytes(run.results)["slot2"].startswith(b"\x93NUMPY")


def test_scalar_inputs_are_1(machine: InMemoryAccelerator) -> None:
    node = Node("aten.add.Scalar", (A, Lifted(0)), (), (C,))
    assert execute_neff(neff(node, lifted=1), {}).results["slot2"].tolist() == [1] * 4


@pytest.mark.parametrize(
    ("inputs", "problem"),
    [({"x": b""}, "no input x"), ({"slot0": b"123"}, "takes 16 bytes, the file has 3")],
)
def test_inputs_that_do_not_fit_are_named(
    inputs: dict[str, bytes], problem: str, machine: InMemoryAccelerator
) -> None:
    with pytest.raises(NeffRunError, match=problem):
        execute_neff(neff(ADD), inputs)


def test_what_a_neff_may_not_call_is_refused(machine: InMemoryAccelerator) -> None:
    data = neff(Node("aten.from_file.default", ("/etc/passwd",), (), (C,)))
    with pytest.raises(DeviceError, match="may not call"):
        execute_neff(data, {})
    assert machine.executions == 0


def test_a_file_that_is_no_neff_is_refused(machine: InMemoryAccelerator) -> None:
    with pytest.raises(NeuronToolsError, match="not a NEFF"):
        execute_neff(b"x" * 4000, {})


def test_results_that_differ_between_executions_are_found(machine: InMemoryAccelerator) -> None:
    execute_neff(neff(ADD), {}, executions=3, check_determinism=True)
    with pytest.raises(NeffRunError, match="execution 2 gave other results"):
        execute_neff(neff(RANDOM), {}, executions=3, check_determinism=True)


def test_numpy_has_no_bfloat16() -> None:
    with pytest.raises(NeffRunError, match="no type for the bfloat16 of slot2"):
        npy_bytes({"slot2": torch.ones(2, dtype=torch.bfloat16)})


def test_a_kernel_that_refuses_values_fails_in_one_line(machine: InMemoryAccelerator) -> None:
    rows, place, picked = (
        View(0, "float32", (4,), (1,), 0),
        View(1, "int64", (1,), (1,), 0),
        View(2, "float32", (1,), (1,), 0),
    )
    node = Node("aten.index_select.default", (rows, 0, place), (), (picked,))
    graph = Graph((Slot(16), Slot(8), Slot(4)), (0, 1), 0, (node,), (2,))
    stored = compile_graph(graph, instance_type("trn1.2xlarge").device, ["--target=trn1"], "model")
    assert execute_neff(stored, {}).results["slot2"].tolist() == [0]
    with pytest.raises(NeffRunError, match=r"model\.neff fails: index out of range in self"):
        execute_neff(stored, {"slot1": (99).to_bytes(8, "little")}, name="model.neff")
