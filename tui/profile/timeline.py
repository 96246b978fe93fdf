"""The timeline widget, one Line API widget: it draws rows of cells, pans, zooms and selects events."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from neurontools.base import units
from neurontools.base.text import printable
from neurontools.profiler.capture.format import NO_CORE
from neurontools.profiler.trace.rows import NO_EVENT
from neurontools.profiler.trace.timeline import EIGHTHS, TraceTimeline, Viewport, format_tick, tick_step
from neurontools.tui.widgets.lines import BLOCKS

if TYPE_CHECKING:
    from textual import events

    from neurontools.profiler.trace.timeline import Cells, TimelineRow
    from neurontools.profiler.trace.trace import Trace, TraceRow

_EIGHTHS = f" {BLOCKS}"
PLAIN = Style()
_SELECTED_BLOCK = Style(reverse=True, bold=True)
_SELECTED_NAME = Style(bold=True, underline=True)
_NAME_CELLS = 4
_COLOURS = (
    "#4e9bd6",
    "#d98b4a",
    "#5fb06a",
    "#d6707a",
    "#a58ad0",
    "#b5976a",
    "#d88fc0",
    "#9aa5ad",
    "#b9bd4f",
    "#4fbcc4",
    "#7f9be8",
    "#e0a95f",
)
_BLOCK_STYLES = tuple(Style(color=colour) for colour in _COLOURS)
_NAME_STYLES = tuple(Style(color="#101418", bgcolor=colour) for colour in _COLOURS)
_FOUND = Style(underline=True, bold=True)
_MONOCHROME = Style(reverse=True)

GUTTER = 14
_AXIS_LINES = 1
_STATUS_LINES = 2
_TICK_CELLS = 12
_ZOOM = 0.5
_PAN = 0.125
_GROUP = Style(dim=True, bold=True)
_AXIS = Style(dim=True)
_LABEL = Style()
_CURSOR = Style(bold=True, reverse=True)


def row_segments(
    trace: Trace, row: TraceRow, cells: Cells, selected: int, found: frozenset[int], *, colours: bool
) -> list[Segment]:
    """Return a row's cells; consecutive cells of one event are one segment.

    Args:
        trace: the events.
        row: whose cells they are.
        cells: the contents.
        selected: number of the selected event, or NO_EVENT.
        found: numbers of the actions that a search found.
        colours: whether operations get colours.
    """
    eighths, events = cells.eighths.tolist(), cells.event.tolist()
    actions = row.events.at(np.maximum(cells.event - row.first, 0)).action.tolist()
    segments: list[Segment] = []
    first = 0
    for column in range(1, len(events) + 1):
        if column < len(events) and events[column] == events[first]:
            continue
        action = NO_EVENT if events[first] == NO_EVENT else actions[first]
        segments += _run(
            trace, action, eighths[first:column], found, selected=events[first] == selected, colours=colours
        )
        first = column
    return segments


def _run(
    trace: Trace, action: int, eighths: list[int], found: frozenset[int], *, selected: bool, colours: bool
) -> list[Segment]:
    if action == NO_EVENT:
        return [Segment(" " * len(eighths), PLAIN)]
    name = trace.actions[action].name
    block, named = _styles(name, selected=selected, found=action in found, colours=colours)
    full = _full_stretch(eighths)
    if full is None:
        return [Segment("".join(_EIGHTHS[share] for share in eighths), block)]
    first, last = full
    short = printable(name.removeprefix("aten.").removesuffix(".default"))
    text = short[: last - first].ljust(last - first)
    return [
        Segment("".join(_EIGHTHS[share] for share in eighths[:first]), block),
        Segment(text, named),
        Segment("".join(_EIGHTHS[share] for share in eighths[last:]), block),
    ]


def _styles(name: str, *, selected: bool, found: bool, colours: bool) -> tuple[Style, Style]:
    """Return the style of blocks and of names."""
    colour = zlib.crc32(name.encode("utf-8", "replace")) % len(_COLOURS)
    block = _BLOCK_STYLES[colour] if colours else PLAIN
    named = _NAME_STYLES[colour] if colours else _MONOCHROME
    if selected:
        return block + _SELECTED_BLOCK, named + _SELECTED_NAME
    return (block + _FOUND, named + _FOUND) if found else (block, named)


def _full_stretch(eighths: list[int]) -> tuple[int, int] | None:
    """Return the first stretch of fully busy cells that has room for a name."""
    first = 0
    while first < len(eighths) and eighths[first] != EIGHTHS:
        first += 1
    last = first
    while last < len(eighths) and eighths[last] == EIGHTHS:
        last += 1
    return (first, last) if last - first >= _NAME_CELLS else None


class TimelineView(Widget, can_focus=True):
    """Rows of a trace over time. A row and one of its events may be selected; zooming keeps that event in place."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,h", "pan(-1)", "earlier", key_display="←/h", show=False),
        Binding("right,l", "pan(1)", "later", key_display="→/l", show=False),
        Binding("shift+left,pageup,H", "pan(-7)", "a screen earlier", key_display="⇧←", show=False),
        Binding("shift+right,pagedown,L", "pan(7)", "a screen later", key_display="⇧→", show=False),
        Binding("up,k", "row(-1)", "row above", key_display="↑/k", show=False),
        Binding("down,j", "row(1)", "row below", key_display="↓/j", show=False),
        Binding("plus,w,equals_sign", "zoom(1)", "zoom in", key_display="+/w"),
        Binding("minus,s", "zoom(-1)", "zoom out", key_display="-/s", show=False),
        Binding("f", "fit", "fit", show=False),
        Binding("tab", "event(1)", "next event", key_display="Tab"),
        Binding("shift+tab", "event(-1)", "previous event", key_display="⇧Tab", show=False),
        Binding("slash", "ask('search')", "search", key_display="/"),
        Binding("n", "match(1)", "next match", show=False),
        Binding("N", "match(-1)", "previous match", key_display="N", show=False),
        Binding("g", "ask('time')", "go to time"),
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

    def __init__(self, trace: Trace, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self.timeline = TraceTimeline(trace)
        self.view = Viewport.fit(self.timeline.total_ns, 1)
        self.selected_row = 0
        self.selected_event = NO_EVENT
        self.pattern = ""
        self.matches = self.timeline.search("(?!)")
        self._found: frozenset[int] = frozenset()
        self._scroll = 0
        self._fitted = True
        self._lines = _lines(self.timeline)
        self._drawn: dict[int, list[Segment]] = {}
        self._colours = True

    @property
    def trace(self) -> Trace:
        """The events."""
        return self.timeline.trace

    def on_mount(self) -> None:
        """Use the colours of the terminal."""
        self._colours = not self.app.no_color

    def on_resize(self, event: events.Resize) -> None:
        """Keep the window on the screen's new width."""
        columns = max(event.size.width - GUTTER, 1)
        self.view = (
            Viewport.fit(self.timeline.total_ns, columns) if self._fitted else self.view.resized(columns)
        )
        self._changed()

    def show_search(self, pattern: str) -> int:
        """Select the first match of a regular expression at or after the window's start; return the number of matches.

        Raises:
            UsageError: invalid regular expression.
        """
        self.matches = self.timeline.search(pattern)
        self.pattern = pattern
        self._found = self.timeline.matching_actions(pattern)
        if len(self.matches):
            first = int((self.matches.start < self.view.start_ns).sum()) % len(self.matches)
            self.select(int(self.matches.events[first]))
        else:
            self._changed()
        return len(self.matches)

    def go_to(self, time_ns: int) -> None:
        """Put a time (nanoseconds since the first event) in the middle of the window."""
        self._show(self.view.centred(time_ns))

    def select(self, event: int) -> None:
        """Select an event and its row, and move the window to it where needed."""
        self.selected_event = event
        self.selected_row = self.timeline.row_of(event)
        found = self.trace.event(event)
        self._show(self.view.showing(found.start, found.duration))

    def action_pan(self, steps: int) -> None:
        """Move the window by eighths of its length."""
        self._show(self.view.panned(steps * _PAN))

    def action_zoom(self, direction: int) -> None:
        """Halve or double the window around the selected event, else around its middle."""
        at_ns = self.view.start_ns + self.view.span_ns // 2
        if self.selected_event != NO_EVENT:
            selected = self.trace.event(self.selected_event)
            middle = selected.start + selected.duration // 2
            if self.view.start_ns <= middle <= self.view.end_ns:
                at_ns = middle
        self._show(self.view.zoomed(_ZOOM if direction > 0 else 1 / _ZOOM, at_ns))

    def action_fit(self) -> None:
        """Show everything."""
        self._show(Viewport.fit(self.timeline.total_ns, self.view.columns))
        self._fitted = True

    def action_row(self, step: int) -> None:
        """Select the row above or below."""
        self.selected_row = max(0, min(len(self.timeline.rows) - 1, self.selected_row + step))
        self.selected_event = NO_EVENT
        self._changed()

    def action_event(self, step: int) -> None:
        """Select the next or previous event of the row; the first one from the window's start when none is."""
        row = self.timeline.rows[self.selected_row]
        event = self.selected_event + step
        if self.selected_event == NO_EVENT:
            event = row.event_at(self.view.start_ns)
        self.select(max(row.row.first, min(row.row.last - 1, event)))

    def action_match(self, step: int) -> None:
        """Select the next or previous match of the search."""
        if len(self.matches) == 0:
            self.app.bell()
            return
        self.select(int(self.matches.events[(self._match_number() + step) % len(self.matches)]))

    def action_ask(self, what: str) -> None:
        """Ask the user for a search expression or a time."""
        self.post_message(self.Asked(what))

    def action_details(self) -> None:
        """Show the selected event, or select the one in the middle of the window."""
        if self.selected_event == NO_EVENT:
            middle = self.view.start_ns + self.view.span_ns // 2
            self.select(self.timeline.rows[self.selected_row].event_at(middle))
        self.post_message(self.DetailsRequested(self.selected_event))

    def action_deselect(self) -> None:
        """Select no event."""
        self.selected_event = NO_EVENT
        self._changed()

    def on_click(self, event: events.Click) -> None:
        """Select the event under the pointer."""
        line = event.y - _AXIS_LINES + self._scroll
        column = event.x - GUTTER
        if not 0 <= line < len(self._lines) or isinstance(self._lines[line], str) or column < 0:
            return
        self.selected_row = self._lines[line]  # type: ignore[assignment]
        edges = self.view.edges()
        found = int(
            self.timeline.rows[self.selected_row].cells(edges).event[min(column, self.view.columns - 1)]
        )
        self.selected_event = found
        self._changed()

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Zoom in at the pointer."""
        event.stop()
        self._show(self.view.zoomed(_ZOOM, self._time_at(event.x)))

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Zoom out at the pointer."""
        event.stop()
        self._show(self.view.zoomed(1 / _ZOOM, self._time_at(event.x)))

    def render_line(self, y: int) -> Strip:
        """Draw a line of the widget."""
        width, height = self.size
        if y == 0:
            segments = self._axis()
        elif y >= height - _STATUS_LINES:
            text = self._status()[y - (height - _STATUS_LINES)]
            segments = [Segment(printable(text)[:width], PLAIN)]
        else:
            segments = self._body(y - _AXIS_LINES + self._scroll)
        # The terminal's own colour of text may be that of the theme's background.
        return Strip(segments).adjust_cell_length(width, PLAIN).apply_style(self.rich_style)

    def _body(self, line: int) -> list[Segment]:
        if line >= len(self._lines):
            return []
        shown = self._lines[line]
        if isinstance(shown, str):
            return [Segment(shown, _GROUP)]
        if shown not in self._drawn:
            self._drawn[shown] = self._row(shown)
        return self._drawn[shown]

    def _row(self, number: int) -> list[Segment]:
        row = self.timeline.rows[number]
        style = _CURSOR if number == self.selected_row else _LABEL
        label = Segment(printable(f" {row.row.name}")[: GUTTER - 1].ljust(GUTTER - 1), style)
        cells = row.cells(self.view.edges())
        segments = row_segments(
            self.trace, row.row, cells, self.selected_event, self._found, colours=self._colours
        )
        return [label, Segment("│", _AXIS), *segments]

    def _axis(self) -> list[Segment]:
        view = self.view
        step = tick_step(view.span_ns, view.columns // _TICK_CELLS)
        text = [" "] * view.columns
        free = 0
        for time_ns in range(-(-view.start_ns // step) * step, view.end_ns, step):
            mark = "╵" + format_tick(time_ns, step)
            column = view.column_of(time_ns)
            if free <= column <= view.columns - len(mark):
                text[column : column + len(mark)] = mark
                free = column + len(mark) + 1
        return [Segment("time".ljust(GUTTER), _AXIS), Segment("".join(text), _AXIS)]

    def _status(self) -> tuple[str, str]:
        view = self.view
        in_view = sum(row.count_between(view.start_ns, view.end_ns) for row in self.timeline.rows)
        second = (
            f"{units.format_ns(view.start_ns)} to {units.format_ns(view.end_ns)}, "
            f"{units.format_ns(view.ns_per_cell)} a cell, {in_view} events start here"
        )
        if self.pattern:
            position = f"{self._match_number() + 1} of " if len(self.matches) else ""
            second += f"  /{self.pattern}: {position}{len(self.matches)} hits"
        return self._selection(), second

    def _selection(self) -> str:
        row = self.timeline.rows[self.selected_row].row
        clock = "measured" if row.track.measured else "modelled"
        head = f"{row.label} ({clock})"
        if self.selected_event == NO_EVENT:
            return f"{head}  {row.last - row.first} events, Tab selects"
        event = self.trace.event(self.selected_event)
        place = f"at {units.format_ns(event.start)} for {units.format_ns(event.duration)}"
        run = f", run {event.execution}" if event.execution else ""
        return f"{head}  {event.action.name} {place}{run}"

    def _match_number(self) -> int:
        """Return the place of the selected event, or of the last match before it, among the matches."""
        if self.selected_event == NO_EVENT:
            return -1
        starts, events = self.matches.start, self.matches.events
        at = int((starts < self.trace.event(self.selected_event).start).sum())
        while at < len(events) - 1 and starts[at] == starts[at + 1] and events[at] != self.selected_event:
            at += 1
        return at

    def _time_at(self, x: int) -> int:
        column = max(0, min(self.view.columns - 1, x - GUTTER))
        return self.view.start_ns + column * self.view.span_ns // self.view.columns

    def _show(self, view: Viewport) -> None:
        self.view = view
        self._fitted = False
        self._changed()

    def _changed(self) -> None:
        self._drawn.clear()
        self._scroll_to_row()
        self.refresh()

    def _scroll_to_row(self) -> None:
        room = max(1, self.size.height - _AXIS_LINES - _STATUS_LINES)
        line = self._lines.index(self.selected_row)
        if line < self._scroll + 1:
            self._scroll = max(0, line - 1)
        elif line >= self._scroll + room:
            self._scroll = line - room + 1


def _lines(timeline: TraceTimeline) -> list[str | int]:
    """Return what the lines show: a heading, or a row by its index."""
    lines: list[str | int] = []
    known: tuple[int, int, bool] | None = None
    for number, row in enumerate(timeline.rows):
        key = (row.row.process, row.row.nc, row.row.track.measured)
        if key != known:
            known = key
            lines.append(_heading(row))
        lines.append(number)
    return lines


def _heading(row: TimelineRow) -> str:
    clock = "wall clock, measured" if row.row.track.measured else "device clock, modelled"
    core = "" if row.row.nc == NO_CORE else f" NC{row.row.nc}"
    return f"{row.row.process_label}{core}: {clock}"
