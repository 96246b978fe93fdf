"""Lanes: events of a row that overlap, spread over the fewest lines on which none do."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from neurontools.profiler.arrays import Codes, Int64s


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
