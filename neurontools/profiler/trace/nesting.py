"""Events that hold others, as calls hold calls: the event around each one, and the time that is its own."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from neurontools.profiler.trace.intervals import Int64s


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
        place = np.searchsorted(above, level) - 1
        if len(above):
            around = above[np.maximum(place, 0)]
            parent[level] = np.where((place >= 0) & (end[around] >= end[level]), around, -1)
    own = duration.copy()
    inner = np.flatnonzero(parent >= 0)
    np.subtract.at(own, parent[inner], duration[inner])
    return Nesting(parent, np.maximum(own, 0), levels)


def _empty_before(start: Int64s, duration: Int64s) -> Int64s:
    """Return how many events of no duration end at the start of an event but do not come before it."""
    empty = duration == 0
    found: Int64s = np.zeros(len(start), dtype=np.int64)
    if not empty.any():
        return found
    ended = np.searchsorted(start[empty], start, side="right")
    before = np.cumsum(empty) - empty
    return ended - before
