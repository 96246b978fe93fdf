from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from neurontools.profiler.trace.intervals import BusyIndex, active_ns, busy_ns, lanes, union

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
