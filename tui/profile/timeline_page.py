"""The page with the timeline and, where the terminal is wide enough, the selection beside it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from textual.containers import Horizontal
from textual.worker import Worker, WorkerState

from neurontools.base import units
from neurontools.base.text import short_operator
from neurontools.errors import NeuronToolsError
from neurontools.profiler.analysis.dependencies import Dependencies, event_details, order_details
from neurontools.profiler.analysis.operators import range_operators, row_uses
from neurontools.profiler.trace.rows import NO_EVENT
from neurontools.tui.profile.timeline import TimelineView
from neurontools.tui.profile.timeline_state import as_times
from neurontools.tui.widgets.bars import bar
from neurontools.tui.widgets.frames import framed, is_boxed
from neurontools.tui.widgets.line_pane import LinePane
from neurontools.tui.widgets.lines import Role, fact_lines, fit, fixed

if TYPE_CHECKING:
    from textual.app import ComposeResult

    from neurontools.profiler.analysis.operators import OperatorTotal, RowUse
    from neurontools.profiler.trace.trace import Trace, TraceRow
    from neurontools.tui.widgets.lines import Line
    from neurontools.tui.widgets.theme import Theme

WIDE = 120
_DETAILS_SHARE = 4
_LEAST_DETAILS, _MOST_DETAILS = 40, 56
_LABEL = 15
_LEAST_NUMBERS = 8
_LEFT_OUT = frozenset({"clock", "process"})
_SHORTENED = frozenset({"start", "duration", "model"})
_OPERATORS = 30
FOOT = "←→ move  + - zoom  tab event  < > follow  p path  z fold  / search"


class TimelinePage(Horizontal):
    """The timeline and its details."""

    DEFAULT_CSS = """
    TimelinePage { height: 1fr; width: 1fr; }
    TimelinePage TimelineView { border: round $foreground 25%; border-title-color: $foreground;
        border-subtitle-color: $foreground 60%; }
    TimelinePage.-flat TimelineView { border: none; border-top: solid $foreground 25%; }
    TimelinePage LinePane { width: 40; display: none; }
    TimelinePage.-wide LinePane { display: block; }
    """
    title = "Timeline"

    def __init__(self, trace: Trace, look: Theme, *, id: str) -> None:  # noqa: A002
        super().__init__(id=id)
        self._trace = trace
        self._look = look
        self._operators: tuple[OperatorTotal, ...] = ()
        self._uses: tuple[RowUse, ...] = ()
        self._length_ns = 1
        self._added_up: tuple[list[TraceRow], int, int] | None = None
        self._dependencies = Dependencies(trace)
        self._reading: set[str] = set()
        self._looked_up = NO_EVENT
        self._problem = ""

    def compose(self) -> ComposeResult:
        """Make the timeline and the pane beside it."""
        view = TimelineView(self._trace, self._look)
        view.border_subtitle = FOOT
        yield view
        yield LinePane(self._look.styles)

    @property
    def view(self) -> TimelineView:
        """The timeline."""
        return self.query_one(TimelineView)

    def take_keys(self) -> None:
        """Let the timeline have the keys."""
        self.view.focus()

    @property
    def is_wide(self) -> bool:
        """Whether the details are beside the timeline."""
        return self.size.width >= WIDE

    def on_resize(self) -> None:
        """Show details where there is room."""
        width, height = self.size
        self.set_class(self.is_wide, "-wide")
        boxed = is_boxed(width, height)
        self.set_class(not boxed, "-flat")
        # Textual leaves blanks around titles only beside corners.
        self.view.border_title = self.title if boxed else f" {self.title} "
        if self.is_wide:
            self.query_one(LinePane).styles.width = self._details_width()
        # Another border leaves less room inside, and Textual sends no event for that.
        self.call_after_refresh(self.view.on_resize)
        self.draw()

    def on_timeline_view_changed(self) -> None:
        """Show the current selection."""
        self._look_up()
        self.draw()

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        """Show the dependencies of a program that was read."""
        if event.state is WorkerState.SUCCESS:
            self.on_timeline_view_changed()

    def details(self) -> tuple[tuple[str, str], ...]:
        """Return names and values of the selected event as text."""
        state = self.view.state
        details = event_details(self._trace, state.selected_event)
        if state.axis.is_device:
            # Where the axis shows the event, and where `g` finds it again.
            start = units.format_ns(state.start_on_axis)
            details = tuple((name, start if name == "start" else value) for name, value in details)
        if self.view.order is not None:
            return details + order_details(self._trace, self.view.order)
        return (*details, ("critical path", self._problem)) if self._problem else details

    def _look_up(self) -> None:
        """Point out the dependencies of the selected event; those of another program are read in a thread."""
        event = self.view.state.selected_event
        if event == self._looked_up:
            return
        order, self._problem = None, ""
        program = "" if event == NO_EVENT else self._dependencies.program_of(event)
        if program and not self._dependencies.is_read(program):
            self._problem = "reading the program ..."
            if program not in self._reading:
                self._reading.add(program)
                self.run_worker(partial(self._dependencies.read, program), thread=True)
        elif program:
            try:
                order = self._dependencies.of_event(event)
            except NeuronToolsError as error:
                self._problem = f"unknown: {error.message}"
        self._looked_up = event if not program or self._dependencies.is_read(program) else NO_EVENT
        self.view.show_order(order)

    def draw(self) -> None:
        """Draw the details."""
        if self.is_wide and self.size.height > 2:
            self.query_one(LinePane).show(self._details(self._details_width(), self.size.height))

    def _details_width(self) -> int:
        return max(_LEAST_DETAILS, min(_MOST_DETAILS, self.size.width // _DETAILS_SHARE))

    def _details(self, width: int, height: int) -> list[Line]:
        inner = width - 2
        event = self._event_lines(inner)
        title, note, numbers = self._numbers(inner)
        room = max(height - min(len(numbers), _LEAST_NUMBERS) - 2, height // 2)
        upper = min(len(event) + 2, room)
        lower = height - upper
        lines = framed("Event", event, (width, upper))
        return [*lines, *framed(title, numbers, (width, lower), note=note)] if lower > 2 else lines

    def _event_lines(self, width: int) -> list[Line]:
        event = self.view.state.selected_event
        if event == NO_EVENT:
            hint = "tab or a click selects an event"
            return [fit(((f" {hint}", Role.DIM),), width)]
        lines: list[Line] = []
        for name, value in self.details():
            if name not in _LEFT_OUT:
                text = value.partition(" (")[0] if name in _SHORTENED else value
                lines += fact_lines(name, text, width, _LABEL)
        return lines

    def _numbers(self, width: int) -> tuple[str, str, list[Line]]:
        """Return title, note and lines about the selected range, else about the window."""
        state = self.view.state
        first, last = state.range_ns
        begin, end = state.axis.clock(state.axis.positions(as_times(first, last))).tolist()
        rows = state.neighbours
        if self._added_up != (rows, first, last):
            # Sums take longer than a frame may: they follow it. Until then, those of the frame before stay.
            self.call_after_refresh(self._add_up, rows, first, last, end - begin)
        lines: list[Line] = []
        if self._added_up is not None:
            lines += _use_lines(self._uses, self._length_ns, width) + _operator_lines(self._operators, width)
        title = "Window" if state.range is None else "Range"
        if rows and len({row.process for row in self._trace.rows}) > 1:
            title += f" of {rows[0].process_label.partition(' (')[0]}"
        return title, units.format_ns(end - begin), lines

    def _add_up(self, rows: list[TraceRow], first: int, last: int, length_ns: int) -> None:
        """Add up the work of rows in a stretch, if it is still shown; `length_ns` is its length on the axis."""
        if self.view.state.range_ns == (first, last):
            self._uses, self._length_ns = row_uses(self._trace, rows, first, last), length_ns
            self._operators = range_operators(self._trace.with_rows(rows, ()), first, last, _OPERATORS)
            self._added_up = rows, first, last
            self.draw()


def _operator_lines(operators: tuple[OperatorTotal, ...], width: int) -> list[Line]:
    lines = [fit(((" operators that touch it", Role.HEAD),), width)]
    for operator in operators:
        spans = (
            (f" {fixed(short_operator(operator.name), max(width - 26, 8))} ", Role.PLAIN),
            (f"{operator.engine:<8}{operator.count:>5}", Role.DIM),
            (units.format_ns(operator.total_ns).rjust(11), Role.VALUE),
        )
        lines.append(fit(spans, width))
    return lines


def _use_lines(uses: tuple[RowUse, ...], length_ns: int, width: int) -> list[Line]:
    """Return a bar for each row: how busy it is in a stretch."""
    lines = []
    cells = max(width - 22 - 6, 4)
    for use in uses:
        share = use.busy_ns / max(length_ns, 1)
        label = fixed(use.row.label, 14)
        role = Role.PLAIN if use.busy_ns else Role.DIM
        spans = ((f" {label} ", role), *bar(min(share, 1.0), cells), (f"{100 * share:>6.1f}%", role))
        lines.append(fit((*spans, (f"{use.events:>5}", Role.DIM)), width))
    return lines
