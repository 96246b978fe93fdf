from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from neurontools.profiler.analysis.operators import range_operators, row_uses
from neurontools.profiler.analysis.steady import steady_window
from neurontools.profiler.analysis.summary import engine_totals
from neurontools.profiler.trace.axis import DeviceAxis, WallAxis, device_axis
from neurontools.profiler.trace.open import load
from neurontools.runtime.host_activity import HostEvent

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Maker

    from neurontools.profiler.trace.trace import Trace

# Lengths of executions and of the gaps after them.
STRETCHES = st.lists(st.tuples(st.integers(1, 1000), st.integers(1, 10**12)), min_size=1, max_size=20)


def axis_of(stretches: list[tuple[int, int]], band_ns: int) -> DeviceAxis:
    starts, ends, now = [], [], 5
    for length, gap in stretches:
        starts.append(now)
        ends.append(now + length)
        now += length + gap
    return DeviceAxis(np.array(starts, dtype=np.int64), np.array(ends, dtype=np.int64), band_ns)


@given(STRETCHES, st.integers(1, 500))
def test_every_moment_of_an_execution_has_its_own_position(
    stretches: list[tuple[int, int]], band_ns: int
) -> None:
    axis = axis_of(stretches, band_ns)
    times = np.concatenate([np.arange(a, b) for a, b in zip(axis.starts, axis.ends, strict=True)])
    positions = axis.positions(times)
    assert (np.diff(positions) > 0).all()
    assert (axis.times(positions) == times).all()
    assert (axis.at_clock(axis.clock(positions)) == positions).all()
    assert axis.clock(np.array([axis.total_ns]))[0] == sum(length for length, _ in stretches)


@given(STRETCHES, st.integers(1, 500))
def test_gaps_are_no_wider_than_a_band_and_time_never_runs_backwards(
    stretches: list[tuple[int, int]], band_ns: int
) -> None:
    axis = axis_of(stretches, band_ns)
    assert (np.diff(axis.times(np.arange(axis.total_ns + 1))) >= 0).all()
    gaps = axis.gaps(0, axis.total_ns)
    assert [gap.length_ns for gap in gaps] == [gap for _, gap in stretches[:-1]]
    assert [gap.width for gap in gaps] == [min(gap, band_ns) for _, gap in stretches[:-1]]


def test_executions_of_several_cores_share_an_axis(trace: Trace) -> None:
    axis = device_axis(trace)
    assert axis is not None
    assert len(axis.starts) == 10
    assert axis.clock(np.array([axis.total_ns])).tolist() == [10 * 25_000]


def test_the_steady_window_has_the_executions_of_a_steady_step(trace: Trace) -> None:
    axis = device_axis(trace)
    assert axis is not None
    window = steady_window(trace, axis)
    assert window is not None
    assert axis.clock(np.array([window.first, window.last])).tolist() == [100_000, 150_000]
    assert window.name == "step 3"
    wall = steady_window(trace, WallAxis(trace.end_ns))
    assert wall is not None
    assert wall.last - wall.first == 350_000 + 25_000


def test_a_stretch_has_the_busy_time_of_its_rows_and_its_operators(trace: Trace) -> None:
    start = int(trace.runs[0].device_start[2])
    busy = {use.row.label: use.busy_ns for use in row_uses(trace, trace.rows, start, start + 25_000)}
    assert busy["NC0 Tensor"] == 14_000
    assert busy["NC1 Tensor"] == 0
    operators = range_operators(trace, start, start + 25_000, 10)
    assert {each.name: each.count for each in operators}["aten.mm"] == 2


def test_an_engine_that_waits_between_tiles_does_not_work_meanwhile(home: Path, maker: Maker) -> None:
    work = (maker.operation("aten.mm", "Tensor", 0, 20_000, count=4, busy_ns=5_000),)
    capture = maker.capture(home / "p")
    model = maker.model(neff=maker.neff(work))
    capture.on_load(model, 1_000, 2_000)
    for number in range(1, 5):
        capture.on_execute(model, number, 100_000 * number, 100_000 * number + 60_000, 0)
    capture.on_close()
    waits = load(str(home / "p"))
    rows = [row for row in waits.rows if row.label == "NC0 Tensor"]
    start = int(waits.runs[0].device_start[0])

    def works_ns(first: int, last: int) -> int:
        (use,) = row_uses(waits, rows, first, last)
        return use.busy_ns

    assert works_ns(start, start + 25_000) == 5_000
    assert works_ns(start + 10_000, start + 25_000) == 2_500
    assert works_ns(0, waits.end_ns) == 4 * 5_000
    (total,) = (each for each in engine_totals(waits) if each.engine == "Tensor")
    assert works_ns(0, waits.end_ns) == total.busy_ns


def test_the_steady_window_has_a_step_of_every_worker(home: Path, maker: Maker) -> None:
    for rank in range(2):
        capture = maker.worker(home / "p", rank, 2)
        model = maker.model(neff=maker.neff())
        now = maker.start_ns
        capture.on_load(model, now, now + 1_000)
        for step in range(1, 6):
            now += 1_000_000
            capture.on_execute(model, step, now + 200_000 * rank, now + 200_000 * rank + 100_000, 0)
            capture.host.on_host_event(
                (HostEvent.STEP, now + 500_000, now + 500_000, 0, "mark_step", "", 0, 0)
            )
        capture.on_close()
    trace = load(str(home / "p"))
    axis = device_axis(trace)
    assert axis is not None
    window = steady_window(trace, axis)
    assert window is not None
    assert axis.clock(np.array([window.last]))[0] - axis.clock(np.array([window.first]))[0] == 2 * 25_000
