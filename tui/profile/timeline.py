"""The timeline widget, one Line API widget: it draws rows of cells and turns keys and the mouse into changes of its state."""

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
from neurontools.base.text import printable
from neurontools.errors import NeuronToolsError
from neurontools.profiler.trace.rows import NO_EVENT
from neurontools.profiler.trace.timeline import busiest
from neurontools.tui.profile.page import PromptRequested
from neurontools.tui.profile.timeline_drawing import (
    GUTTER,
    PLAIN,
    Drawing,
    Heading,
    RowLine,
    axis_segments,
    blank_cells,
    fitting_height,
    height_of,
    label_segments,
    looks_of,
    row_lines,
)
from neurontools.tui.profile.timeline_state import ZOOM, TimelineState
from neurontools.tui.widgets.lines import Role, fixed
from neurontools.tui.widgets.requests import Prompt

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual import events

    from neurontools.profiler.analysis.dependencies import EventOrder
    from neurontools.profiler.trace.intervals import Int64s
    from neurontools.profiler.trace.timeline import Viewport
    from neurontools.profiler.trace.trace import Trace
    from neurontools.tui.widgets.theme import Theme

_AXIS_LINES = 1
_STATUS_LINES = 2
_GROUP = Style(dim=True, bold=True)


class TimelineView(Widget, can_focus=True):
    """Rows of a trace over time. On device time, rows on the wall clock are not shown."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,h", "change('pan', -1)", "earlier", key_display="←/h", show=False),
        Binding("right,l", "change('pan', 1)", "later", key_display="→/l", show=False),
        Binding("shift+left,pageup,H", "change('pan', -7)", "a screen earlier", key_display="⇧←", show=False),
        Binding("shift+right,pagedown,L", "change('pan', 7)", "a screen later", key_display="⇧→", show=False),
        Binding("up,k", "change('move_row', -1)", "row above", key_display="↑/k", show=False),
        Binding("down,j", "change('move_row', 1)", "row below", key_display="↓/j", show=False),
        Binding("plus,w,equals_sign", "change('zoom', 1)", "zoom in", key_display="+/w"),
        Binding("minus,s", "change('zoom', -1)", "zoom out", key_display="-/s", show=False),
        Binding("f", "change('fit')", "fit a step; again: everything", show=False),
        Binding("c", "clock", "device time or wall clock"),
        Binding("z", "change('fold')", "fold the engines, or on another row the core; unfold", show=False),
        Binding("Z", "change('fold_all')", "fold all cores; again: unfold", show=False),
        Binding("tab", "change('move_event', 1)", "next event", key_display="Tab"),
        Binding("shift+tab", "change('move_event', -1)", "previous event", key_display="⇧Tab", show=False),
        Binding("slash", "search", "search", key_display="/"),
        Binding("n", "match(1)", "next match", show=False),
        Binding("N", "match(-1)", "previous match", key_display="N", show=False),
        Binding("g", "go_to_time", "go to time"),
        Binding(
            "left_square_bracket",
            "change('mark_begin')",
            "begin a range at the event, or at the edge",
            key_display="[",
        ),
        Binding("right_square_bracket", "change('mark_end')", "end it; also shift and drag", key_display="]"),
        Binding(
            "comma,less_than_sign", "follow(-1)", "what the event waited for", key_display="<", show=False
        ),
        Binding("full_stop,greater_than_sign", "follow(1)", "what waits for it", key_display=">", show=False),
        Binding("p", "path", "the critical path of its program"),
        Binding("enter", "details", "details", key_display="⏎"),
        Binding("escape", "change('deselect')", "deselect", show=False),
    ]

    DEFAULT_CSS = "TimelineView { height: 1fr; width: 1fr; }"

    class DetailsRequested(Message):
        """The user asks for the details of the selected event."""

    class Changed(Message):
        """The window or the selection changed."""

    def __init__(self, trace: Trace, look: Theme, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self.state = TimelineState(trace)
        self.order: EventOrder | None = None
        self._has_path = False
        self._base: Style | None = None
        self._look = look
        self._looks = looks_of(trace, frozenset())
        self._scroll = 0
        self._drawing: Drawing | None = None
        self._pointed_out: list[tuple[int, int]] = []
        self._drawn: dict[RowLine, list[list[Segment]]] = {}
        self._lines: list[tuple[Heading | RowLine, int]] = []
        self._row_lines = 1
        self._blank = ""
        self._edges: Int64s = np.zeros(2, dtype=np.int64)
        self._times = self._edges
        self._drag: tuple[int, int, bool] | None = None
        self._dragged = False

    def restyle(self, look: Theme) -> None:
        """Draw in another theme."""
        self._look = look
        self._redraw()

    def on_resize(self) -> None:
        """Keep the window on the screen's new width."""
        self.state.resize(max(self.size.width - GUTTER, 1))
        self._changed()

    def show_search(self, pattern: str) -> int:
        """Select the first match of a regular expression at or after the window's start; return the number of matches.

        Raises:
            UsageError: invalid regular expression.
        """
        self.state.search(pattern)
        self._looks = looks_of(self.state.trace, self.state.timeline.matching_actions(pattern))
        self._changed()
        return len(self.state.matches)

    def action_change(self, action: str, *arguments: int) -> None:
        """Change the state by one of its methods, and draw it."""
        getattr(self.state, action)(*arguments)
        self._changed()

    def action_clock(self) -> None:
        """Change between device time and the wall clock, and keep the window."""
        if not self.state.change_clock():
            self.app.notify("the profile has no device times", severity="warning")
        self._changed()

    def action_match(self, step: int) -> None:
        """Select the next or previous match of the search."""
        if len(self.state.matches) == 0:
            self.app.bell()
            return
        self.state.move_match(step)
        self._changed()

    def action_search(self) -> None:
        """Ask for a regular expression, and select its first match."""
        prompt = Prompt("Search operations: regular expression, for example aten\\.mm")
        self.post_message(PromptRequested(prompt, lambda text: self._answer(self._search, text)))

    def action_go_to_time(self) -> None:
        """Ask for a time, and show it."""
        prompt = Prompt("Go to time: as on the axis, for example 1.5ms")
        self.post_message(PromptRequested(prompt, lambda text: self._answer(self._go_to, text)))

    def _answer(self, take: Callable[[str], None], text: str | None) -> None:
        try:
            if text:
                take(text)
        except NeuronToolsError as error:
            self.app.notify(error.message, severity="error", markup=False)

    def _search(self, pattern: str) -> None:
        if not self.show_search(pattern):
            self.app.notify(f"no operation matches {pattern}", severity="warning", markup=False)

    def _go_to(self, text: str) -> None:
        self.action_change("go_to", units.parse_duration_ns(text, needs_unit=True))

    def action_details(self) -> None:
        """Show the selected event, or select the one in the middle of the window."""
        self.state.select_middle()
        self._changed()
        self.post_message(self.DetailsRequested())

    def show_order(self, order: EventOrder | None) -> None:
        """Point out what the selected event waited for and what waits for it."""
        if order is not self.order:
            self.order = order
            self._redraw()

    def action_follow(self, step: int) -> None:
        """Select what the selected event waited for last, or what waits for it."""
        if self.order is None or not self.state.follow(self.order, step):
            self.app.bell()
            return
        self._changed()

    def action_path(self) -> None:
        """Let only the critical path be bright, or everything."""
        self._has_path = not self._has_path
        self._redraw()

    def on_click(self, event: events.Click) -> None:
        """Select the event under the pointer."""
        dragged, self._dragged = self._dragged, False
        y = event.y - self.gutter.top
        line = y - _AXIS_LINES + self._scroll
        column = event.x - self.gutter.left - GUTTER
        if dragged or not _AXIS_LINES <= y < self.size.height - _STATUS_LINES:
            return
        if not 0 <= line < len(self._lines):
            return
        content = self._lines[line][0]
        if isinstance(content, Heading):
            self.state.fold(content.key)
        elif column >= 0:
            self.state.select_at(content, column)
        elif content.folded is not None:
            self.state.fold(content.folded)
        else:
            return
        self._changed()

    def on_mouse_down(self, event: events.MouseDown) -> None:
        """Begin to drag: with shift a range, else the window."""
        self._dragged = False
        if event.button == 1:
            self._drag = event.x, self.state.view.start_ns, event.shift
            self.capture_mouse()

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Move the window with the pointer, or extend the range to it."""
        if self._drag is None or (event.x == self._drag[0] and not self._dragged):
            return
        self._dragged = True
        x, start, is_range = self._drag
        if is_range:
            self.action_change("mark_between", self._position_at(x), self._position_at(event.x))
        else:
            view = self.state.view
            self._show(view.at(start + int((x - event.x) * view.ns_per_cell)))

    def on_mouse_up(self) -> None:
        """End dragging."""
        if self._drag is not None:
            self._drag = None
            self.release_mouse()

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Zoom in at the pointer."""
        event.stop()
        self._show(self.state.view.zoomed(ZOOM, self._position_at(event.x)))

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Zoom out at the pointer."""
        event.stop()
        self._show(self.state.view.zoomed(1 / ZOOM, self._position_at(event.x)))

    def render_line(self, y: int) -> Strip:
        """Draw a line of the widget."""
        width, height = self.size
        state = self.state
        if y == 0:
            segments = axis_segments(state.axis, state.view, state.range)
        elif y >= height - _STATUS_LINES:
            text = state.window_text() if y == height - 1 else state.selection_text()
            segments = [Segment(printable(text)[:width], PLAIN)]
        else:
            segments, base = self._body(y - _AXIS_LINES + self._scroll), self._base_style()
            return Strip(segments).adjust_cell_length(width, base)
        # The terminal's own colour of text may be that of the theme's background.
        return Strip(segments).adjust_cell_length(width, PLAIN).apply_style(self._base_style())

    def notify_style_update(self) -> None:
        """Drop the known style after a change of theme."""
        super().notify_style_update()
        self._base = None
        self._redraw()

    def _base_style(self) -> Style:
        # Textual computes it anew for each line.
        if self._base is None:
            self._base = self.rich_style
        return self._base

    def _body(self, line: int) -> list[Segment]:
        if line >= len(self._lines):
            return []
        content, part = self._lines[line]
        if isinstance(content, Heading):
            return [Segment(content.title, self._base_style() + _GROUP)]
        if content not in self._drawn:
            self._drawn[content] = self._row(content)
        return self._drawn[content][part]

    def _row(self, line: RowLine) -> list[list[Segment]]:
        state = self.state
        cells, actions = busiest(state.rows_of(line), self._times, np.diff(self._edges))
        if self._drawing is None:
            self._drawing = self._new_drawing()
        # Events that are pointed out show even in cells that longer ones stand for.
        for event in (event for row, event in self._pointed_out if row in line.drawn):
            columns = state.columns_of(event)
            columns_of_event = slice(columns.start, max(columns.stop, columns.start))
            cells.event[columns_of_event] = event
            actions[columns_of_event] = state.timeline.action_of(event)
        lines = row_lines(self._drawing, cells, actions, height_of(line, self._row_lines))
        label = fixed(line.label, GUTTER - 2)
        texts = [" " * (GUTTER - 2)] * (len(lines) - 1) + [label]
        base, selected = self._base_style(), state.selected_row in line.rows
        return [
            [*label_segments(text, base, self._look, selected=selected), *cells_of_line]
            for text, cells_of_line in zip(texts, lines, strict=True)
        ]

    def _new_drawing(self) -> Drawing:
        links = () if self.order is None else (*self.order.earlier, *self.order.later)
        events = [*(link.event for link in links), self.state.selected_event]
        row_of = self.state.timeline.row_of
        self._pointed_out = [(row_of(event), event) for event in events if event != NO_EVENT]
        return Drawing(
            self.state.trace,
            self.state.selected_event,
            self._looks,
            marked=np.array([link.event for link in links], dtype=np.int64),
            path=self.order.path if self._has_path and self.order else None,
            blank=self._blank,
            colours=not self.app.no_color,
            base=self._base_style(),
            linked=Style(color=self._look.styles[Role.CURSOR].color),
            dark=self._look.dark,
        )

    def _redraw(self) -> None:
        self._drawing = None
        self._drawn.clear()
        self.refresh()

    def _position_at(self, x: int) -> int:
        view = self.state.view
        column = max(0, min(view.columns - 1, x - self.gutter.left - GUTTER))
        return view.start_ns + column * view.span_ns // view.columns

    def _show(self, view: Viewport) -> None:
        self.state.show(view)
        self._changed()

    def _changed(self) -> None:
        state = self.state
        self._edges = state.view.edges()
        self._times = state.axis.times(self._edges)
        self._blank = blank_cells(state.axis, state.view)
        self._lay_out()
        self._scroll_to_row()
        self._redraw()
        self.post_message(self.Changed())

    def _lay_out(self) -> None:
        """Give rows as many lines as fit."""
        contents = self.state.lines
        self._row_lines = fitting_height(contents, self.size.height - _AXIS_LINES - _STATUS_LINES)
        self._lines = [
            (content, part) for content in contents for part in range(height_of(content, self._row_lines))
        ]

    def _scroll_to_row(self) -> None:
        room = max(1, self.size.height - _AXIS_LINES - _STATUS_LINES)
        selected = self.state.selected_row
        rows = ((at, line) for at, (line, _) in enumerate(self._lines) if isinstance(line, RowLine))
        line = next((at for at, row in rows if selected in row.rows), 0)
        if line < self._scroll + 1:
            self._scroll = max(0, line - 1)
        elif line + self._row_lines > self._scroll + room:
            self._scroll = line + self._row_lines - room
        self._scroll = max(0, min(self._scroll, len(self._lines) - room))
