from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from neurontools.profiler.analysis.operators import range_operators, row_uses
from neurontools.profiler.analysis.steady import steady_window
from neurontools.profiler.analysis.summary import engine_totals
from neurontools.profiler.trace.axis import DeviceAxis, WallAxis, device_axis
from neurontools.profiler.trace.intervals import BusyIndex, active_ns, busy_ns, lanes, union
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


INTERVALS = st.lists(st.tuples(st.integers(0, 200), st.integers(0, 40)), max_size=40)


def columns(intervals: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    return (
        np.array([start for start, _ in intervals], dtype=np.int64),
        np.array([duration for _, duration in intervals], dtype=np.int64),
    )


def covered(intervals: list[tuple[int, int]]) -> set[int]:
    return {ns for start, duration in intervals for ns in range(start, start + duration)}


@given(INTERVALS)
def test_the_union_covers_what_the_intervals_cover_and_is_disjoint(intervals: list[tuple[int, int]]) -> None:
    starts, ends = union(*columns(intervals))
    assert covered(list(zip(starts.tolist(), (ends - starts).tolist(), strict=True))) == covered(intervals)
    assert busy_ns(*columns(intervals)) == len(covered(intervals))
    assert all(end < start for end, start in zip(ends[:-1], starts[1:], strict=True))


@given(INTERVALS, st.lists(st.integers(-10, 300), min_size=2, max_size=12, unique=True).map(sorted))
def test_busy_time_of_any_stretch_is_exact(intervals: list[tuple[int, int]], edges: list[int]) -> None:
    index = BusyIndex(*columns(intervals))
    busy = index.between(np.array(edges, dtype=np.int64)).tolist()
    expected = [
        len(covered(intervals) & set(range(first, last))) for first, last in itertools.pairwise(edges)
    ]
    assert busy == expected
    assert index.total_ns == len(covered(intervals))


@given(INTERVALS.map(sorted))
def test_events_of_one_lane_never_overlap_and_lanes_are_few(intervals: list[tuple[int, int]]) -> None:
    start, duration = columns(intervals)
    found = lanes(start, duration).tolist()
    for lane in set(found):
        mine = [interval for interval, its in zip(intervals, found, strict=True) if its == lane]
        assert all(a[0] + a[1] <= b[0] for a, b in itertools.pairwise(mine))
    deepest = max((sum(s <= ns < s + d for s, d in intervals) for ns in covered(intervals)), default=0)
    assert len(set(found)) <= max(deepest, 1) + sum(d == 0 for _, d in intervals)


def test_what_waits_lets_others_be_active() -> None:
    def active(*rows: tuple[int, int, int]) -> int:
        return active_ns(*(np.array(column, dtype=np.int64) for column in zip(*rows, strict=True)))

    assert active((0, 10, 10), (5, 10, 10)) == 15
    assert active((0, 10, 5)) == 5
    assert active((0, 10, 5), (0, 10, 5)) == 10  # they take turns
    assert active((0, 10, 8), (0, 10, 8)) == 10
    assert active((0, 10, 5), (20, 10, 10)) == 15
    assert active((0, 0, 0), (3, 4, 1)) == 1


def test_times_beyond_the_precision_of_floats_stay_exact() -> None:
    start = np.array([2**62, 2**62 + 3], dtype=np.int64)
    assert busy_ns(start, np.array([1, 1], dtype=np.int64)) == 2
