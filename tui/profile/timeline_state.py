"""What a timeline shows: the axis, the window, the selected row, event and range, and the matches of a search."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from neurontools.base import units
from neurontools.base.text import plural
from neurontools.profiler.analysis.steady import steady_window
from neurontools.profiler.trace.axis import WallAxis, device_axis
from neurontools.profiler.trace.rows import NO_EVENT
from neurontools.profiler.trace.timeline import TraceTimeline, Viewport, busiest
from neurontools.tui.profile.timeline_drawing import (
    GroupKey,
    Heading,
    RowLine,
    folded_at_first,
    group_of,
    inner_group_of,
    line_contents,
)

if TYPE_CHECKING:
    from neurontools.profiler.analysis.dependencies import EventOrder
    from neurontools.profiler.trace.axis import Axis
    from neurontools.profiler.trace.intervals import Int64s
    from neurontools.profiler.trace.timeline import TimelineRow
    from neurontools.profiler.trace.trace import Trace, TraceRow

ZOOM = 0.5
_PAN = 0.125
_MARGIN = 0.01
_AROUND = 1.5


def as_times(*times: int) -> Int64s:
    """Return times as an array."""
    return np.array(times, dtype=np.int64)


class TimelineState:
    """The window is in positions on the axis: device time, or the wall clock, which has the measured rows too.

    A row and one of its events may be selected; zooming keeps that event in place.
    """

    def __init__(self, trace: Trace) -> None:
        self.timeline = TraceTimeline(trace)
        self.wall_axis = WallAxis(self.timeline.total_ns)
        self.device_axis = device_axis(trace)
        self.view = Viewport.fit(self.timeline.total_ns, 1)
        self.selected_row = 0
        self.selected_event = NO_EVENT
        self.range: tuple[int, int] | None = None
        self.pattern = ""
        self.matches = self.timeline.search("(?!)")
        self.lines: list[Heading | RowLine] = []
        self._folded = folded_at_first(self.timeline.rows)
        self._trail: dict[tuple[int, int], int] = {}
        self._fitted = "step"
        self._window_name = ""
        self._use_axis(self.device_axis or self.wall_axis)

    @property
    def trace(self) -> Trace:
        """The events."""
        return self.timeline.trace

    @property
    def range_ns(self) -> tuple[int, int]:
        """The selected stretch in times of the trace, or the window."""
        first, last = self.range or (self.view.start_ns, self.view.end_ns)
        times = self.axis.times(as_times(first, last)).tolist()
        return times[0], times[1]

    @property
    def rows(self) -> list[int]:
        """The rows of the axis, by index."""
        rows = enumerate(self.timeline.rows)
        return [number for number, row in rows if not (self.axis.is_device and row.row.track.measured)]

    @property
    def neighbours(self) -> list[TraceRow]:
        """The rows of the axis on the core of the selected row; on the wall clock those of its process."""
        selected = self.timeline.rows[self.selected_row].row
        rows = (self.timeline.rows[number].row for number in self.rows)
        return [
            row
            for row in rows
            if row.process == selected.process and (row.nc == selected.nc or not self.axis.is_device)
        ]

    def fold(self, key: GroupKey | None = None) -> None:
        """Fold a group of rows, or unfold it; by default that of the selected row."""
        if key is None:
            row = self.timeline.rows[self.selected_row].row
            key = group_of(row) if group_of(row) in self._folded else inner_group_of(row)
        self._folded ^= {key}
        self._lay_out()

    def fold_all(self) -> None:
        """Fold the rows of every core and clock; where they are, unfold everything."""
        groups = {group_of(self.timeline.rows[number].row) for number in self.rows}
        self._folded = self._folded - groups if groups <= self._folded else self._folded | groups
        self._lay_out()

    def resize(self, columns: int) -> None:
        """Keep the window on a screen of another width."""
        if self._fitted:
            self._fit(columns)
        else:
            self.view = self.view.resized(columns)

    def search(self, pattern: str) -> None:
        """Select the first match of a regular expression at or after the window's start.

        Raises:
            UsageError: invalid regular expression.
        """
        self.matches = self.timeline.search(pattern)
        self.pattern = pattern
        if len(self.matches):
            start = self._time_of(self.view.start_ns)
            first = int((self.matches.start < start).sum()) % len(self.matches)
            self.select(int(self.matches.events[first]))

    def go_to(self, time_ns: int) -> None:
        """Put a time that the axis shows in the middle of the window."""
        position = int(self.axis.at_clock(as_times(time_ns))[0])
        self.show(self.view.centred(position))

    def show(self, view: Viewport) -> None:
        """Show another window."""
        self.view = view
        self._fitted = ""

    def select(self, event: int) -> None:
        """Select an event and its row, and move the window to it where needed."""
        self.selected_event = event
        self.selected_row = self.timeline.row_of(event)
        if self.axis.is_device and self.timeline.rows[self.selected_row].row.track.measured:
            self.change_clock()
        first, last = self._positions_of(event)
        self.show(self.view.showing(first, last - first))

    def show_closely(self, event: int) -> None:
        """Select an event and show it in the middle, a few times as wide."""
        self.select(event)
        first, last = self._positions_of(event)
        self.show(self.view.over(first, max(last, first + 1), _AROUND))

    def select_at(self, line: RowLine, column: int) -> None:
        """Select a row and its event in a column, if there is one."""
        edges = self.view.edges()
        cells, _ = busiest(self.rows_of(line), self.axis.times(edges), np.diff(edges))
        event = self.selected_event = int(cells.event[min(column, self.view.columns - 1)])
        self.selected_row = line.drawn[0] if event == NO_EVENT else self.timeline.row_of(event)

    def rows_of(self, line: RowLine) -> list[TimelineRow]:
        """Return the rows that a line draws."""
        return [self.timeline.rows[number] for number in line.drawn]

    def change_clock(self) -> bool:
        """Change between device time and the wall clock, and keep the window; return whether there are both."""
        other = self.wall_axis if self.axis.is_device else self.device_axis
        if other is None:
            return False
        first, last = self.axis.times(as_times(self.view.start_ns, self.view.end_ns)).tolist()
        chosen = None if self.range is None else self.range_ns
        self._use_axis(other)
        self.view = Viewport.fit(other.total_ns, self.view.columns)
        if chosen:
            begin, end = other.positions(as_times(*chosen)).tolist()
            self.range = begin, end
        if self._fitted:
            self._fit(self.view.columns)
        else:
            begin, end = other.positions(as_times(first, last)).tolist()
            self.show(self.view.over(begin, end, 0))
        return True

    def pan(self, steps: int) -> None:
        """Move the window by eighths of its length."""
        self.show(self.view.panned(steps * _PAN))

    def zoom(self, direction: int) -> None:
        """Halve or double the window around the selected event, else around its middle."""
        at = self.view.start_ns + self.view.span_ns // 2
        if self.selected_event != NO_EVENT:
            first, last = self._positions_of(self.selected_event)
            middle = (first + last) // 2
            if self.view.start_ns <= middle <= self.view.end_ns:
                at = middle
        self.show(self.view.zoomed(ZOOM if direction > 0 else 1 / ZOOM, at))

    def fit(self) -> None:
        """Show one step; where that is shown already, everything."""
        before = self.view
        self._fitted = "step"
        self._fit(self.view.columns)
        if self.view == before:
            self._fitted = "all"
            self._fit(self.view.columns)

    def move_row(self, step: int) -> None:
        """Select the row above or below."""
        lines = [line for line in self.lines if isinstance(line, RowLine)]
        at = next((at for at, line in enumerate(lines) if self.selected_row in line.rows), 0)
        self.selected_row = lines[max(0, min(len(lines) - 1, at + step))].drawn[0]
        self.selected_event = NO_EVENT

    def move_event(self, step: int) -> None:
        """Select the next or previous event of the row; the first one from the window's start when none is."""
        row = self.timeline.rows[self.selected_row]
        event = self.selected_event + step
        if self.selected_event == NO_EVENT:
            event = row.event_at(self._time_of(self.view.start_ns))
        self.select(max(row.row.first, min(row.row.last - 1, event)))

    def follow(self, order: EventOrder, step: int) -> bool:
        """Select what the selected event waited for last, or the first to wait for it; back where it came from.

        Returns:
            Whether there is such an event.
        """
        links = order.earlier if step < 0 else order.later
        came_from = self._trail.get((self.selected_event, step))
        if came_from is None and not links:
            return False
        event = links[0].event if came_from is None else came_from
        self._trail[event, -step] = self.selected_event
        self.select(event)
        return True

    def move_match(self, step: int) -> None:
        """Select the next or previous match of the search; there is one."""
        self.select(int(self.matches.events[(self._match_number() + step) % len(self.matches)]))

    def mark_begin(self) -> None:
        """Begin the range at the selected event, else at the edge of the window."""
        begin, end = self._marked
        last = self.range[1] if self.range else self.view.end_ns
        self.range = (min(begin, last - 1), last) if begin < last else (begin, max(end, begin + 1))

    def mark_end(self) -> None:
        """End the range at the selected event, else at the edge of the window."""
        begin, end = self._marked
        first = self.range[0] if self.range else self.view.start_ns
        self.range = (first, end) if first < end else (begin, max(end, begin + 1))

    @property
    def _marked(self) -> tuple[int, int]:
        """Where the selected event is, else the window."""
        if self.selected_event == NO_EVENT:
            return self.view.start_ns, self.view.end_ns
        return self._positions_of(self.selected_event)

    def mark_between(self, one: int, other: int) -> None:
        """Let the range lie between two positions."""
        first, last = sorted((one, other))
        self.range = first, max(last, first + 1)

    def select_middle(self) -> None:
        """Select the event of the row in the middle of the window where none is selected."""
        if self.selected_event == NO_EVENT:
            middle = self._time_of(self.view.start_ns + self.view.span_ns // 2)
            self.select(self.timeline.rows[self.selected_row].event_at(middle))

    def deselect(self) -> None:
        """Select no event; where none is, no range."""
        if self.selected_event == NO_EVENT:
            self.range = None
        self.selected_event = NO_EVENT

    def columns_of(self, event: int) -> range:
        """Return the columns of the window that an event is in."""
        first, last = map(self.view.column_of, self._positions_of(event))
        return range(max(first, 0), min(max(last, first + 1), self.view.columns))

    def window_text(self) -> str:
        """Return what the window shows: its edges, the length of a cell, events, hits of the search."""
        view = self.view
        edges = self.axis.times(as_times(view.start_ns, view.end_ns)).tolist()
        in_view = sum(self.timeline.rows[number].count_between(*edges) for number in self.rows)
        first, last = self.axis.clock(as_times(view.start_ns, view.end_ns)).tolist()
        text = f"{units.format_ns(first)} to {units.format_ns(last)}"
        if self._fitted == "step" and self._window_name:
            text = f"{self._window_name}, {text}"
        text += f", {units.format_ns(view.ns_per_cell)} a cell, {plural(in_view, 'event')} start here"
        if self.pattern:
            position = f"{self._match_number() + 1} of " if len(self.matches) else ""
            text = f"/{self.pattern}: {position}{len(self.matches)} hits, {text}"
        return text

    def selection_text(self) -> str:
        """Describe the selection: range, row, event."""
        row = self.timeline.rows[self.selected_row].row
        clock = "measured" if row.track.measured else "modelled"
        head = f"{row.label} ({clock})"
        if self.range is not None:
            first, last = self.axis.clock(as_times(*self.range)).tolist()
            head = f"range {units.format_ns(last - first)} from {units.format_ns(first)}  {head}"
        if self.selected_event == NO_EVENT:
            return f"{head}  {plural(row.last - row.first, 'event')}, Tab selects"
        event = self.trace.event(self.selected_event)
        where = f"at {units.format_ns(self.start_on_axis)} for {units.format_ns(event.duration)}"
        run = f", run {event.execution}" if event.execution else ""
        return f"{head}  {event.action.name} {where}{run}"

    @property
    def start_on_axis(self) -> int:
        """Where the axis shows the start of the selected event; there is one."""
        start = self.trace.event(self.selected_event).start
        return int(self.axis.clock(self.axis.positions(as_times(start)))[0])

    def _match_number(self) -> int:
        """Return the place of the selected event, or of the last match before it, among the matches."""
        if self.selected_event == NO_EVENT:
            return -1
        return self.matches.place_of(self.selected_event, self.trace.event(self.selected_event).start)

    def _time_of(self, position: int) -> int:
        return int(self.axis.times(as_times(position))[0])

    def _positions_of(self, event: int) -> tuple[int, int]:
        """Return where an event is on the axis."""
        traced = self.trace.event(event)
        first, last = self.axis.positions(as_times(traced.start, traced.start + traced.duration)).tolist()
        return first, last

    def _use_axis(self, axis: Axis) -> None:
        self.axis = axis
        rows = self.rows
        if rows and self.selected_row not in rows:
            self.selected_row, self.selected_event = rows[0], NO_EVENT
        self._lay_out()

    def _lay_out(self) -> None:
        self.lines = line_contents(self.timeline.rows, self.rows, self._folded)

    def _fit(self, columns: int) -> None:
        everything = Viewport.fit(self.axis.total_ns, columns)
        window = steady_window(self.trace, self.axis) if self._fitted == "step" else None
        self._window_name = window.name if window else ""
        self.view = everything.over(window.first, window.last, _MARGIN) if window else everything
