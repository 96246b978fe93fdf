"""Profiles of kernels: the rows of the schedule, in the form of every profile."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from neurontools.compat.nki import jit
from neurontools.compiler.neff import parse
from neurontools.nki.profile import neff_of, save_profile
from neurontools.nki.program import modelled_core, modelled_us, program_of, schedule_of
from neurontools.nki.report import report
from neurontools.profiler.analysis.dependencies import Dependencies, event_details, order_details
from neurontools.profiler.analysis.programs import busiest_program, critical_paths, on_chip_use, read_neff
from neurontools.profiler.capture.format import DEVICE_TRACKS, Track
from neurontools.profiler.trace.open import load
from tests.nki.launches import launch_of, line_of, matmul, ones, scale

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

    from neurontools.nki.context import Launch
    from neurontools.profiler.trace.trace import Trace

    Tool = Callable[..., subprocess.CompletedProcess[str]]


def launches() -> dict[str, Launch]:
    half = np.ones((256, 256), np.float16)
    return {
        "scale": launch_of(scale, ones(256, 512)),
        "matmul": launch_of(matmul, half, half),
        "matmul on trn1": launch_of(matmul, half, half, target="trn1"),
        "scale on two cores": launch_of(scale, ones(256, 512), cores=2),
    }


def trace_of(launch: Launch, directory: Path) -> Trace:
    start_ns = time.monotonic_ns()
    save_profile(str(directory), launch, start_ns, time.monotonic_ns())
    return load(str(directory))


@pytest.mark.parametrize("name", ["scale", "matmul", "matmul on trn1", "scale on two cores"])
def test_the_rows_are_those_of_the_schedule(tmp_path: Path, name: str) -> None:
    launch = launches()[name]
    trace = trace_of(launch, tmp_path)
    for core in launch.cores:
        planned = schedule_of(core)
        rows = [row for row in trace.rows_of(*DEVICE_TRACKS) if row.nc == core.number]
        (run,) = (run for run in trace.runs if run.nc == core.number)
        begin = int(run.device_start[0]) + round(modelled_core(launch.limits).costs.kernel_start_ns)
        shown = Counter()
        for row in rows:
            block = row.events.block(0, row.events.count)
            for start, lasts, number in zip(block.start, block.duration, block.action, strict=True):
                action = trace.actions[number]
                moved = action.read_bytes, action.write_bytes
                shown[
                    row.track.label, action.opcode, int(start) - begin, int(lasts), moved, action.source
                ] += 1
        assert shown == Counter(
            (
                group.engine.value,
                group.instruction.opcode,
                round(group.start_ns),
                round(group.end_ns) - round(group.start_ns),
                (group.instruction.read_bytes, group.instruction.write_bytes),
                group.instruction.source,
            )
            for group in planned.groups
        )
        for row in rows:
            block = row.events.block(0, row.events.count)
            worked = int(trace.columns.worked_ns(block.action, block.duration).sum())
            busy = sum(group.busy_ns for group in planned.groups if group.engine.value == row.track.label)
            assert worked == pytest.approx(busy, abs=len(block))
        assert int(run.device_ns[0]) / 1e3 == pytest.approx(
            modelled_core(launch.limits).costs.kernel_start_ns / 1e3 + planned.end_ns / 1e3, abs=0.001
        )
    assert max(int(run.device_ns[0]) for run in trace.runs) / 1e3 == pytest.approx(
        modelled_us(launch), abs=0.001
    )


def test_a_kernel_without_instructions_takes_its_start(tmp_path: Path) -> None:
    launch = launch_of(jit(lambda a: a), ones(128, 4))
    (run,) = trace_of(launch, tmp_path).runs
    assert int(run.device_ns[0]) == pytest.approx(modelled_us(launch) * 1e3)


def test_a_row_has_line_queue_bytes_and_what_it_waited_for(tmp_path: Path) -> None:
    trace = trace_of(launch_of(scale, ones(256, 512)), tmp_path)
    known = Dependencies(trace)
    known.read(busiest_program(trace))
    (vector,), (dma,) = trace.rows_of(Track.VECTOR), trace.rows_of(Track.DMA)
    details = dict(event_details(trace, vector.first))
    assert details["opcode"] == "TENSOR_SCALAR"
    assert (
        details["source"]
        == f"{__file__.replace('test_profile', 'launches')}:{line_of(scale, 'nisa.tensor_scalar')}"
    )
    order = dict(order_details(trace, known.of_event(vector.first)))
    assert order["waited for"] == "DMA_DIRECT2D on DMA, last"
    assert order["waits for it"] == "DMA_DIRECT2D on DMA"
    stored = next(
        dict(event_details(trace, event))
        for event in range(dma.first, dma.last)
        if "written" in dict(event_details(trace, event))
    )
    assert (stored["queue"], stored["written"]) == ("qScalarIO0", f"{128 * 512 * 4} B")


def test_critical_path_and_memory_are_those_of_the_report(tmp_path: Path) -> None:
    half = np.ones((256, 256), np.float16)
    launch = launch_of(matmul, half, half)
    trace = trace_of(launch, tmp_path)
    found = report(launch).slowest
    (path,) = critical_paths(trace)
    assert path.total_ns == pytest.approx(modelled_us(launch) * 1e3, abs=2)
    assert {part.source.rpartition("/")[2] for part in path.parts} <= {
        f"launches.py:{found.instructions[number].line}" for number in found.critical_path
    }
    assert f"MATMUL launches.py:{line_of(matmul, 'nisa.nc_matmul')}" in {
        total.name for total in path.operators
    }
    use = on_chip_use(trace, busiest_program(trace))
    sbuf, psum = found.memory
    assert max(used for _, used in use.sbuf) == sbuf.peak_bytes * 128
    assert max(used for _, used in use.psum) == -(-psum.peak_bytes // 2048)
    assert (use.sbuf[-1][1], use.psum[-1][1]) == (0, 0)
    assert all(0 <= time_ns <= use.total_ns for time_ns, _ in (*use.sbuf, *use.psum))


def test_a_stored_kernel_is_the_one_that_ran() -> None:
    core = launch_of(scale, ones(256, 512)).cores[0]
    program = program_of(core)
    (stored,) = parse(neff_of(core.launch, program)).kernels.values()
    assert (stored.instructions, stored.facts) == (program.instructions, program.facts)
    assert (stored.sbuf, stored.psum) == (program.sbuf, program.psum)


def test_the_command_writes_a_profile_that_the_others_read(tool: Tool, tmp_path: Path) -> None:
    source = Path(__file__).with_name("launches.py")
    words = ("--shape", "x=256x512", "--target", "trn2", "--output", str(tmp_path / "prof"), "--json")
    shown = json.loads(tool("neuron-profile", "kernel", f"{source}::scale", *words).stdout)
    summary = tool("neuron-profile", "summary", str(tmp_path / "prof"), "--json").stdout
    assert shown["time_ns"] == pytest.approx(json.loads(summary)["models"][0]["modelled_ns"], abs=2)
    (neff,) = {
        read_neff(load(str(tmp_path / "prof")), name) for name in load(str(tmp_path / "prof")).programs
    }
    assert [op.opcode for op in neff.cost.ops] == [row["opcode"] for row in shown["cores"][0]["instructions"]]
    advice = json.loads(tool("neuron-profile", "advise", str(tmp_path / "prof"), "--json").stdout)
    rules = {each["rule"] for each in (*advice["advice"], *advice["silent"])}
    assert {"kernel-rows", "kernel-psum", "kernel-scalar", "kernel-spills", "idle-partitions"} < rules
    assert not rules & {"batch", "dtype", "attention"}


_NUMPY_PROGRAM = """
import numpy as np
import nki
from launches import scale

data = np.ones((256, 512), np.float32)
for _ in range(3):
    scale(data)
nki.simulate(scale)(data[:128])
"""


def test_a_program_with_arrays_is_profiled_as_one_with_a_device(tool: Tool, home: Path) -> None:
    checkout = f"import sys\nsys.path.append({str(Path(__file__).parents[2])!r})\n"
    (home / "program.py").write_text(checkout + _NUMPY_PROGRAM.replace("launches", "tests.nki.launches"))
    words = (
        "neuron-run",
        "--instance",
        "trn2.3xlarge",
        "--profile",
        "prof",
        "--",
        sys.executable,
        "program.py",
    )
    done = tool(*words, cwd=home)
    assert (done.returncode, done.stderr) == (0, "")
    trace = load(str(home / "prof"))
    (runs,) = trace.runs
    assert runs.number.tolist() == [1, 2, 3, 1]
    assert [trace.models[number].name for number in runs.model] == ["scale"] * 4
    assert len(trace.programs) == 2
    assert trace.problems == ()
