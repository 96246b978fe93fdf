"""Busy time as the union of intervals: overlaps count once, exact in int64 nanoseconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from neurontools.profiler.arrays import Int64s


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
