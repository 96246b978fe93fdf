"""The timeline's engine: what every cell of a row shows, in time that does not grow with the events in view.

Busy time of a cell is exact. The event that a cell names is the longest that starts in it, or an earlier event that
covers more of it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from neurontools.errors import UsageError
from neurontools.profiler.capture.format import Track
from neurontools.profiler.trace.rows import NO_EVENT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.profiler.trace.intervals import Codes, Int64s, Mask
    from neurontools.profiler.trace.trace import Trace, TraceRow


EIGHTHS = 8


@dataclass(frozen=True, slots=True)
class Cells:
    """What the cells of a row show.

    Args:
        busy_ns: exact busy time.
        width_ns: how long the cells are.
        event: number in the trace of the event that the cell stands for, or NO_EVENT.
    """

    busy_ns: Int64s
    width_ns: Int64s
    event: Int64s

    def heights(self, full: int = EIGHTHS) -> Int64s:
        """Return 0 to `full` for drawing: at least 1 where anything happened, `full` only where a cell is busy throughout."""
        share = np.minimum(-(-self.busy_ns * full // np.maximum(self.width_ns, 1)), full - 1)
        heights = np.where(self.busy_ns >= self.width_ns, full, share)
        return np.where((self.event != NO_EVENT) & (heights == 0), 1, heights)


@dataclass(frozen=True, slots=True)
class Matches:
    """Events that a search found, in order of time: their numbers and starts."""

    events: Int64s
    start: Int64s

    def __len__(self) -> int:
        return len(self.events)

    def place_of(self, event: int, start_ns: int) -> int:
        """Return the place of an event, or of the last match before it, among the matches."""
        at = int((self.start < start_ns).sum())
        while at < len(self) - 1 and self.start[at] == self.start[at + 1] and self.events[at] != event:
            at += 1
        return at


class TimelineRow:
    """What the cells of one row show."""

    def __init__(self, row: TraceRow) -> None:
        self.row = row
        self._full = _full_value(row)

    def cells(self, edges: Int64s, widths: Int64s | None = None) -> Cells:
        """Return the contents of the cells between edges.

        Args:
            edges: times of the trace, sorted, one more than cells.
            widths: how long the cells are on the axis, where gaps are shorter; by default as long as in the trace.
        """
        width = np.diff(edges) if widths is None else widths
        busy = self.row.events.busy_between(edges)
        opened = self.row.events.first_from(edges)
        event = self._or_running(self.row.events.longest(opened), edges, opened)
        if self._full:
            busy = busy * np.minimum(self.row.events.at(np.maximum(event, 0)).value / self._full, 1)
            busy = busy.astype(np.int64)
        return Cells(busy, width, np.where(event == NO_EVENT, NO_EVENT, event + self.row.first))

    def actions(self, cells: Cells) -> Codes:
        """Return the actions of the events of cells; any action for empty cells."""
        return self.row.events.at(np.maximum(cells.event - self.row.first, 0)).action

    def event_at(self, time_ns: int) -> int:
        """Return the event that runs at a time, else the next event, else the last."""
        return self.row.events.at_time(time_ns) + self.row.first

    def count_between(self, start_ns: int, end_ns: int) -> int:
        """Return how many events start in a stretch."""
        bounds = self.row.events.first_from(np.array([start_ns, end_ns], dtype=np.int64))
        return int(bounds[1] - bounds[0])

    def _or_running(self, event: Int64s, edges: Int64s, opened: Int64s) -> Int64s:
        """Return `event`, replaced where an event that began before the cell covers more of it."""
        events, before = self.row.events, opened[:-1]
        left, right = edges[:-1], edges[1:]
        running = events.latest(np.maximum(before - 1, 0))
        block = events.at(running)
        covered = np.where(before > 0, np.minimum(block.start + block.duration, right) - left, 0)
        own_block = events.at(np.maximum(event, 0))
        own = np.minimum(own_block.duration, right - own_block.start)
        return np.where((covered > 0) & ((event == NO_EVENT) | (covered > own)), running, event)


def _full_value(row: TraceRow) -> int:
    """Return the value of a sample that fills a cell of its row; 0 in rows of other events."""
    if row.track is Track.CPU:
        return 100
    return int(row.events.block(0, row.events.count).value.max()) if row.track is Track.RAM else 0


def busiest(rows: Sequence[TimelineRow], edges: Int64s, widths: Int64s | None = None) -> tuple[Cells, Codes]:
    """Return the cells of a line that stands for several rows, each from the busiest row, and their actions.

    Args:
        rows: one or more.
        edges: as in `TimelineRow.cells`.
        widths: likewise.
    """
    cells_of_rows = [row.cells(edges, widths) for row in rows]
    actions = [row.actions(cells) for row, cells in zip(rows, cells_of_rows, strict=True)]
    if len(rows) == 1:
        return cells_of_rows[0], actions[0]
    busy = np.stack([cells.busy_ns for cells in cells_of_rows])
    events = np.stack([cells.event for cells in cells_of_rows])
    # An event too short for a busy nanosecond is more than nothing.
    chosen = np.argmax(2 * busy + (events != NO_EVENT), axis=0)
    at = np.arange(busy.shape[1])
    cells = Cells(busy[chosen, at], cells_of_rows[0].width_ns, events[chosen, at])
    return cells, np.stack(actions)[chosen, at]


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
        self.rows = tuple(TimelineRow(row) for row in trace.rows)
        self.total_ns = trace.end_ns

    def row_of(self, event: int) -> int:
        """Return the index of the row that an event is in."""
        return self.trace.place_of(event)

    def action_of(self, event: int) -> int:
        """Return the number of an event's action."""
        row = self.trace.row_of(event)
        return int(row.events.at(np.array([event - row.first], dtype=np.int64)).action[0])

    def matching_actions(self, pattern: str) -> frozenset[int]:
        """Return the numbers of the actions whose names match a regular expression (case ignored).

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
        return frozenset(
            number for number, action in enumerate(self.trace.actions) if wanted.search(action.name)
        )

    def search(self, pattern: str) -> Matches:
        """Return the events whose operation matches a regular expression (case ignored), in order of time.

        Raises:
            UsageError: the pattern is invalid.
        """
        matches: Mask = np.zeros(len(self.trace.actions), dtype=bool)
        matches[list(self.matching_actions(pattern))] = True
        hits = [row.events.of_actions(matches) for row in self.trace.rows]
        numbers = [each + row.first for each, row in zip(hits, self.trace.rows, strict=True)]
        starts = [row.events.at(each).start for each, row in zip(hits, self.trace.rows, strict=True)]
        if not numbers:
            return Matches(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
        start = np.concatenate(starts)
        order = np.argsort(start, kind="stable")
        return Matches(np.concatenate(numbers)[order], start[order])


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

    def at(self, start_ns: int) -> Viewport:
        """Return the window from another time on."""
        return _bounded(replace(self, start_ns=start_ns))

    def over(self, start_ns: int, end_ns: int, margin: float) -> Viewport:
        """Return the window of a stretch, with a share of its length on both sides."""
        around = int((end_ns - start_ns) * margin)
        return _bounded(
            replace(self, start_ns=start_ns - around, span_ns=max(end_ns - start_ns + 2 * around, 1))
        )

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
