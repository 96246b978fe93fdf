"""Intervals in numpy arrays: unions, busy time, nesting, and lanes on which no intervals overlap."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Int64s: TypeAlias = NDArray[np.int64]
Codes: TypeAlias = NDArray[np.uint32]
Mask: TypeAlias = NDArray[np.bool_]
Floats: TypeAlias = NDArray[np.float64]
Records: TypeAlias = NDArray[Any]


def union(start: Int64s, duration: Int64s) -> tuple[Int64s, Int64s]:
    """Return the starts and ends of the disjoint, sorted intervals that cover the same time; empty ones vanish."""
    real = duration > 0
    start, end = start[real], start[real] + duration[real]
    if len(start) == 0:
        return start.astype(np.int64), end.astype(np.int64)
    if np.any(start[1:] < start[:-1]):
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    first = np.flatnonzero(np.concatenate(([True], start[1:] > reach[:-1])))
    last = np.concatenate((first[1:], [len(start)])) - 1
    return start[first], reach[last]


def busy_ns(start: Int64s, duration: Int64s) -> int:
    """Return the length of the union of intervals, nanoseconds."""
    starts, ends = union(start, duration)
    return int((ends - starts).sum())


def active_ns(start: Int64s, duration: Int64s, worked: Int64s) -> int:
    """Return how long anything works, nanoseconds.

    Args:
        start: starts of intervals.
        duration: their lengths.
        worked: work within each of them, spread evenly over it: what waits lets others work meanwhile.
    """
    if np.array_equal(duration, worked):
        return busy_ns(start, duration)
    real = duration > 0
    start, duration, worked = start[real], duration[real], worked[real]
    edges = np.concatenate((start, start + duration))
    shares = worked / duration
    order = np.argsort(edges, kind="stable")
    level = np.cumsum(np.concatenate((shares, -shares))[order])[:-1]
    return round(float((np.minimum(level, 1.0) * np.diff(edges[order])).sum()))


class BusyIndex:
    """Answers how busy any stretch of time was, from prefix sums over the union: O(log n) a stretch."""

    def __init__(self, start: Int64s, duration: Int64s) -> None:
        self.starts, self.ends = union(start, duration)
        self._before = np.concatenate(([0], np.cumsum(self.ends - self.starts)))

    @property
    def total_ns(self) -> int:
        """Busy nanoseconds of all time."""
        return int(self._before[-1])

    def until(self, times: Int64s) -> Int64s:
        """Return the busy nanoseconds before each time."""
        if len(self.starts) == 0:
            return np.zeros(len(times), dtype=np.int64)
        index = np.searchsorted(self.starts, times, side="right") - 1
        at = np.maximum(index, 0)
        inside = np.clip(times - self.starts[at], 0, self.ends[at] - self.starts[at])
        return np.where(index < 0, 0, self._before[at] + inside)

    def between(self, edges: Int64s) -> Int64s:
        """Return the busy nanoseconds between each two neighbouring edges (sorted int64, n + 1 edges, n values)."""
        return np.diff(self.until(edges))


class LaneChooser:
    """Gives every event the lowest lane (0, 1, ...) that is free, block after block of a row."""

    def __init__(self) -> None:
        self._taken: list[tuple[int, int]] = []
        self._free: list[int] = []
        self._count = 0
        self._end_ns = 0

    def choose(self, start: Int64s, duration: Int64s) -> Codes:
        """Return the lanes of the next events.

        Args:
            start: int64 nanoseconds, sorted and not before those of earlier blocks.
            duration: of the same length.
        """
        end = start + duration
        lane_of: Codes = np.zeros(len(start), dtype=np.uint32)
        if len(start) == 0:
            return lane_of
        latest = np.maximum(np.maximum.accumulate(end), self._end_ns)
        overlap = start[0] < self._end_ns or bool(np.any(start[1:] < latest[:-1]))
        self._end_ns = int(latest[-1])
        if not overlap:
            self._taken, self._free, self._count = (
                [(self._end_ns, 0)],
                list(range(1, self._count)),
                max(self._count, 1),
            )
            return lane_of
        for number, (opened, closed) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
            while self._taken and self._taken[0][0] <= opened:
                heapq.heappush(self._free, heapq.heappop(self._taken)[1])
            if self._free:
                lane = heapq.heappop(self._free)
            else:
                lane, self._count = self._count, self._count + 1
            lane_of[number] = lane
            heapq.heappush(self._taken, (closed, lane))
        return lane_of


def lanes(start: Int64s, duration: Int64s) -> Codes:
    """Return the lane (0, 1, ...) of every event, greedily the lowest free one; arguments as in `LaneChooser.choose`."""
    return LaneChooser().choose(start, duration)


@dataclass(frozen=True, slots=True)
class Nesting:
    """How the events of a row nest.

    Args:
        parent: number of the event around each one, -1 without.
        own_ns: duration without that of the events directly inside; never negative.
        levels: the events of each depth, the outermost first.
    """

    parent: Int64s
    own_ns: Int64s
    levels: tuple[Int64s, ...]


def nest(start: Int64s, duration: Int64s) -> Nesting:
    """Return how events nest; of two that begin together the longer one comes first.

    Args:
        start: sorted.
        duration: of the same length.
    """
    count = len(start)
    end = start + duration
    if not np.any(start[1:] < np.maximum.accumulate(end)[:-1]):
        flat: Int64s = np.full(count, -1, dtype=np.int64)
        return Nesting(flat, duration, (np.arange(count, dtype=np.int64),) if count else ())
    # Events that began before, less those that ended before: how many are open around an event.
    depth = np.arange(count) - np.searchsorted(np.sort(end), start, side="right")
    depth += _empty_before(start, duration)
    order = np.argsort(depth, kind="stable")
    bounds: Int64s = np.searchsorted(depth[order], np.arange(int(depth.max(initial=0)) + 2))
    levels = tuple(order[a:b] for a, b in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True))
    parent: Int64s = np.full(count, -1, dtype=np.int64)
    for above, level in pairwise(levels):
        index = np.searchsorted(above, level) - 1
        if len(above):
            around = above[np.maximum(index, 0)]
            parent[level] = np.where((index >= 0) & (end[around] >= end[level]), around, -1)
    own = duration.copy()
    inner = np.flatnonzero(parent >= 0)
    np.subtract.at(own, parent[inner], duration[inner])
    return Nesting(parent, np.maximum(own, 0), levels)


def _empty_before(start: Int64s, duration: Int64s) -> Int64s:
    """Return how many events of no duration end at the start of an event but do not come before it."""
    empty = duration == 0
    nothing: Int64s = np.zeros(len(start), dtype=np.int64)
    if not empty.any():
        return nothing
    ended = np.searchsorted(start[empty], start, side="right")
    before = np.cumsum(empty) - empty
    return ended - before
