"""Intervals in numpy arrays: unions, busy time, and lanes on which no intervals overlap."""

from __future__ import annotations

import heapq
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

    def between(self, edges: Int64s) -> Int64s:
        """Return the busy nanoseconds between each two neighbouring edges (sorted int64, n + 1 edges, n values)."""
        if len(self.starts) == 0:
            return np.zeros(len(edges) - 1, dtype=np.int64)
        index = np.searchsorted(self.starts, edges, side="right") - 1
        at = np.maximum(index, 0)
        inside = np.clip(edges - self.starts[at], 0, self.ends[at] - self.starts[at])
        return np.diff(np.where(index < 0, 0, self._before[at] + inside))


def lanes(start: Int64s, duration: Int64s) -> Codes:
    """Return the lane (0, 1, ...) of every event, greedily the lowest free one.

    Args:
        start: sorted, int64 nanoseconds.
        duration: of the same length.
    """
    end = start + duration
    found: Codes = np.zeros(len(start), dtype=np.uint32)
    if len(start) < 2 or not np.any(start[1:] < np.maximum.accumulate(end)[:-1]):
        return found
    free: list[int] = []
    taken: list[tuple[int, int]] = []
    count = 0
    for number, (opened, closed) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        while taken and taken[0][0] <= opened:
            heapq.heappush(free, heapq.heappop(taken)[1])
        if free:
            lane = heapq.heappop(free)
        else:
            lane, count = count, count + 1
        found[number] = lane
        heapq.heappush(taken, (closed, lane))
    return found
