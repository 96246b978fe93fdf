"""The timeline widget, one Line API widget: it draws rows of cells, pans, zooms and selects events and stretches."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from neurontools.base import units
from neurontools.base.text import plural, printable
from neurontools.profiler.analysis.steady import steady_window
from neurontools.profiler.trace.axis import WallAxis, device_axis
from neurontools.profiler.trace.rows import NO_EVENT
from neurontools.profiler.trace.timeline import TraceTimeline, Viewport
from neurontools.tui.profile.timeline_drawing import (
    DIM,
    GUTTER,
    PLAIN,
    Drawing,
    as_times,
    axis_segments,
    blank_cells,
    label_of,
    line_contents,
    looks_of,
    row_lines,
    selected_label,
)
from neurontools.tui.widgets.lines import fixed

if TYPE_CHECKING:
    from textual import events

    from neurontools.profiler.trace.axis import Axis
    from neurontools.profiler.trace.intervals import Int64s
    from neurontools.profiler.trace.trace import Trace
    from neurontools.tui.widgets.theme import Theme

_AXIS_LINES = 1
_STATUS_LINES = 2
_ZOOM = 0.5
_PAN = 0.125
_MARGIN = 0.01
_AROUND = 1.5
_MOST_LINES_A_ROW = 5
_GROUP = Style(dim=True, bold=True)


class TimelineView(Widget, can_focus=True):
    """Rows of a trace over time. A row and one of its events may be selected; zooming keeps that event in place.

    The window is in positions on the axis: device time, or the wall clock. On device time, rows on the wall clock are
    not shown.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,h", "pan(-1)", "earlier", key_display="←/h", show=False),
        Binding("right,l", "pan(1)", "later", key_display="→/l", show=False),
        Binding("shift+left,pageup,H", "pan(-7)", "a screen earlier", key_display="⇧←", show=False),
        Binding("shift+right,pagedown,L", "pan(7)", "a screen later", key_display="⇧→", show=False),
        Binding("up,k", "row(-1)", "row above", key_display="↑/k", show=False),
        Binding("down,j", "row(1)", "row below", key_display="↓/j", show=False),
        Binding("plus,w,equals_sign", "zoom(1)", "zoom in", key_display="+/w"),
        Binding("minus,s", "zoom(-1)", "zoom out", key_display="-/s", show=False),
        Binding("f", "fit", "fit a step; again: everything", show=False),
        Binding("c", "clock", "device time or wall clock"),
        Binding("tab", "event(1)", "next event", key_display="Tab"),
        Binding("shift+tab", "event(-1)", "previous event", key_display="⇧Tab", show=False),
        Binding("slash", "ask('search')", "search", key_display="/"),
        Binding("n", "match(1)", "next match", show=False),
        Binding("N", "match(-1)", "previous match", key_display="N", show=False),
        Binding("g", "ask('time')", "go to time"),
        Binding(
            "left_square_bracket", "mark(0)", "begin a range at the event, or at the edge", key_display="["
        ),
        Binding("right_square_bracket", "mark(1)", "end it; also shift and drag", key_display="]"),
        Binding("enter", "details", "details", key_display="⏎"),
        Binding("escape", "deselect", "deselect", show=False),
    ]

    DEFAULT_CSS = "TimelineView { height: 1fr; width: 1fr; }"

    class Asked(Message):
        """The user asks for a prompt: `what` is search or time."""

        def __init__(self, what: str) -> None:
            super().__init__()
            self.what = what

    class DetailsRequested(Message):
        """The user asks for the details of an event."""

        def __init__(self, event: int) -> None:
            super().__init__()
            self.event = event

    class Changed(Message):
        """The window or what is selected changed."""

    def __init__(self, trace: Trace, look: Theme, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self._base: Style | None = None
        self._look = look
        self.timeline = TraceTimeline(trace)
        self.wall_axis = WallAxis(self.timeline.total_ns)
        self.device_axis = device_axis(trace)
        self.axis: Axis = self.device_axis or self.wall_axis
        self.view = Viewport.fit(self.axis.total_ns, 1)
        self.selected_row = 0
        self.selected_event = NO_EVENT
        self.marked: frozenset[int] = frozenset()
        self.range: tuple[int, int] | None = None
        self.pattern = ""
        self.matches = self.timeline.search("(?!)")
        self._looks = looks_of(trace, frozenset())
        self._scroll = 0
        self._fitted = "step"
        self._window_name = ""
        self._drawn: dict[int, list[list[Segment]]] = {}
        self._lines: list[tuple[str | int, int]] = []
        self._row_lines = 1
        self._blank = ""
        self._edges: Int64s = np.zeros(2, dtype=np.int64)
        self._times = self._edges
        self._drag: tuple[int, int, bool] | None = None
        self._dragged = False
        self._use_axis(self.axis)

    @property
    def trace(self) -> Trace:
        """The events."""
        return self.timeline.trace

    @property
    def range_ns(self) -> tuple[int, int]:
        """The selected stretch in times of the trace, else that of the window."""
        first, last = self.range or (self.view.start_ns, self.view.end_ns)
        found = self.axis.times(as_times(first, last)).tolist()
        return found[0], found[1]

    def restyle(self, look: Theme) -> None:
        """Draw in another theme."""
        self._look = look
        self._drawn.clear()
        self.refresh()

    def on_resize(self) -> None:
        """Keep the window on the screen's new width."""
        columns = max(self.size.width - GUTTER, 1)
        if self._fitted:
            self._fit(columns)
        else:
            self.view = self.view.resized(columns)
        self._changed()

    def show_search(self, pattern: str) -> int:
        """Select the first match of a regular expression at or after the window's start; return the number of matches.

        Raises:
            UsageError: invalid regular expression.
        """
        self.matches = self.timeline.search(pattern)
        self.pattern = pattern
        self._looks = looks_of(self.trace, self.timeline.matching_actions(pattern))
        if len(self.matches):
            start = self._time_of(self.view.start_ns)
            first = int((self.matches.start < start).sum()) % len(self.matches)
            self.select(int(self.matches.events[first]))
        else:
            self._changed()
        return len(self.matches)

    def go_to(self, time_ns: int) -> None:
        """Put a time that the axis shows in the middle of the window."""
        position = int(self.axis.at_clock(as_times(time_ns))[0])
        self._show(self.view.centred(position))

    def select(self, event: int) -> None:
        """Select an event and its row, and move the window to it where needed."""
        self.selected_event = event
        self.selected_row = self.timeline.row_of(event)
        if self.axis.is_device and self.timeline.rows[self.selected_row].row.track.measured:
            self.action_clock()
        first, last = self._positions_of(event)
        self._show(self.view.showing(first, last - first))

    def show_closely(self, event: int) -> None:
        """Select an event and show it in the middle, a few times as wide."""
        self.select(event)
        first, last = self._positions_of(event)
        self._show(self.view.over(first, max(last, first + 1), _AROUND))

    def action_clock(self) -> None:
        """Change between device time and the wall clock, and keep what is shown in view."""
        other = self.wall_axis if self.axis.is_device else self.device_axis
        if other is None:
            self.app.notify("the profile has no device times", severity="warning")
            return
        first, last = self.axis.times(as_times(self.view.start_ns, self.view.end_ns)).tolist()
        chosen = None if self.range is None else self.range_ns
        self._use_axis(other)
        self.view = Viewport.fit(other.total_ns, self.view.columns)
        if chosen:
            begin, end = other.positions(as_times(*chosen)).tolist()
            self.range = begin, end
        if self._fitted:
            self._fit(self.view.columns)
            self._changed()
        else:
            begin, end = other.positions(as_times(first, last)).tolist()
            self._show(self.view.over(begin, end, 0))

    def action_pan(self, steps: int) -> None:
        """Move the window by eighths of its length."""
        self._show(self.view.panned(steps * _PAN))

    def action_zoom(self, direction: int) -> None:
        """Halve or double the window around the selected event, else around its middle."""
        at = self.view.start_ns + self.view.span_ns // 2
        if self.selected_event != NO_EVENT:
            first, last = self._positions_of(self.selected_event)
            middle = (first + last) // 2
            if self.view.start_ns <= middle <= self.view.end_ns:
                at = middle
        self._show(self.view.zoomed(_ZOOM if direction > 0 else 1 / _ZOOM, at))

    def action_fit(self) -> None:
        """Show one step; where that is shown already, everything."""
        before = self.view
        self._fitted = "step"
        self._fit(self.view.columns)
        if self.view == before:
            self._fitted = "all"
            self._fit(self.view.columns)
        self._changed()

    def action_row(self, step: int) -> None:
        """Select the row above or below."""
        shown = self._shown()
        at = shown.index(self.selected_row) if self.selected_row in shown else 0
        self.selected_row = shown[max(0, min(len(shown) - 1, at + step))]
        self.selected_event = NO_EVENT
        self._changed()

    def action_event(self, step: int) -> None:
        """Select the next or previous event of the row; the first one from the window's start when none is."""
        row = self.timeline.rows[self.selected_row]
        event = self.selected_event + step
        if self.selected_event == NO_EVENT:
            event = row.event_at(self._time_of(self.view.start_ns))
        self.select(max(row.row.first, min(row.row.last - 1, event)))

    def action_match(self, step: int) -> None:
        """Select the next or previous match of the search."""
        if len(self.matches) == 0:
            self.app.bell()
            return
        self.select(int(self.matches.events[(self._match_number() + step) % len(self.matches)]))

    def action_mark(self, end: int) -> None:
        """Begin or end the range at the selected event, else at the edge of the window."""
        at = (self.view.start_ns, self.view.end_ns)
        if self.selected_event != NO_EVENT:
            at = self._positions_of(self.selected_event)
        first, last = self.range or (self.view.start_ns, self.view.end_ns)
        first, last = (first, at[1]) if end else (at[0], last)
        self.range = (first, max(last, first + 1)) if end else (min(first, last - 1), last)
        if first >= last:
            self.range = (at[0], max(at[1], at[0] + 1))
        self._changed()

    def action_ask(self, what: str) -> None:
        """Ask the user for a search expression or a time."""
        self.post_message(self.Asked(what))

    def action_details(self) -> None:
        """Show the selected event, or select the one in the middle of the window."""
        if self.selected_event == NO_EVENT:
            middle = self._time_of(self.view.start_ns + self.view.span_ns // 2)
            self.select(self.timeline.rows[self.selected_row].event_at(middle))
        self.post_message(self.DetailsRequested(self.selected_event))

    def action_deselect(self) -> None:
        """Select no event; where none is, no range."""
        if self.selected_event == NO_EVENT:
            self.range = None
        self.selected_event = NO_EVENT
        self._changed()

    def mark_events(self, events: frozenset[int]) -> None:
        """Point out events, such as those that the selected one depends on."""
        if events != self.marked:
            self.marked = events
            self._drawn.clear()
            self.refresh()

    def on_click(self, event: events.Click) -> None:
        """Select the event under the pointer."""
        dragged, self._dragged = self._dragged, False
        y = event.y - self.gutter.top
        line = y - _AXIS_LINES + self._scroll
        column = event.x - self.gutter.left - GUTTER
        if dragged or not _AXIS_LINES <= y < self.size.height - _STATUS_LINES:
            return
        if not 0 <= line < len(self._lines) or column < 0:
            return
        content = self._lines[line][0]
        if isinstance(content, str):
            return
        self.selected_row = content
        cells = self.timeline.rows[content].cells(self._times, np.diff(self._edges))
        self.selected_event = int(cells.event[min(column, self.view.columns - 1)])
        self._changed()

    def on_mouse_down(self, event: events.MouseDown) -> None:
        """Begin to drag: with shift a range, else the window."""
        self._dragged = False
        if event.button == 1:
            self._drag = event.x, self.view.start_ns, event.shift
            self.capture_mouse()

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Move the window with the pointer, or extend the range to it."""
        if self._drag is None or (event.x == self._drag[0] and not self._dragged):
            return
        self._dragged = True
        x, start, is_range = self._drag
        if is_range:
            first, last = sorted((self._position_at(x), self._position_at(event.x)))
            self.range = first, max(last, first + 1)
            self._changed()
        else:
            self._show(self.view.at(start + int((x - event.x) * self.view.ns_per_cell)))

    def on_mouse_up(self) -> None:
        """End dragging."""
        if self._drag is not None:
            self._drag = None
            self.release_mouse()

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Zoom in at the pointer."""
        event.stop()
        self._show(self.view.zoomed(_ZOOM, self._position_at(event.x)))

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Zoom out at the pointer."""
        event.stop()
        self._show(self.view.zoomed(1 / _ZOOM, self._position_at(event.x)))

    def render_line(self, y: int) -> Strip:
        """Draw a line of the widget."""
        width, height = self.size
        if y == 0:
            segments = axis_segments(self.axis, self.view, self.range)
        elif y >= height - _STATUS_LINES:
            text = self._window_text() if y == height - 1 else self._selection()
            segments = [Segment(printable(text)[:width], PLAIN)]
        else:
            segments = self._body(y - _AXIS_LINES + self._scroll)
        # The terminal's own colour of text may be that of the theme's background.
        return Strip(segments).adjust_cell_length(width, PLAIN).apply_style(self._base_style())

    def notify_style_update(self) -> None:
        """Drop the known style after a change of theme."""
        super().notify_style_update()
        self._base = None

    def _base_style(self) -> Style:
        # Textual computes it anew for each line.
        if self._base is None:
            self._base = self.rich_style
        return self._base

    def _body(self, line: int) -> list[Segment]:
        if line >= len(self._lines):
            return []
        shown, part = self._lines[line]
        if isinstance(shown, str):
            return [Segment(shown, _GROUP)]
        if shown not in self._drawn:
            self._drawn[shown] = self._row(shown)
        return self._drawn[shown][part]

    def _row(self, number: int) -> list[list[Segment]]:
        row = self.timeline.rows[number]
        cells = row.cells(self._times, np.diff(self._edges))
        colours = not self.app.no_color
        drawing = Drawing(self.trace, self.selected_event, self._looks, self.marked, self._blank, colours)
        lines = row_lines(drawing, row.row, cells, self._row_lines)
        label = fixed(row.row.name, GUTTER - 2)
        texts = [" " * (GUTTER - 2)] * (len(lines) - 1) + [label]
        edge = Segment("│", DIM)
        return [
            [
                *(selected_label(text, self._look) if number == self.selected_row else label_of(text)),
                edge,
                *line,
            ]
            for text, line in zip(texts, lines, strict=True)
        ]

    def _window_text(self) -> str:
        view = self.view
        edges = self._times[[0, -1]]
        in_view = sum(self.timeline.rows[number].count_between(*edges.tolist()) for number in self._shown())
        first, last = self.axis.clock(as_times(view.start_ns, view.end_ns)).tolist()
        shown = f"{units.format_ns(first)} to {units.format_ns(last)}"
        if self._fitted == "step" and self._window_name:
            shown = f"{self._window_name}, {shown}"
        shown += f", {units.format_ns(view.ns_per_cell)} a cell, {plural(in_view, 'event')} start here"
        if self.pattern:
            position = f"{self._match_number() + 1} of " if len(self.matches) else ""
            shown += f"  /{self.pattern}: {position}{len(self.matches)} hits"
        return shown

    def _selection(self) -> str:
        row = self.timeline.rows[self.selected_row].row
        clock = "measured" if row.track.measured else "modelled"
        head = f"{row.label} ({clock})"
        if self.range is not None:
            first, last = self.axis.clock(as_times(*self.range)).tolist()
            head = f"range {units.format_ns(last - first)} from {units.format_ns(first)}  {head}"
        if self.selected_event == NO_EVENT:
            return f"{head}  {plural(row.last - row.first, 'event')}, Tab selects"
        event = self.trace.event(self.selected_event)
        start = int(self.axis.clock(self.axis.positions(as_times(event.start)))[0])
        place = f"at {units.format_ns(start)} for {units.format_ns(event.duration)}"
        run = f", run {event.execution}" if event.execution else ""
        return f"{head}  {event.action.name} {place}{run}"

    def _match_number(self) -> int:
        """Return the place of the selected event, or of the last match before it, among the matches."""
        if self.selected_event == NO_EVENT:
            return -1
        return self.matches.place_of(self.selected_event, self.trace.event(self.selected_event).start)

    def _position_at(self, x: int) -> int:
        column = max(0, min(self.view.columns - 1, x - self.gutter.left - GUTTER))
        return self.view.start_ns + column * self.view.span_ns // self.view.columns

    def _time_of(self, position: int) -> int:
        return int(self.axis.times(as_times(position))[0])

    def _positions_of(self, event: int) -> tuple[int, int]:
        """Return where an event is on the axis."""
        found = self.trace.event(event)
        first, last = self.axis.positions(as_times(found.start, found.start + found.duration)).tolist()
        return first, last

    def _shown(self) -> list[int]:
        """Return the rows of the axis, by index."""
        rows = enumerate(self.timeline.rows)
        return [number for number, row in rows if not (self.axis.is_device and row.row.track.measured)]

    def _use_axis(self, axis: Axis) -> None:
        self.axis = axis
        shown = self._shown()
        if shown and self.selected_row not in shown:
            self.selected_row, self.selected_event = shown[0], NO_EVENT

    def _fit(self, columns: int) -> None:
        everything = Viewport.fit(self.axis.total_ns, columns)
        window = steady_window(self.trace, self.axis) if self._fitted == "step" else None
        self._window_name = window.name if window else ""
        self.view = everything.over(window.first, window.last, _MARGIN) if window else everything

    def _show(self, view: Viewport) -> None:
        self.view = view
        self._fitted = ""
        self._changed()

    def _changed(self) -> None:
        self._drawn.clear()
        self._edges = self.view.edges()
        self._times = self.axis.times(self._edges)
        self._blank = blank_cells(self.axis, self.view)
        self._lay_out()
        self._scroll_to_row()
        self.refresh()
        self.post_message(self.Changed())

    def _lay_out(self) -> None:
        """Give rows as many lines as fit."""
        contents = line_contents(self.timeline.rows, self._shown())
        rows = sum(isinstance(content, int) for content in contents)
        room = self.size.height - _AXIS_LINES - _STATUS_LINES - (len(contents) - rows)
        self._row_lines = max(1, min(_MOST_LINES_A_ROW, room // max(rows, 1)))
        self._lines = [
            (content, part)
            for content in contents
            for part in range(1 if isinstance(content, str) else self._row_lines)
        ]

    def _scroll_to_row(self) -> None:
        room = max(1, self.size.height - _AXIS_LINES - _STATUS_LINES)
        line = next((at for at, content in enumerate(self._lines) if content[0] == self.selected_row), 0)
        if line < self._scroll + 1:
            self._scroll = max(0, line - 1)
        elif line + self._row_lines > self._scroll + room:
            self._scroll = line + self._row_lines - room
        self._scroll = max(0, min(self._scroll, len(self._lines) - 1))
