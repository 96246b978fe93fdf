"""The page that compares a second profile with the first: steps, and slower, faster, new and missing operators."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np
from rich.segment import Segment
from textual.binding import Binding
from textual.strip import Strip
from textual.widget import Widget

from neurontools.base import units
from neurontools.base.text import plural
from neurontools.profiler.analysis.compare import COMPARED, ChangeKind, compare
from neurontools.profiler.analysis.steady import steady_execution, steady_window
from neurontools.profiler.capture.format import DEVICE_TRACKS
from neurontools.profiler.trace.axis import WallAxis, device_axis
from neurontools.profiler.trace.rows import NO_EVENT
from neurontools.profiler.trace.timeline import Cells, TimelineRow, Viewport
from neurontools.tui.profile.page import ProfileGroupsPage, short_name
from neurontools.tui.profile.timeline_drawing import (
    DIM,
    PLAIN,
    Drawing,
    axis_text,
    blank_cells,
    looks_of,
    row_lines,
)
from neurontools.tui.profile.timeline_state import ZOOM
from neurontools.tui.widgets.frames import chrome_lines, framed, inner_width, is_boxed
from neurontools.tui.widgets.line_pane import LinePane
from neurontools.tui.widgets.lines import Role, fit, wrapped
from neurontools.tui.widgets.table_lines import TableColumn, TableLayout

if TYPE_CHECKING:
    from textual import events
    from textual.app import ComposeResult
    from textual.binding import BindingType

    from neurontools.profiler.analysis.compare import GroupChange, ProfileComparison, TimeChange
    from neurontools.profiler.analysis.steady import Window
    from neurontools.profiler.capture.format import Track
    from neurontools.profiler.trace.axis import DeviceAxis
    from neurontools.profiler.trace.intervals import Int64s
    from neurontools.profiler.trace.trace import Trace
    from neurontools.tui.widgets.lines import Line, Span
    from neurontools.tui.widgets.theme import Theme


_GUTTER = 17
_PAN = 0.125
_MOST_LINES_A_ROW = 3
_NAMES = ("before", "after")


class StepRows(NamedTuple):
    """A steady step of a worker, and the rows of the core that works most."""

    trace: Trace
    axis: DeviceAxis
    window: Window
    rows: dict[Track, TimelineRow]
    looks: Int64s

    @property
    def length_ns(self) -> int:
        """How long the step is on the axis."""
        return self.window.last - self.window.first

    def cells(self, track: Track, view: Viewport) -> Cells | None:
        """Return the cells of a track in a window that starts at the step's start, None without such a row."""
        if track not in self.rows:
            return None
        edges = view.edges()
        positions = np.minimum(edges, self.length_ns) + self.window.first
        cells = self.rows[track].cells(self.axis.times(positions), np.diff(edges))
        event = np.where(edges[:-1] < self.length_ns, cells.event, NO_EVENT)
        return replace(cells, event=event)


def step_rows(trace: Trace) -> StepRows | None:
    """Return a steady step, None for a trace without modelled executions."""
    execution = steady_execution(trace)
    if execution is None:
        return None
    runs, _ = execution
    # The step of this worker alone: its rows are all that is shown.
    own = trace.with_rows(
        [row for row in trace.rows if row.process == runs.process],
        [each for each in trace.runs if each.process == runs.process],
    )
    axis = device_axis(own)
    window = steady_window(own, axis) if axis else None
    if axis is None or window is None:
        return None
    rows = {
        row.track: TimelineRow(row)
        for row in trace.rows_of(*DEVICE_TRACKS)
        if (row.process, row.nc) == (runs.process, runs.nc)
    }
    return StepRows(trace, axis, window, rows, looks_of(trace, frozenset()))


class StepTimelines(Widget):
    """Two lines for each engine that works in one of the steps; both steps start at the left edge."""

    DEFAULT_CSS = """
    StepTimelines { height: 0; width: 1fr; border: round $foreground 25%; border-title-color: $foreground;
        border-subtitle-color: $foreground 60%; }
    StepTimelines.-flat { border: none; border-top: solid $foreground 25%; }
    """

    def __init__(self, before: StepRows, after: StepRows) -> None:
        super().__init__()
        self.border_subtitle = "←→ move  + - zoom  f fit"
        self.view = Viewport.fit(max(before.length_ns, after.length_ns), 1)
        self._runs = (before, after)
        self._row_lines = 1
        self._drawn: dict[int, list[list[Segment]]] = {}

    @property
    def tracks(self) -> list[Track]:
        """The engines of both runs."""
        return sorted({*self._runs[0].rows, *self._runs[1].rows})

    def fit_lines(self, room: int) -> int:
        """Make rows as high as fits; return the lines of those that fit and of the axis, 0 if none does."""
        rows = 2 * len(self.tracks)
        self._row_lines = max(1, min(_MOST_LINES_A_ROW, (room - 1) // max(rows, 1)))
        fitting = min(rows, 2 * ((room - 1) // (2 * self._row_lines)))
        return 1 + fitting * self._row_lines if fitting > 0 else 0

    def on_resize(self) -> None:
        """Keep the window on the new width."""
        self._show(self.view.resized(max(self.size.width - _GUTTER, 1)))

    def pan(self, steps: int) -> None:
        """Move the window by eighths of its length."""
        self._show(self.view.panned(steps * _PAN))

    def zoom(self, direction: int) -> None:
        """Halve or double the window around its middle."""
        at = self.view.start_ns + self.view.span_ns // 2
        self._show(self.view.zoomed(ZOOM if direction > 0 else 1 / ZOOM, at))

    def fit(self) -> None:
        """Show the whole steps."""
        self._show(Viewport.fit(self.view.total_ns, self.view.columns))

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Zoom in."""
        event.stop()
        self.zoom(1)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Zoom out."""
        event.stop()
        self.zoom(-1)

    def render_line(self, y: int) -> Strip:
        """Draw a line of the widget."""
        if y == 0:
            text = axis_text(WallAxis(self.view.total_ns), self.view)
            segments = [Segment("step time".ljust(_GUTTER), DIM), Segment(text, DIM)]
        else:
            row, part = divmod(y - 1, self._row_lines)
            if row not in self._drawn:
                self._drawn[row] = self._row(*divmod(row, 2))
            segments = self._drawn[row][part]
        return Strip(segments).adjust_cell_length(self.size.width, PLAIN).apply_style(self.rich_style)

    def _row(self, number: int, run: int) -> list[list[Segment]]:
        if number >= len(self.tracks):
            return [[]] * self._row_lines
        track, step = self.tracks[number], self._runs[run]
        name = "" if run else track.label
        label = [Segment(f" {name:<9}", PLAIN), Segment(f"{_NAMES[run]:>6}", DIM)]
        cells = step.cells(track, self.view)
        if cells is None:
            return [[]] * (self._row_lines - 1) + [label]
        moved = replace(
            self.view, start_ns=self.view.start_ns + step.window.first, total_ns=step.axis.total_ns
        )
        marked: Int64s = np.zeros(0, dtype=np.int64)
        drawing = Drawing(
            step.trace,
            NO_EVENT,
            step.looks,
            marked,
            None,
            blank_cells(step.axis, moved),
            colours=not self.app.no_color,
            base=self.rich_style,
        )
        lines = row_lines(drawing, cells, step.rows[track].actions(cells), self._row_lines)
        labels = [[Segment(" " * (_GUTTER - 1), PLAIN)]] * (len(lines) - 1) + [label]
        edge = Segment("│", DIM)
        return [[*label, edge, *line] for label, line in zip(labels, lines, strict=True)]

    def _show(self, view: Viewport) -> None:
        self.view = view
        self._drawn.clear()
        self.refresh()


_STEP_TITLE = "A steady step"
_ROLES = {ChangeKind.SLOWER: Role.ALERT, ChangeKind.NEW: Role.ALERT, ChangeKind.SAME: Role.DIM}


def _difference(change: GroupChange) -> Span:
    sign = "+" if change.difference_ns > 0 else "-" if change.difference_ns < 0 else ""
    return f"{sign}{units.format_ns(abs(change.difference_ns))}", _ROLES.get(change.kind, Role.PLAIN)


def _counts(change: GroupChange) -> Span:
    before = "" if change.before_count == change.after_count else f"{change.before_count:g} → "
    return f"{before}{change.after_count:g}", Role.DIM


# fmt: off
_COLUMNS = (
    TableColumn("name", right=False, cell=lambda change: (short_name(change.name), Role.PLAIN)),
    TableColumn("before", 10, cell=lambda change: (units.format_ns(change.before_ns), Role.PLAIN)),
    TableColumn("after", 10, cell=lambda change: (units.format_ns(change.after_ns), Role.VALUE)),
    TableColumn("difference", 11, cell=_difference),
    TableColumn("ratio", 7, rank=1, cell=lambda change: (f"x{change.after_ns / change.before_ns:.2f}" if change.before_ns else "-", Role.PLAIN)),
    TableColumn("", 7, right=False, cell=lambda change: (str(change.kind), _ROLES.get(change.kind, Role.PLAIN))),
    TableColumn("count", 15, rank=2, cell=_counts),
)
# fmt: on


class ComparePage(ProfileGroupsPage):
    """Two profiles: the first one given is before, the second after."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,h", "steps('pan', -1)", "earlier", key_display="←/h", show=False),
        Binding("right,l", "steps('pan', 1)", "later", key_display="→/l", show=False),
        Binding("plus,w,equals_sign", "steps('zoom', 1)", "zoom in", key_display="+/w", show=False),
        Binding("minus,s", "steps('zoom', -1)", "zoom out", key_display="-/s", show=False),
        Binding("f", "steps('fit')", "the whole step", show=False),
    ]
    DEFAULT_CSS = "ComparePage { layout: vertical; }"
    title = "Compare"
    groupings = (*COMPARED[-1:], *COMPARED[:-1])

    def __init__(self, trace: Trace, look: Theme, *, id: str, other: Trace | None = None) -> None:  # noqa: A002
        super().__init__(trace, look, id=id)
        self._other = other

    def compose(self) -> ComposeResult:
        """Make the panes above and below the timelines."""
        yield LinePane(self.look.styles)
        yield LinePane(self.look.styles)

    @cached_property
    def _found(self) -> ProfileComparison | None:
        return None if self._other is None else compare(self._trace, self._other)

    @property
    def _changes(self) -> tuple[GroupChange, ...]:
        return () if self._found is None else self._found.groups.get(self.by, ())

    @property
    def count(self) -> int:
        """Number of rows."""
        return len(self._changes)

    @cached_property
    def _steps(self) -> StepTimelines | None:
        before, after = step_rows(self._trace), step_rows(self._other) if self._other else None
        return StepTimelines(before, after) if before and after else None

    def action_steps(self, method: str, *values: int) -> None:
        """Run a method of the timelines."""
        if self._steps is not None:
            getattr(self._steps, method)(*values)

    def draw(self) -> None:
        """Draw the verdict, the timelines below it, and the table at the bottom."""
        width, height = self.size
        panes = list(self.query(LinePane))
        if not (width and height and self.display and panes):
            return
        boxed = is_boxed(width, height)
        verdict = list(self.lines(width, height))[:height]
        middle = self._timeline_lines(height - len(verdict), boxed=boxed)
        if self._steps is not None:
            if not self._steps.is_attached:
                self.mount(self._steps, after=panes[0])
            self._steps.set_class(not boxed, "-flat")
            self._steps.border_title = _STEP_TITLE if boxed else f" {_STEP_TITLE} "
            self._steps.display = middle > 0
            self._steps.styles.height = middle
        panes[0].show(verdict)
        panes[1].show(self._table(width, height - len(verdict) - middle, boxed=boxed))
        self._top = len(verdict) + middle + 2

    def _timeline_lines(self, room: int, *, boxed: bool) -> int:
        """Return the height of the timelines, at most half of the room."""
        if self._steps is None:
            return 0
        edges = chrome_lines(boxed=boxed)
        lines = self._steps.fit_lines(room // 2 - edges)
        return lines + edges if lines else 0

    def action_open(self) -> None:
        """Show the slowest event of the group in the timeline, which is that of the first profile."""
        if self.count:
            self.show_slowest(self._changes[self.cursor.row].members[0])

    def lines(self, width: int, height: int) -> list[Line]:
        """Return the verdict."""
        found = self._found
        if found is None:
            reason = "One profile is open; comparing needs a second one."
            return self.no_data(reason, "neuron-profile view BEFORE AFTER")
        boxed = is_boxed(width, height)
        inner = inner_width(width, boxed=boxed)
        head = [
            *_time_lines("device time, modelled", found.device, inner),
            *_time_lines("step, measured", found.step, inner),
        ]
        if found.is_per_sample:
            head[1:1] = _time_lines("a sample, modelled", found.sample, inner)
        for text in (*found.reasons, *found.notes):
            head += [fit(((f" {piece}", Role.ALERT),), inner) for piece in wrapped(text, max(inner - 2, 1))]
        per = " per sample" if found.is_per_sample else ""
        size = width, min(len(head) + chrome_lines(boxed=boxed), height)
        return [
            fit(line, width) for line in framed(f"Compare: {found.verdict}{per}", head, size, boxed=boxed)
        ]

    def _table(self, width: int, height: int, *, boxed: bool) -> list[Line]:
        """Return the table of changes."""
        edges = chrome_lines(boxed=boxed)
        if self._found is None or height <= edges:
            return []
        layout = TableLayout(_COLUMNS, inner_width(width, boxed=boxed))
        body = self.table(layout, height - edges - 1, self._changes)
        unit = "a sample" if self._found.is_per_sample else "a step"
        note = f"{plural(self.count, 'group')}, {unit}, modelled"
        title = f"Changes by {self.by}"
        foot = "g group  ⏎ slowest before, in the timeline"
        table = framed(title, body, (width, height), note=note, foot=foot, boxed=boxed)
        return [fit(line, width) for line in table]


def _time_lines(name: str, change: TimeChange | None, width: int) -> list[Line]:
    if change is None:
        return [fit(((f" {name}: not in both profiles", Role.DIM),), width)]
    ratio = "" if change.ratio is None else f"  x{change.ratio:.3f}"
    chance = "" if change.p_value is None else f", p {change.p_value:.2g}"
    spans = (
        (f" {name}  ", Role.HEAD),
        (units.format_ns(change.before_ns), Role.PLAIN),
        (" → ", Role.DIM),
        (units.format_ns(change.after_ns), Role.VALUE),
        (f"{ratio}  {change.verdict}", Role.STRONG),
        (f"  {change.before_steps} and {plural(change.after_steps, 'step')}{chance}", Role.DIM),
    )
    return [fit(spans, width)]
