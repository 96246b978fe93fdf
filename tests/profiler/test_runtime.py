"""From a process on a simulated machine to its profile, everything real."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from neurontools.profiler.analysis.summary import summarise
from neurontools.profiler.capture.format import Track
from neurontools.profiler.trace.open import load, open_trace

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Maker

    from neurontools.profiler.trace.trace import TraceRow

    Tool = Callable[..., subprocess.CompletedProcess[str]]

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
    done = subprocess.run([sys.executable, "-c", PROGRAM, ending], env=environ, timeout=600, check=False)
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


@pytest.mark.torch
def test_a_training_run_tells_its_chosen_steps_and_a_block_profiles_itself(
    home: Path, tool: Tool, torch_python: str
) -> None:
    whole, block = str(home / "whole"), str(home / "block")
    script = str(Path(__file__).parent / "training_script.py")
    chrome, of_host = home / "chrome.json", home / "host.json.gz"
    options = ("--instance", "trn1.2xlarge", "--profile", whole, "--steps", "2-3")
    done = tool("neuron-run", *options, "--", torch_python, script, block, str(chrome), str(of_host))
    assert done.returncode == 0, done.stderr
    kinds = host_events(whole)
    assert [number for kind, _, number in kinds if kind == "STEP"] == [2, 3]
    assert [name for kind, name, _ in kinds if kind == "CUT"] == ["mark_step"] * 2
    assert [name for kind, name, _ in kinds if kind == "MARK"] == ["epoch 2"]
    assert [name for kind, name, _ in kinds if kind == "REGION"] == ["forward"] * 2
    assert [kind for kind, *_ in kinds].count("UPLOAD") == 2
    assert [number for kind, _, number in host_events(block) if kind == "STEP"] == [1, 2]
    trace = load(whole)
    assert summarise(trace).models[0].executions == 2
    memory = {trace.actions[action].name for row in trace.rows_of(Track.MEMORY) for action in actions(row)}
    assert "aten.mm.default in MLP.layers.2 (backward)" in memory
    assert "live: steps marked by the program, aten." in done.stdout
    check_torch_profile(done.stdout, json.loads(chrome.read_text()))
    check_opens_with_its_totals(chrome, {Track.HOST, Track.DEVICE})
    check_opens_with_its_totals(of_host, {Track.HOST})


def check_opens_with_its_totals(path: Path, tracks: set[Track]) -> None:
    """Check that a trace of torch.profiler has the times here that it has in the file."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path) as file:
        events = json.load(file)["traceEvents"]
    # The event with which torch.profiler says how long it ran is not one of the program.
    in_file = [event for event in events if event["ph"] == "X" and event["pid"] != "Spans"]
    expected: Counter[str] = Counter()
    for event in in_file:
        expected[event["name"]] += round(event.get("dur", 0) * 1000)
    trace = open_trace(str(path))
    found: Counter[str] = Counter()
    for row in trace.rows:
        block = row.events.block(0, row.events.count)
        for action, duration in zip(block.action.tolist(), block.duration.tolist(), strict=True):
            found[trace.actions[action].name] += duration
    is_modelled = Track.DEVICE in tracks
    assert trace.measured_by == "torch.profiler" + " (device times modelled)" * is_modelled
    assert trace.problems == ()
    assert trace.event_count == len(in_file)
    assert {row.track for row in trace.rows} == tracks
    assert "aten::linear" in found
    assert found == expected


def check_torch_profile(table: str, trace: dict[str, Any]) -> None:
    """Check that torch.profiler has the modelled operators in its table and in its trace, within the measured time."""
    assert "aten.addmm.default [modelled]" in table
    assert "Self XLA" in table
    events = trace["traceEvents"]
    modelled = [event for event in events if event.get("args", {}).get("modelled")]
    assert {"MLP.layers.0", "MLP.layers.2 (backward)"} <= {event["args"].get("layer") for event in modelled}
    measured = [event for event in events if event.get("name") == "aten::linear"]
    first, last = min(event["ts"] for event in measured), max(event["ts"] for event in measured)
    assert all(first < event["ts"] < last + 60e6 for event in modelled)
    assert all(event["tid"] > 0 for event in modelled)


def host_events(path: str) -> list[tuple[str, str, int]]:
    """Return kind, name and number of the events of the host, in order."""
    trace = load(path)
    (row,) = trace.rows_of(Track.HOST)
    block = row.events.block(0, row.events.count)
    about = [trace.actions[action] for action in block.action]
    return [
        (each.opcode, each.name, int(number)) for each, number in zip(about, block.execution, strict=True)
    ]


def actions(row: TraceRow) -> list[int]:
    return [int(action) for action in row.events.block(0, row.events.count).action]
