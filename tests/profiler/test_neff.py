"""Captures of NEFFs that the compiler made: the cost model's schedule is what the profile shows."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from neurontools.compiler.compile import compile_graph
from neurontools.compiler.graph import Graph, Node, Slot
from neurontools.compiler.neff import parse
from neurontools.machine.instances.catalogue import instance_type
from neurontools.profiler.analysis.summary import summarise
from neurontools.profiler.capture.format import Track
from neurontools.profiler.capture.observer import describe_run
from neurontools.profiler.capture.settings import CaptureOptions, DeviceProfile
from neurontools.profiler.trace.open import load
from tests.compiler.graphs import tensor

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Maker


@pytest.fixture
def neff() -> bytes:
    x, w, y = tensor(0, 512, 512), tensor(1, 512, 512), tensor(2, 512, 512)
    graph = Graph(
        slots=(Slot(1 << 20), Slot(1 << 20), Slot(1 << 20)),
        inputs=(0, 1),
        lifted=0,
        nodes=(
            Node("aten.mm.default", (x, w), (), (y,), "train.py:3"),
            Node("aten.relu_.default", (y,), (), (y,), "train.py:4"),
            Node("aten.mm.default", (y, w), (), (x,), "train.py:5"),
        ),
        outputs=(0, 2),
    )
    return compile_graph(graph, instance_type("trn1.2xlarge").device, (), "two_products")


class Simulated:
    """As much of a runtime as a capture asks for."""

    def __init__(self, name: str) -> None:
        self.instance = instance_type(name)
        self.lnc = self.instance.device.lnc_default
        self.cores = (0, 1)


def test_the_profile_shows_the_schedule_of_the_cost_model(home: Path, maker: Maker, neff: bytes) -> None:
    cost = parse(neff).cost
    options = CaptureOptions(device=DeviceProfile.SESSION)
    capture = maker.capture(
        home / "p",
        meta=replace(describe_run(Simulated("trn1.2xlarge"), options), started_ns=1),  # type: ignore[arg-type]
    )
    model = maker.model(neff=neff, name="two_products")
    capture.on_load(model, 1_000, 2_000)
    for execution in (1, 2, 3):
        capture.on_execute(model, execution, 10**9 * execution, 10**9 * execution + 5, 0)
    capture.on_close()

    trace = load(str(home / "p"))
    (tensor,) = trace.rows_of(Track.TENSOR)
    offsets = [op.start_ns for op in cost.ops if op.engine.value == "Tensor"]
    model_row = trace.rows_of(Track.MODEL)[0]
    begun = model_row.events.block(0, 3).start.tolist()
    assert tensor.events.block(0, tensor.last - tensor.first).start.tolist() == [
        start + offset for start in begun for offset in offsets
    ]
    metrics = {metric.name: metric.value for metric in summarise(trace).cores[0].metrics}
    assert metrics["total_time"] == pytest.approx(3 * cost.total_ns / 1e9)
    assert metrics["model_flops"] == 3 * cost.matmul_flops == 3 * 2 * 2 * 512**3
    assert metrics["tensor_engine_instruction_count"] == 3 * sum(
        op.count for op in cost.ops if op.engine.value == "Tensor"
    )
    assert 0 < metrics["mfu_estimated_percent"] <= 25.1  # fp32 runs at a quarter of the bf16 peak
    assert {action.source for action in trace.actions if action.name == "aten.mm.default"} == {
        "train.py:3",
        "train.py:5",
    }
    assert next((home / "p").glob("*/neff_*.neff")).read_bytes() == neff


@pytest.mark.parametrize("name", ["inf1.xlarge", "inf2.xlarge", "trn1.32xlarge", "trn2.48xlarge"])
def test_peaks_are_those_of_a_logical_core(name: str) -> None:
    machine = describe_run(Simulated(name), CaptureOptions())  # type: ignore[arg-type]
    device = instance_type(name).device
    assert machine.instance_id.startswith("i-0")
    assert machine.peaks.tensor_flops_s == device.core.tensor_flops_s("bfloat16") * machine.lnc
    assert machine.peaks.hbm_bytes_s * device.physical_cores == device.memory_bandwidth_bytes_s * machine.lnc


def test_a_neff_that_is_damaged_still_gives_wall_times(home: Path, maker: Maker, neff: bytes) -> None:
    capture = maker.capture(home / "p")
    model = maker.model(neff=neff[: len(neff) // 2])
    capture.on_load(model, 1_000, 2_000)
    capture.on_execute(model, 1, 3_000, 4_000, 0)
    capture.on_close()
    trace = load(str(home / "p"))
    assert trace.problems[0].startswith("no device records of NEFF ")
    assert trace.event_count == 3
