"""The model of device time: it reproduces the documented throughputs, never grows smaller, and is the graphs' too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from neurontools.compiler.engines.estimate import estimate
from neurontools.compiler.graph import Graph, Node, Slot, View
from neurontools.customop import probe
from neurontools.customop.calls import CoreWork
from neurontools.customop.cost import TensorOperand, analytic_ns, core_ns, work_ns
from neurontools.customop.load import load_library
from neurontools.customop.marshalling import execute
from neurontools.customop.operation import CustomOperator
from neurontools.customop.package import Access
from neurontools.customop.probe import operator_ns
from neurontools.gpsimd import rates
from neurontools.machine.instances.catalogue import instance_type
from neurontools.xla.custom_op_graph import native_parts

ROOT = Path(__file__).parents[2]
CALIBRATION = yaml.safe_load((ROOT / "fixtures" / "gpsimd" / "calibration.yaml").read_text())
Library = Callable[[str], Path]
Find = Callable[[str], CustomOperator]

works = st.builds(CoreWork, *[st.integers(0, 1 << 40)] * 6)


def _throughput(nanoseconds: float) -> float:
    return 1e9 / (nanoseconds + CALIBRATION["rest_ms"] * 1e6)


@pytest.mark.parametrize("style", ["element", "tcm", "multicore"])
def test_counted_work_reproduces_the_documented_throughput(operation: Find, style: str) -> None:
    home = "multicore_calibration" if style == "multicore" else "calibration"
    taken = 0
    for shape in CALIBRATION["shapes"]:
        taken += execute(operation(f"{home}::{style}"), (torch.randn(shape),))[1].modelled_ns
    documented = CALIBRATION["iterations_per_s"][style]
    assert _throughput(taken) == pytest.approx(documented, rel=CALIBRATION["tolerance"])


@pytest.mark.parametrize(
    ("sample", "style"), [("relu_tcm", "tcm"), ("relu_multicore", "multicore")], ids=lambda value: value
)
def test_our_samples_reach_it_too(operation: Find, sample: str, style: str) -> None:
    runs = [
        execute(operation(f"{sample}::forward"), (torch.randn(shape),)) for shape in CALIBRATION["shapes"]
    ]
    documented = CALIBRATION["iterations_per_s"][style]
    assert _throughput(sum(run[1].modelled_ns for run in runs)) == pytest.approx(documented, rel=0.05)


@pytest.mark.parametrize(
    ("access", "style", "cores"),
    [(Access.ELEMENT, "element", 1), (Access.TCM, "tcm", 1), (Access.TCM, "multicore", 8)],
)
def test_the_source_alone_comes_as_near(access: Access, style: str, cores: int) -> None:
    taken = 0
    for rows, columns in CALIBRATION["shapes"]:
        taken += analytic_ns(access, [rows * columns] * 2, [4, 4], cores)
    documented = CALIBRATION["iterations_per_s"][style]
    assert _throughput(taken) == pytest.approx(documented, rel=CALIBRATION["tolerance"])


@given(works, works)
@settings(max_examples=60)
def test_more_work_never_takes_less_time(work: CoreWork, more: CoreWork) -> None:
    added = CoreWork(*(getattr(work, name) + getattr(more, name) for name in CoreWork.__dataclass_fields__))
    assert core_ns(added) == pytest.approx(core_ns(work) + core_ns(more))
    assert work_ns([added]) >= work_ns([work]) >= rates().launch_ns
    assert work_ns([work, more]) == max(work_ns([work]), work_ns([more]))


@given(st.integers(0, 1 << 40), st.integers(0, 1 << 20), st.sampled_from(list(Access)), st.integers(1, 8))
@settings(max_examples=60)
def test_more_bytes_never_take_less_time(count: int, more: int, access: Access, cores: int) -> None:
    fewer = analytic_ns(access, [count, count], [4, 4], cores)
    assert analytic_ns(access, [count + more, count], [4, 4], cores) >= fewer
    assert analytic_ns(access, [count, count], [8, 4], cores) >= fewer
    assert analytic_ns(access, [count, count], [4, 4], max(1, cores - 1)) >= fewer
    assert rates().transfer_ns(count + more) >= rates().transfer_ns(count)


def test_a_piece_of_the_documented_size_takes_the_documented_time() -> None:
    assert rates().transfer_ns(4096) == pytest.approx(0.6 * 4096)
    assert rates().transfer_ns(4096, 64) > 10 * rates().transfer_ns(4096)
    assert work_ns([]) == 0


def _graph(op: str, *shape: int) -> Graph:
    count = torch.Size(shape).numel()
    strides = torch.empty(shape, device="meta").stride()
    x, y = (View(slot, "float32", shape, strides, 0) for slot in range(2))
    slots = (Slot(4 * count), Slot(4 * count))
    return Graph(slots, (0,), 0, (Node(op, (x,), (), (y,)),), (1,), ("digest",))


@pytest.mark.parametrize("style", ["relu_element", "relu_tcm", "relu_multicore"])
def test_a_graph_gets_the_time_of_the_call_itself(library: Library, operation: Find, style: str) -> None:
    loaded = load_library(library(style))
    graph = replace(_graph(f"{style}.forward.default", 37, 53), libraries=(loaded.code,))
    (part,) = native_parts(graph)
    call = execute(operation(f"{style}::forward"), (torch.randn(37, 53),))[1]
    estimated = estimate(graph, instance_type("trn1.2xlarge").device, custom=dict(part.call_ns))
    assert estimated.gpsimd_ns == call.modelled_ns > 0
    assert [op.duration_ns for op in estimated.ops] == [call.modelled_ns]


def test_what_cannot_be_tried_is_judged_by_its_source(library: Library) -> None:
    load_library(library("styles"))
    numel = 2 * 3
    assert operator_ns("styles::destination", (TensorOperand((2, 3), "float32"),)) == analytic_ns(
        Access.ELEMENT, [numel, numel], [4], 1
    )  # it takes one dimension
    assert operator_ns("styles::elements", (TensorOperand((8,), "int64"),)) == analytic_ns(
        Access.ELEMENT, [8, 8], [8], 1
    )
    assert operator_ns("nobody::knows", ()) is None


def test_a_trial_prints_nothing_and_ends(
    library: Library, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEURON_RT_LOG_LEVEL", "INFO")
    monkeypatch.setenv("NEURON_RT_GPSIMD_STDOUT_QUEUE_SIZE_BYTES", "4096")
    monkeypatch.setenv("NEURON_RT_EXEC_TIMEOUT", "0.3")
    load_library(library("faults"))
    tensor = TensorOperand((4,), "float32")
    nap = operator_ns("faults::nap", (tensor, 60.0))
    assert nap == analytic_ns(Access.ELEMENT, [4, 4], [4], 1)  # it sleeps for a minute
    crash = operator_ns("faults::fault", (tensor, tensor, 60))
    assert crash == analytic_ns(Access.ELEMENT, [4, 4, 4], [4], 1)
    assert capfd.readouterr() == ("", "")


def test_numbers_that_a_graph_does_not_know_are_made_up(library: Library) -> None:
    load_library(library("styles"))
    unknown = (TensorOperand((8,), "float32"), None, None, None)
    known = (TensorOperand((8,), "float32"), 0.5, 1, 0.5)
    assert operator_ns("styles::scaled", unknown) == operator_ns("styles::scaled", known)


def test_only_tensors_that_the_device_has_are_tried() -> None:
    assert probe._on_device(TensorOperand((2,), "float32"))
    assert not probe._on_device(TensorOperand((2,), "float64"))
    assert not probe._on_device(TensorOperand((2,), "unheard_of"))
    assert probe._on_device(0.5)
    assert probe._on_device(None)
