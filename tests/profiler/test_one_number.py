"""The same work has the same modelled time and operations in every tool, to the last digit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from neurontools.collectives.fabric import find_fabric
from neurontools.collectives.model import Workload, timed
from neurontools.collectives.operations import Operation
from neurontools.compiler.archive import unpack_files
from neurontools.compiler.compile import compile_graph
from neurontools.compiler.engines.cost import schedule_metrics
from neurontools.compiler.graph import Graph, Node
from neurontools.compiler.neff import NativePart, parse
from neurontools.compiler.neff_header import HEADER_BYTES
from neurontools.compiler.what_if import Change, what_if
from neurontools.customop.cost import analytic_ns
from neurontools.customop.package import Access
from neurontools.machine.instances.catalogue import instance_type
from neurontools.profiler.analysis.summary import summarise
from neurontools.profiler.trace.open import load
from tests.compiler.graphs import graph_of, tensor

if TYPE_CHECKING:
    from pathlib import Path

EXECUTIONS = 5
TRN1 = instance_type("trn1.2xlarge").device
LIBRARY = b"\x7fELF"

PROGRAM = """
import json, sys
from neurontools import machine
from neurontools.compiler.neff import parse
from neurontools.dashboard.process_rows import ProcessRow
from neurontools.monitor.processes import CoreFrame, ProcessChange
from neurontools.profiler.capture.observer import capture_from_environ
from neurontools.runtime.session import Runtime

runtime = Runtime.open()
runtime.observers.append(capture_from_environ(runtime))
data = open(sys.argv[1], "rb").read()
cost = parse(data).cost
model = runtime.load(
    0, name="work", uuid=bytes(16), neff=data, code_bytes=10, constant_bytes=0, scratch_bytes=0,
    modelled_ns=cost.total_ns, flops=cost.flops, gpsimd_ns=cost.gpsimd_ns,
)
for _ in range(int(sys.argv[2])):
    runtime.execute(model, lambda: None)
with machine.connect() as connected:
    snapshot = connected.snapshot()
(process,) = snapshot.processes
period_ns = 10**9
counters = CoreFrame(snapshot).counters(ProcessChange(None, process, period_ns))
row = ProcessRow(None, process, period_ns, 1.0, None)
print(json.dumps({
    "core_flops": sum(use.flops for use in process.cores),
    "core_gpsimd_ns": sum(use.gpsimd_ns for use in process.cores),
    "monitor_flops": sum(activity.flops for _, activity in counters.cores),
    "monitor_gpsimd_s": sum(activity.gpsimd_s for _, activity in counters.cores),
    "top_gpsimd_ns": row.gpsimd_ns,
}))
runtime.close()
"""


@pytest.fixture(scope="module")
def graph() -> Graph:
    """A product, a custom operator and a sum over two cores."""
    import hashlib

    x, w, y, z = tensor(0, 256, 512), tensor(1, 512, 512), tensor(2, 256, 512), tensor(3, 256, 512)
    made = graph_of(
        Node("aten.mm.default", (x, w), (), (y,)),
        Node("my_ops.relu_forward.default", (y,), (), (z,)),
        Node("neurontools.all_reduce_.default", (z, "sum", "{{0,1}}"), (), (z,)),
        inputs=(0, 1),
    )
    return replace(made, libraries=(hashlib.sha256(LIBRARY).hexdigest(),))


@pytest.fixture(scope="module")
def call_ns() -> int:
    """What neuron-customop run and bench show for the custom operator."""
    count = 256 * 512
    return analytic_ns(Access.ELEMENT, [count, count], [4], 1)


@pytest.fixture(scope="module")
def neff(graph: Graph, call_ns: int) -> bytes:
    part = NativePart("librelu.so", graph.libraries[0], LIBRARY, ((1, call_ns),))
    return compile_graph(graph, TRN1, ("--target=trn1",), "work", [part])


def test_every_tool_shows_the_numbers_of_the_neff(home: Path, neff: bytes, call_ns: int) -> None:
    (home / "work.neff").write_bytes(neff)
    environ = {
        **os.environ,
        "NEURONTOOLS_AUTOSTART": "1",
        "NEURON_RT_INSPECT_ENABLE": "1",
        "NEURON_RT_INSPECT_OUTPUT_DIR": str(home / "out"),
        "NEURON_RT_INSPECT_DEVICE_PROFILE": "1",
    }
    command = [sys.executable, "-c", PROGRAM, str(home / "work.neff"), str(EXECUTIONS)]
    done = subprocess.run(command, env=environ, timeout=600, check=True, stdout=subprocess.PIPE)
    shown = json.loads(done.stdout)
    cost = parse(neff).cost
    once = schedule_metrics(cost)
    assert cost.gpsimd_ns == call_ns
    assert shown["core_gpsimd_ns"] == shown["top_gpsimd_ns"] == EXECUTIONS * call_ns
    assert shown["monitor_gpsimd_s"] == EXECUTIONS * call_ns / 1e9
    assert shown["core_flops"] == shown["monitor_flops"] == EXECUTIONS * cost.flops

    summary = summarise(load(str(home / "out")))
    (model,) = summary.models
    assert model.modelled_ns == cost.total_ns == once.total_ns
    metrics = {metric.name: metric.value for metric in summary.cores[0].metrics}
    assert {name: metrics[name] for name in ("total_time", "gpsimd_engine_active_time", "cc_op_time")} == {
        "total_time": EXECUTIONS * cost.total_ns / 1e9,
        "gpsimd_engine_active_time": EXECUTIONS * call_ns / 1e9,
        "cc_op_time": EXECUTIONS * nccom_ns(256 * 512 * 4) / 1e9,
    }
    assert metrics["model_flops"] == EXECUTIONS * once.model_flops == EXECUTIONS * 2 * 256 * 512 * 512
    for name in ("hbm_read_bytes", "hbm_write_bytes", "dma_transfer_count", "spill_save_bytes"):
        assert metrics[name] == EXECUTIONS * getattr(once, name)
    for engine, busy_ns in once.engine_active_ns.items():
        other = {"DMA": "dma_active_time", "CC-cores": "cc_op_active_time"}
        name = other.get(engine, f"{engine.lower()}_engine_active_time")
        assert metrics[name] == EXECUTIONS * busy_ns / 1e9
    assert metrics["total_active_time"] == pytest.approx(EXECUTIONS * once.total_active_ns / 1e9, abs=1e-8)
    assert metrics["mfu_estimated_percent"] == pytest.approx(once.mfu_percent(TRN1, 1), rel=1e-12)
    assert metrics["mbu_estimated_percent"] == pytest.approx(once.mbu_percent(TRN1, 1), rel=1e-12)
    assert metrics["hfu_estimated_percent"] == pytest.approx(once.hfu_percent(), rel=1e-6)


def nccom_ns(nbytes: int) -> int:
    """Return what nccom-test shows for a sum over the two cores of a trn1.2xlarge."""
    work = Workload(Operation.ALL_REDUCE, ((0, 1),), find_fabric("trn1.2xlarge", 1), nodes=1)
    return round(timed(work, nbytes).time_s * 1e9)


def test_the_neff_and_what_if_show_the_same(neff: bytes) -> None:
    stored = json.loads(unpack_files(neff[HEADER_BYTES:])["metrics.json"])
    parsed = parse(neff)
    (forecast,) = what_if(parsed, Change())
    assert stored["total_ns"] == parsed.cost.total_ns == forecast.before_ns == forecast.after_ns
    assert stored["engine_active_ns"]["GpSimd"] == parsed.cost.gpsimd_ns
    assert forecast.flops == parsed.cost.flops


def test_metrics_of_the_schedule_are_not_constants() -> None:
    large = graph_of(
        Node("aten.mm.default", (tensor(0, 8192, 4096), tensor(1, 4096, 4096)), (), (tensor(2, 8192, 4096),)),
        inputs=(0, 1),
    )
    found = [
        schedule_metrics(parse(compile_graph(one, TRN1, ("--target=trn1",), "x")).cost)
        for one in (
            large,
            graph_of(Node("aten.exp.default", (tensor(0, 64),), (), (tensor(1, 64),)), inputs=(0,)),
        )
    ]
    for metrics in found:
        assert 0 < metrics.total_active_ns <= metrics.total_ns
        assert metrics.mfu_percent(TRN1, 1) <= metrics.hfu_percent() <= 100
        assert 0 < metrics.mbu_percent(TRN1, 1) <= 100
    product, small = found
    assert product.total_active_ns / product.total_ns > 0.9 > small.total_active_ns / small.total_ns
    assert product.mfu_percent(TRN1, 1) > 15 > small.mfu_percent(TRN1, 1) == 0
