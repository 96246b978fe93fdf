"""The timeline's engine: what every cell of a row shows, in time that does not grow with the events in view.

Busy time of a cell is exact (prefix sums over disjoint intervals). The event that a cell names is the longest that
starts in it, or the one that runs on into it when that covers more of it; with very many events in view it is found
among the longest of each block of 16, 256, ... events.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from neurontools.errors import UsageError
from neurontools.profiler.intervals import BusyIndex

if TYPE_CHECKING:
    from neurontools.profiler.arrays import Int64s
    from neurontools.profiler.trace import Row, Trace

EIGHTHS = 8
NO_EVENT = -1
_BLOCK = 16
_CANDIDATES_PER_CELL = 256


@dataclass(frozen=True, slots=True)
class Cells:
    """What the cells of a row show.

    Args:
        busy_ns: exact busy time.
        eighths: 0 to 8 for drawing; at least 1 where anything happened, 8 only where the cell is busy throughout.
        event: number in the trace of the event that the cell stands for, or NO_EVENT.
    """

    busy_ns: Int64s
    eighths: Int64s
    event: Int64s


class TimelineRow:
    """One row with its indices, built when it is first drawn."""

    def __init__(self, trace: Trace, row: Row) -> None:
        self.row = row
        self._start = trace.start[row.span]
        self._duration = trace.duration[row.span]

    @cached_property
    def busy(self) -> BusyIndex:
        """Busy time of any stretch."""
        return BusyIndex(self._start, self._duration)

    @cached_property
    def _reach(self) -> Int64s:
        """By event: which event up to it ends last."""
        end = self._start + self._duration
        latest = np.maximum.accumulate(end)
        new = np.concatenate(([True], latest[1:] > latest[:-1]))
        return np.maximum.accumulate(np.where(new, np.arange(len(end)), 0))

    @cached_property
    def _pyramid(self) -> list[Int64s]:
        """Level l: the longest event of every block of 16**l."""
        levels: list[Int64s] = [np.arange(len(self._start))]
        while len(levels[-1]) > _BLOCK:
            below = levels[-1]
            padded = np.concatenate((below, np.full(-len(below) % _BLOCK, below[-1])))
            blocks = padded.reshape(-1, _BLOCK)
            longest = np.argmax(self._duration[blocks], axis=1)
            levels.append(blocks[np.arange(len(blocks)), longest])
        return levels

    def cells(self, edges: Int64s) -> Cells:
        """Return what the cells between the edges (sorted int64, one more than cells) show."""
        width = np.diff(edges)
        busy = self.busy.between(edges)
        opened: Int64s = np.searchsorted(self._start, edges, side="left")
        event = self._longest(opened)
        event = self._or_running(event, edges, opened)
        eighths = np.where(busy >= width, EIGHTHS, np.minimum(-(-busy * EIGHTHS // np.maximum(width, 1)), 7))
        eighths = np.where((event != NO_EVENT) & (eighths == 0), 1, eighths)
        return Cells(busy, eighths, np.where(event == NO_EVENT, NO_EVENT, event + self.row.first))

    def event_at(self, time_ns: int) -> int:
        """Return the event that runs at a time, else the nearest one that starts after, else the last."""
        index = int(np.searchsorted(self._start, time_ns, side="right"))
        if index > 0:
            running = int(self._reach[index - 1])
            if int(self._start[running] + self._duration[running]) > time_ns:
                return running + self.row.first
        return min(index, len(self._start) - 1) + self.row.first

    def count_between(self, start_ns: int, end_ns: int) -> int:
        """Return how many events start in a stretch."""
        bounds: Int64s = np.searchsorted(self._start, np.array([start_ns, end_ns], dtype=np.int64))
        return int(bounds[1] - bounds[0])

    def _longest(self, opened: Int64s) -> Int64s:
        """Return for every cell the longest event that starts in it; `opened` are first events by edge."""
        cells = len(opened) - 1
        found: Int64s = np.full(cells, NO_EVENT, dtype=np.int64)
        first, last = int(opened[0]), int(opened[-1])
        if first == last:
            return found
        candidates = self._candidates(first, last, cells)
        bounds: Int64s = np.searchsorted(candidates, opened)
        counts = np.diff(bounds)
        some = np.flatnonzero(counts)
        duration = self._duration[candidates]
        if len(some):
            longest = np.maximum.reduceat(duration, bounds[some])
            inside = np.arange(bounds[some[0]], bounds[some[-1] + 1])
            equal = inside[duration[inside] == np.repeat(longest, counts[some])]
            cell: Int64s = np.searchsorted(bounds, equal, side="right") - 1
            found[cell[::-1]] = candidates[equal[::-1]]
        lost = (found == NO_EVENT) & (np.diff(opened) > 0)
        found[lost] = opened[:-1][lost]
        return found

    def _candidates(self, first: int, last: int, cells: int) -> Int64s:
        level, size = 0, 1
        while (last - first) // size > _CANDIDATES_PER_CELL * cells and level < len(self._pyramid) - 1:
            level, size = level + 1, size * _BLOCK
        chosen = self._pyramid[level][first // size : (last - 1) // size + 1]
        return chosen[(chosen >= first) & (chosen < last)]

    def _or_running(self, event: Int64s, edges: Int64s, opened: Int64s) -> Int64s:
        """Return `event`, replaced where an event that began before the cell covers more of it."""
        if len(self._start) == 0:
            return event
        before = opened[:-1]
        running = self._reach[np.maximum(before - 1, 0)]
        left, right = edges[:-1], edges[1:]
        covered = np.minimum(self._start[running] + self._duration[running], right) - left
        covered = np.where(before > 0, covered, 0)
        own = np.minimum(self._duration[event], right - self._start[event])
        return np.where((covered > 0) & ((event == NO_EVENT) | (covered > own)), running, event)


class Timeline:
    """All rows of a trace, and finding events in them."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.rows = tuple(TimelineRow(trace, row) for row in trace.rows)
        self.total_ns = trace.end_ns

    def row_of(self, event: int) -> int:
        """Return the index of the row that an event is in."""
        firsts = [row.row.first for row in self.rows]
        return int(np.searchsorted(firsts, event, side="right")) - 1

    def search(self, pattern: str) -> Int64s:
        """Return the events whose operation matches a regular expression (case ignored), in order of time.

        Raises:
            UsageError: it is no regular expression.
        """
        try:
            wanted = re.compile(pattern, re.IGNORECASE)
        except re.error as error:
            raise UsageError(
                f"{pattern!r} is no regular expression: {error}", "write . * [ with a backslash"
            ) from error
        trace = self.trace
        matches = np.array([bool(wanted.search(action.name)) for action in trace.actions], dtype=bool)
        found = np.flatnonzero(matches[trace.action])
        return found[np.argsort(trace.start[found], kind="stable")]
