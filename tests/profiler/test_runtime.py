"""From a process on a simulated machine to its profile, everything real."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from neurontools.profiler.analysis.summary import summarise
from neurontools.profiler.capture.format import Track
from neurontools.profiler.trace.load import load

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Maker

PROGRAM = """
import os, signal, sys, time
from neurontools.compiler.compile import compile_graph
from neurontools.compiler.graph import Graph, Node, Slot, View
from neurontools.compiler.neff import parse
from neurontools.profiler.capture.observer import capture_from_environ
from neurontools.runtime.session import Runtime

runtime = Runtime.open()
runtime.observers.append(capture_from_environ(runtime))
x, y = (View(slot, "float32", (256, 256), (256, 1), 0) for slot in (0, 1))
graph = Graph((Slot(1 << 18), Slot(1 << 18)), (0,), 0, (Node("aten.mm.default", (x, x), (), (y,), "t.py:1"),), (1,))
neff = compile_graph(graph, runtime.instance.device, (), "square")
cost = parse(neff).cost
model = runtime.load(
    1, name="square", uuid=bytes(16), neff=neff, code_bytes=10, constant_bytes=0, scratch_bytes=0,
    modelled_ns=cost.total_ns, flops=cost.flops,
)
for _ in range(7):
    runtime.execute(model, lambda: time.sleep(0.001))
if sys.argv[1] == "killed":
    time.sleep(0.25)
    runtime.execute(model, lambda: None)
    os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[1] == "closed":
    runtime.close()
"""


@pytest.mark.parametrize("ending", ["closed", "exit", "killed"])
def test_a_process_on_the_machine_leaves_its_profile(home: Path, ending: str) -> None:
    environ = {
        **os.environ,
        "NEURONTOOLS_AUTOSTART": "1",
        "NEURON_RT_INSPECT_ENABLE": "1",
        "NEURON_RT_INSPECT_OUTPUT_DIR": str(home / "out"),
        "NEURON_RT_INSPECT_DEVICE_PROFILE": "1",
    }
    done = subprocess.run([sys.executable, "-c", PROGRAM, ending], env=environ, timeout=60, check=False)
    assert done.returncode == (-signal.SIGKILL if ending == "killed" else 0)

    trace = load(str(home / "out"))
    (meta,) = trace.processes
    executions = 8 if ending == "killed" else 7
    assert meta.instance_type == "trn1.2xlarge"
    assert meta.cores == (0, 1)
    assert bool(meta.ended_ns) == (ending != "killed")
    (core,) = summarise(trace).cores
    assert (core.nc, core.core) == (1, 1)
    (model,) = summarise(trace).models
    assert (model.name, model.executions) == ("square", executions)
    (row,) = trace.rows_of(Track.TENSOR)
    assert row.last - row.first == executions
    if ending != "killed":
        assert model.wall_min_ns >= 1_000_000


def test_threads_on_different_cores_lose_no_event(home: Path, maker: Maker) -> None:
    capture = maker.capture(home / "p")
    models = [maker.model(nc, model_id=10001 + nc) for nc in range(4)]
    for model in models:
        capture.on_load(model, 1, 2)

    def execute(number: int) -> None:
        for execution in range(1, 301):
            start = 100_000 * execution
            capture.on_execute(models[number], execution, start, start + 50_000, 0)

    threads = [threading.Thread(target=execute, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    capture.on_close()
    trace = load(str(home / "p"))
    for row in trace.rows_of(Track.MODEL, Track.HARDWARE):
        assert row.events.block(0, row.events.count).execution.tolist() == list(range(1, 301))
    assert len(trace.rows_of(Track.MODEL)) == 4
