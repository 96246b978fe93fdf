"""Host and memory records of a capture: what is written, which steps, and what happens when it cannot be written."""

from __future__ import annotations

import io
import os
import resource
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from neurontools.profiler.analysis.dependencies import event_details
from neurontools.profiler.capture import observer as host_load
from neurontools.profiler.capture.format import NO_CORE, Track
from neurontools.profiler.capture.settings import CaptureOptions, DeviceProfile, options_from_environ
from neurontools.profiler.exchange.export_timeline import counter_tracks, values
from neurontools.profiler.exchange.stacks import write_folded
from neurontools.profiler.trace.open import load
from neurontools.profiler.trace.reader import open_captures
from neurontools.profiler.trace.timeline import TraceTimeline
from neurontools.runtime.host_activity import HOST_LOAD, HostEvent

if TYPE_CHECKING:
    from conftest import Maker

    from neurontools.profiler.capture.observer import Capture

    Told = tuple[str, str, str, int, int]

SECOND = 1_000_000_000


def tell(capture: Capture, kind: HostEvent, start_ns: int, end_ns: int, **more: Any) -> None:
    """Report an event as the hooks of the device do."""
    names = ("nc", "name", "source", "nbytes", "number")
    defaults = {"nc": 0, "name": "", "source": "", "nbytes": 0, "number": 0}
    nc, name, source, nbytes, number = ((defaults | more)[each] for each in names)
    capture.host.on_host_event((kind, start_ns, end_ns, nc, name, source, nbytes, number))


def run_step(capture: Capture, start_ns: int, buffer: int) -> None:
    """Report a step of one second that keeps one buffer of 64 bytes, and its execution."""
    end_ns = start_ns + SECOND
    tell(capture, HostEvent.ALLOCATION, start_ns + 1, start_ns + 1, nbytes=64, number=buffer, source="t.py:2")
    capture.on_execute(capture_model(capture), buffer, start_ns + 10, start_ns + 90, 0)
    tell(capture, HostEvent.CUT, start_ns + 5, end_ns - 5, name="mark_step", source="t.py:9", number=3)
    tell(capture, HostEvent.STEP, end_ns - 9, end_ns, name="mark_step", source="t.py:9")


_models: dict[str, Any] = {}


def capture_model(capture: Capture) -> Any:
    return _models[capture.directory]


def captured(home: Path, maker: Maker, steps: tuple[int, int] | None = None, count: int = 4) -> Capture:
    """Return a capture of a run of some steps; it has not ended."""
    options = CaptureOptions(device=DeviceProfile.SESSION, steps=steps)
    capture = maker.capture(home / "p", options)
    model = _models[capture.directory] = maker.model()
    start_ns = open_captures(str(home / "p"))[0].meta.started_ns
    capture.on_load(model, start_ns + 1, start_ns + 2)
    for step in range(count):
        run_step(capture, start_ns + step * SECOND, step + 1)
    return capture


def told(home: Path, track: Track) -> list[Told]:
    """Return kind, name, source, value and number of the events of a row."""
    trace = load(str(home / "p"))
    found = []
    for row in trace.rows_of(track):
        block = row.events.block(0, row.events.count)
        for action, value, number in zip(block.action, block.value, block.execution, strict=True):
            about = trace.actions[action]
            found.append((about.opcode, about.name, about.source, int(value), int(number)))
    return found


def test_a_step_lasts_from_the_end_of_the_one_before(home: Path, maker: Maker) -> None:
    captured(home, maker, count=3).on_close()
    trace = load(str(home / "p"))
    (host,) = trace.rows_of(Track.HOST)
    assert host.nc == NO_CORE
    block = host.events.block(0, host.events.count)
    steps = block.take(np.array([trace.actions[action].opcode == "STEP" for action in block.action]))
    assert steps.execution.tolist() == [1, 2, 3]
    assert steps.duration.tolist() == [SECOND] * 3
    assert (steps.start[1:] - steps.start[:-1]).tolist() == [SECOND] * 2
    assert ("CUT", "mark_step", "t.py:9", 0, 3) in told(home, Track.HOST)


def test_memory_is_recorded_by_buffer_and_line(home: Path, maker: Maker) -> None:
    capture = captured(home, maker, count=2)
    start_ns = open_captures(str(home / "p"))[0].meta.started_ns
    tell(capture, HostEvent.RELEASE, start_ns + 9, start_ns + 9, nbytes=64, number=1)
    capture.on_close()
    assert sorted(told(home, Track.MEMORY)) == [
        ("ALLOCATION", "allocation", "t.py:2", 64, 1),
        ("ALLOCATION", "allocation", "t.py:2", 64, 2),
        ("RELEASE", "release", "", 64, 1),
    ]


def test_only_the_chosen_steps_are_recorded_and_the_buffers_that_they_find(home: Path, maker: Maker) -> None:
    capture = captured(home, maker, steps=(2, 3), count=4)
    assert load(str(home / "p")).processes[0].ended_ns  # at the end of step 3
    capture.on_close()
    assert [each[-1] for each in told(home, Track.HOST) if each[0] == "STEP"] == [2, 3]
    assert len([each for each in told(home, Track.HOST) if each[0] == "CUT"]) == 2
    assert [each[-1] for each in told(home, Track.MEMORY)] == [1, 2, 3]
    (runs,) = load(str(home / "p")).runs
    assert runs.number.tolist() == [2, 3]


def test_a_run_that_never_comes_to_the_chosen_steps_has_no_events(home: Path, maker: Maker) -> None:
    captured(home, maker, steps=(9, 10)).on_close()
    assert load(str(home / "p")).event_count == 0


def test_a_buffer_may_be_released_while_this_thread_writes(home: Path, maker: Maker) -> None:
    capture = captured(home, maker, count=1)
    start_ns = open_captures(str(home / "p"))[0].meta.started_ns + SECOND
    with capture._lock:  # as in a finalizer that runs in the middle of a write
        tell(capture, HostEvent.RELEASE, start_ns, start_ns, nbytes=64, number=1)
        capture.on_unload(capture_model(capture))
    capture.on_close()
    assert ("RELEASE", "release", "", 64, 1) in told(home, Track.MEMORY)


def test_a_forked_child_writes_nothing(home: Path, maker: Maker) -> None:
    capture = captured(home, maker, count=1)
    child = os.fork()
    if child == 0:
        for _ in range(1000):
            tell(capture, HostEvent.MARK, 1, 1, name="child")
        capture.on_close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    capture.on_close()
    assert "child" not in {name for _, name, *_ in told(home, Track.HOST)}


def test_a_full_disk_ends_the_host_records_with_one_warning(home: Path, maker: Maker) -> None:
    said: list[str] = []
    capture = maker.capture(home / "p", on_warning=said.append)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        for number in range(5000):
            tell(capture, HostEvent.MARK, SECOND + number, SECOND + number, name=f"mark {number}")
        capture.on_close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    (warning,) = said
    assert "File too large" in warning


@pytest.mark.parametrize("variables", [{"SYSTEM_PROFILE": "0"}, {"EVENT_FILTER_TYPE": "hardware"}])
def test_without_software_events_there_are_no_host_events(
    variables: dict[str, str], home: Path, maker: Maker
) -> None:
    environ = {f"NEURON_RT_INSPECT_{name}": value for name, value in variables.items()}
    capture = maker.capture(home / "p", options_from_environ(environ))
    tell(capture, HostEvent.MARK, SECOND, SECOND, name="epoch")
    capture.on_close()
    assert load(str(home / "p")).rows_of(Track.HOST) == ()


def test_memory_of_other_cores_is_left_out(home: Path, maker: Maker) -> None:
    capture = maker.capture(home / "p", CaptureOptions(ncs=frozenset({1})))
    start_ns = open_captures(str(home / "p"))[0].meta.started_ns
    for nc in (0, 1):
        tell(capture, HostEvent.ALLOCATION, start_ns, start_ns, nc=nc, nbytes=8 + nc, number=nc + 1)
    capture.on_close()
    assert [each[-2:] for each in told(home, Track.MEMORY)] == [(9, 2)]


def test_memory_from_before_the_capture_is_one_buffer(home: Path, maker: Maker) -> None:
    capture = maker.capture(home / "p")
    capture.host.hold([4096, 0])
    capture.on_close()
    assert told(home, Track.MEMORY) == [("ALLOCATION", "before the profile", "", 4096, 0)]


def test_call_stacks_are_stored_once_and_become_a_flame_graph_of_measured_time(
    home: Path, maker: Maker
) -> None:
    capture = maker.capture(home / "p")
    start_ns = open_captures(str(home / "p"))[0].meta.started_ns
    stack = "t.py:2\nMLP.forward t.py:2\nmain my dir/t.py:9"
    for number in range(3):
        at_ns = start_ns + number * SECOND
        tell(capture, HostEvent.UPLOAD, at_ns, at_ns + 500, source=stack, nbytes=8)
    tell(capture, HostEvent.MARK, start_ns, start_ns, name="epoch")
    tell(capture, HostEvent.STEP, start_ns, start_ns + 3 * SECOND, name="mark_step", source=stack)
    capture.on_close()
    strings = (Path(capture.directory) / "strings.jsonl").read_text().splitlines()
    assert len([line for line in strings if "forward" in line]) == 1
    trace = load(str(home / "p"))
    (upload,) = [action for action in trace.actions if action.opcode == "UPLOAD"]
    assert (upload.source, upload.stack) == ("t.py:2", ("MLP.forward t.py:2", "main my dir/t.py:9"))
    written = io.StringIO()
    write_folded(trace, written)
    assert written.getvalue() == (f"pid {os.getpid()} Host (measured);main;MLP.forward;upload 1500\n")
    (row,) = trace.rows_of(Track.HOST)
    details = event_details(trace, row.first)
    assert [text for name, text in details if name == "called in"] == list(upload.stack)


def test_the_load_of_the_computer_is_sampled_until_the_end(
    home: Path, maker: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = iter(range(10_000))

    def ticks() -> list[int]:
        count = next(seen)  # 3 of 4 busy, one of them for another guest
        return [count, 0, count, count, 0, 0, 0, count]

    monkeypatch.setattr(host_load, "read_cpu_ticks", ticks)
    options = CaptureOptions(device=DeviceProfile.SESSION, host_load=HOST_LOAD)
    meta = replace(maker.meta(options), started_ns=time.monotonic_ns())
    capture = maker.capture(home / "p", options, meta=meta)
    capture.on_close()
    capture.on_close()
    trace = load(str(home / "p"))
    cpu, memory = trace.rows_of(Track.CPU, Track.RAM)
    assert (cpu.name, memory.name, cpu.nc) == ("Host CPU", "Host memory", NO_CORE)
    assert set(cpu.events.block(0, cpu.events.count).value.tolist()) == {75}
    assert ("CPU", "75 % of all CPUs") in event_details(trace, cpu.first)
    edges = np.array([0, trace.end_ns], dtype=np.int64)
    (height,) = TraceTimeline(trace).rows[trace.place_of(cpu.first)].cells(edges).heights().tolist()
    assert height == 6
    counters = {track.name: next(values(trace, track))[1].tolist() for track in counter_tracks(trace)}
    assert set(counters["host CPU %"]) == {75}
    assert min(counters["host memory bytes"]) > 1 << 20


def test_the_load_of_the_computer_is_sampled_on_request() -> None:
    assert options_from_environ({}).host_load == frozenset()
    chosen = options_from_environ({"NEURON_RT_INSPECT_CPU_UTIL": "1", "NEURON_RT_INSPECT_HOST_MEMORY": "0"})
    assert chosen.host_load == {HostEvent.CPU_UTIL}
