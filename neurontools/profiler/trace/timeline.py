"""The timeline's engine: what every cell of a row shows, in time that does not grow with the events in view.

Busy time of a cell is exact (prefix sums over disjoint intervals). The event that a cell names is the longest that
starts in it, or an earlier event that covers more of it; with very many events in view it is found
among the longest of each block of 16, 256, ... events.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from neurontools.errors import UsageError
from neurontools.profiler.trace.intervals import BusyIndex

if TYPE_CHECKING:
    from neurontools.profiler.trace.intervals import Int64s
    from neurontools.profiler.trace.trace import Trace, TraceRow


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

    def __init__(self, trace: Trace, row: TraceRow) -> None:
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
        """Return the contents of the cells between edges (sorted int64, one more than cells)."""
        width = np.diff(edges)
        busy = self.busy.between(edges)
        opened: Int64s = np.searchsorted(self._start, edges, side="left")
        event = self._longest(opened)
        event = self._or_running(event, edges, opened)
        eighths = np.where(busy >= width, EIGHTHS, np.minimum(-(-busy * EIGHTHS // np.maximum(width, 1)), 7))
        eighths = np.where((event != NO_EVENT) & (eighths == 0), 1, eighths)
        return Cells(busy, eighths, np.where(event == NO_EVENT, NO_EVENT, event + self.row.first))

    def event_at(self, time_ns: int) -> int:
        """Return the event that runs at a time, else the next event, else the last."""
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


def tick_step(span_ns: int, ticks: int) -> int:
    """Return the round step (1, 2 or 5 times a power of ten, nanoseconds) that gives at most `ticks` on a span."""
    wanted = -(-span_ns // max(ticks, 1))
    power = int("1" + "0" * (len(str(wanted)) - 1))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= wanted)


def format_tick(time_ns: int, step_ns: int) -> str:
    """Return a time with as many digits as neighbours a step apart need: `2.51 ms`."""
    for unit, size in (("s", 9), ("ms", 6), ("us", 3)):
        if time_ns >= 10**size:
            zeros = len(str(step_ns)) - len(str(step_ns).rstrip("0"))
            return f"{time_ns / 10**size:.{max(size - zeros, 0)}f} {unit}"
    return f"{time_ns} ns"


class TraceTimeline:
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
            UsageError: the pattern is invalid.
        """
        try:
            wanted = re.compile(pattern, re.IGNORECASE)
        except re.error as error:
            raise UsageError(
                f"invalid regular expression {pattern!r}: {error}",
                "put a backslash before special characters such as . * [",
            ) from error
        trace = self.trace
        matches = np.array([bool(wanted.search(action.name)) for action in trace.actions], dtype=bool)
        found = np.flatnonzero(matches[trace.action])
        return found[np.argsort(trace.start[found], kind="stable")]


@dataclass(frozen=True, slots=True)
class Viewport:
    """A window of `span_ns` from `start_ns` on a profile that lasts `total_ns`, drawn in `columns` cells.

    A cell is never shorter than a nanosecond and the window never longer than the profile (but for that), and it
    stays inside the profile.
    """

    start_ns: int
    span_ns: int
    total_ns: int
    columns: int

    @classmethod
    def fit(cls, total_ns: int, columns: int) -> Viewport:
        """Return the window that shows everything."""
        return cls(0, max(total_ns, columns, 1), total_ns, columns)

    @property
    def end_ns(self) -> int:
        """The end of the window."""
        return self.start_ns + self.span_ns

    @property
    def ns_per_cell(self) -> float:
        """How long a cell is."""
        return self.span_ns / self.columns

    def edges(self) -> Int64s:
        """Return the `columns` + 1 edges of the cells."""
        steps: Int64s = np.arange(self.columns + 1, dtype=np.int64)
        whole, rest = divmod(self.span_ns, self.columns)
        return self.start_ns + steps * whole + steps * rest // self.columns

    def column_of(self, time_ns: int) -> int:
        """Return the cell that a time falls into; outside of 0..columns - 1 when it is not in the window."""
        return (time_ns - self.start_ns) * self.columns // self.span_ns

    def resized(self, columns: int) -> Viewport:
        """Return the same window on a screen of another width."""
        return _bounded(replace(self, columns=max(columns, 1)))

    def zoomed(self, factor: float, at_ns: int) -> Viewport:
        """Return the window `factor` times as long, with `at_ns` staying where it is on the screen."""
        span = max(int(self.span_ns * factor), 1)
        span = min(max(span, self.columns), self.longest_ns)
        share = (at_ns - self.start_ns) / self.span_ns
        return _bounded(replace(self, span_ns=span, start_ns=at_ns - int(share * span)))

    def panned(self, share: float) -> Viewport:
        """Return the window moved by a share of its length; at least by a nanosecond."""
        step = int(self.span_ns * share) or (1 if share > 0 else -1)
        return _bounded(replace(self, start_ns=self.start_ns + step))

    def centred(self, time_ns: int) -> Viewport:
        """Return the window with a time in its middle."""
        return _bounded(replace(self, start_ns=time_ns - self.span_ns // 2))

    def showing(self, start_ns: int, duration_ns: int) -> Viewport:
        """Return the window moved, and made longer where needed, so that an event is inside."""
        if self.start_ns <= start_ns and start_ns + duration_ns <= self.end_ns:
            return self
        wide = replace(self, span_ns=min(max(self.span_ns, duration_ns * 2), self.longest_ns))
        return wide.centred(start_ns + duration_ns // 2)

    @property
    def longest_ns(self) -> int:
        """The longest window there may be."""
        return max(self.total_ns, self.columns, 1)


def _bounded(view: Viewport) -> Viewport:
    span = min(max(view.span_ns, view.columns), view.longest_ns)
    return replace(view, span_ns=span, start_ns=max(0, min(view.start_ns, view.longest_ns - span)))
