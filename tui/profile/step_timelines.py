"""A widget with two timelines: the engines of a steady step of two runs, line below line, on one scale."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from rich.segment import Segment
from textual.strip import Strip
from textual.widget import Widget

from neurontools.profiler.analysis.steady import steady_execution, steady_window
from neurontools.profiler.capture.format import DEVICE_TRACKS
from neurontools.profiler.trace.axis import WallAxis, device_axis
from neurontools.profiler.trace.rows import NO_EVENT
from neurontools.profiler.trace.timeline import Cells, TimelineRow, Viewport
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

if TYPE_CHECKING:
    from textual import events

    from neurontools.profiler.analysis.steady import Window
    from neurontools.profiler.capture.format import Track
    from neurontools.profiler.trace.axis import DeviceAxis
    from neurontools.profiler.trace.intervals import Int64s
    from neurontools.profiler.trace.trace import Trace

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
    found = steady_execution(trace)
    if found is None:
        return None
    runs, _ = found
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
        shown = min(rows, 2 * ((room - 1) // (2 * self._row_lines)))
        return 1 + shown * self._row_lines if shown > 0 else 0

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
