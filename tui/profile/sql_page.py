"""The page for questions in SQL: a line to type, with a history, and the answer as a table."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from textual.binding import Binding
from textual.message import Message
from textual.widgets import Input
from textual.worker import Worker, WorkerState

from neurontools.base import units
from neurontools.base.text import plural, printable
from neurontools.errors import MissingDependencyError, NeuronToolsError
from neurontools.profiler.query.sql import SqlRows, SqlSession
from neurontools.tui.profile.page import ProfileListPage, ShowEvent
from neurontools.tui.widgets.frames import chrome_lines, framed, inner_width, is_boxed, row
from neurontools.tui.widgets.line_pane import LinePane
from neurontools.tui.widgets.lines import Role, fit, fixed, width_of

if TYPE_CHECKING:
    from textual.app import ComposeResult
    from textual.binding import BindingType

    from neurontools.profiler.trace.trace import Trace
    from neurontools.tui.widgets.lines import Line, Span
    from neurontools.tui.widgets.theme import Theme

_MOST_ROWS = 1_000
_WIDEST = 48
_GAP = 2
_STOP_S = 0.1
_EXAMPLE = "SELECT hlo_name, count(*), sum(duration_ns) AS ns FROM Instruction GROUP BY ALL ORDER BY ns DESC"


class QueryLine(Input):
    """The line for the query; the arrow keys go through what was asked before."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "past(-1)", "earlier query"),
        Binding("down", "past(1)", "later query"),
        Binding("tab,escape", "leave", "to the answer; stop a query"),
    ]

    class Left(Message):
        """The user leaves the line."""

    def __init__(self) -> None:
        super().__init__(placeholder=_EXAMPLE)
        self.cursor_blink = False
        self._asked: list[str] = []
        self._at = 0

    def remember(self, text: str) -> None:
        """Keep a query, the newest last."""
        self._asked = [*(each for each in self._asked if each != text), text]
        self._at = len(self._asked)

    def action_past(self, step: int) -> None:
        """Show another query; after the newest an empty line."""
        self._at = max(0, min(len(self._asked), self._at + step))
        self.value = self._asked[self._at] if self._at < len(self._asked) else ""
        self.cursor_position = len(self.value)

    def action_leave(self) -> None:
        """Let the page have the keys."""
        self.post_message(self.Left())


class SqlPage(ProfileListPage):
    """Tables and columns at first, then the answer to the newest query."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,h", "columns(-1)", "columns on the left", key_display="←/h", show=False),
        Binding("right,l", "columns(1)", "columns on the right", key_display="→/l", show=False),
        Binding("slash,tab", "ask", "type a query", key_display="/", show=False),
        Binding("enter", "open", "the event of the row, by its column id", key_display="⏎", show=False),
    ]
    DEFAULT_CSS = """
    SqlPage QueryLine { height: 3; border: round $foreground 25%; border-title-color: $foreground; padding: 0 1;
        background: transparent; }
    SqlPage QueryLine:focus { border: round $primary; }
    SqlPage.-flat QueryLine { height: 1; border: none; }
    """
    title = "SQL"

    def __init__(self, trace: Trace, look: Theme, *, id: str) -> None:  # noqa: A002
        super().__init__(trace, look, id=id)
        self._session: SqlSession | None = None
        self._missing: MissingDependencyError | None = None
        self._answer = SqlRows((), (), is_cut=False)
        self._widths: tuple[int, ...] = ()
        self._heading = ""
        self._problem = ""
        self._is_running = False
        self._left = 0

    def compose(self) -> ComposeResult:
        """Make the line and the table."""
        line = QueryLine()
        line.border_title = "Query"
        yield line
        yield LinePane(self.look.styles)

    @property
    def line(self) -> QueryLine:
        """The line for the query."""
        return self.query_one(QueryLine)

    @property
    def count(self) -> int:
        """Number of rows."""
        return len(self._answer.rows)

    @property
    def room(self) -> tuple[int, int]:
        """Cells and lines below the query."""
        width, height = self.size
        return width, max(height - (3 if is_boxed(width, height) else 1), 0)

    def take_keys(self) -> None:
        """Let the line have the keys."""
        (self if self._missing else self.line).focus()

    def on_show(self) -> None:
        """Make the tables when the page is first shown."""
        if self._session is None and self._missing is None and not self._is_running:
            self._start("making the tables ...", self._open)
        super().on_show()

    def on_resize(self) -> None:
        """Have a frame where there is room."""
        self.set_class(not is_boxed(*self.size), "-flat")
        super().on_resize()

    def on_unmount(self) -> None:
        """Stop a query, which the program would wait for."""
        if self._session is not None:
            self._session.interrupt()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Ask."""
        event.stop()
        text = event.value.strip()
        if self._session is None or self._is_running or not text:
            return
        self.line.remember(text)
        self._start("running ...", partial(self._ask, self._session, text))

    def on_query_line_left(self) -> None:
        """Stop a query; let the answer have the keys."""
        self._stop()
        self.focus()

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        """Show the answer, or why there is none."""
        if event.state is WorkerState.SUCCESS:
            assert event.worker.result is not None
            self._heading, self._answer = event.worker.result
            self._widths = _widths(self._answer)
            self._left = self.cursor.row = 0
        elif event.state is WorkerState.ERROR:
            error = event.worker.error
            self._missing = error if isinstance(error, MissingDependencyError) else None
            self._problem = error.message if isinstance(error, NeuronToolsError) else str(error)
        else:
            return
        self._is_running = False
        self.line.display = self._missing is None
        if self._missing and self.line.has_focus:
            self.focus()
        self.draw()

    def action_ask(self) -> None:
        """Type a query."""
        self.take_keys()

    def action_columns(self, step: int) -> None:
        """Show other columns."""
        self._left = max(0, min(len(self._widths) - 1, self._left + step))
        self.draw()

    def action_open(self) -> None:
        """Show the event of the row in the timeline: that of its column `id`."""
        if "id" in self._answer.names and self.count:
            number = self._answer.rows[self.cursor.row][self._answer.names.index("id")]
            if isinstance(number, int) and 0 <= number < self._trace.event_count:
                self.post_message(ShowEvent(number))

    def lines(self, width: int, height: int) -> list[Line]:
        """Return the table."""
        if self._missing is not None:
            return self.no_data(f"{self._missing.message}.", self._missing.remedy)
        boxed = is_boxed(*self.size)
        inner = inner_width(width, boxed=boxed)
        body: list[Line] = []
        if self._problem:
            role = Role.DIM if self._is_running else Role.ALERT
            body.append(fit(((f" {self._problem}", role),), inner))
        columns = self._columns_in_view(inner)
        self._top = len(body) + 2 + self.size.height - height
        body.append(row(self._cells(self._answer.names, columns, Role.HEAD), inner))
        for number in self.cursor.window(self.count, height - chrome_lines(boxed=boxed) - len(body)):
            spans = self._cells(self._answer.rows[number], columns)
            body.append(row(spans, inner, selected=number == self.cursor.row))
        hidden = len(self._widths) - len(columns)
        note = f"{plural(hidden, 'column')} more" if hidden else ""
        foot = "⏎ ask, show the event  tab query, answer  ↑↓ history, rows  ←→ columns"
        return framed(self._heading, body, (width, height), note=note, foot=foot, boxed=boxed)

    def _columns_in_view(self, width: int) -> range:
        used, last = 1, self._left
        while last < len(self._widths) and (last == self._left or used + self._widths[last] <= width):
            used += self._widths[last] + _GAP
            last += 1
        return range(self._left, last)

    def _cells(self, values: tuple[Any, ...], columns: range, role: Role = Role.PLAIN) -> list[Span]:
        found: list[Span] = []
        for number in columns:
            text, width = _text(values[number]), self._widths[number]
            is_number = self.count > 0 and isinstance(self._answer.rows[0][number], (int, float))
            if is_number and width_of(text) < width:
                text = " " * (width - width_of(text)) + text
            found.append((fixed(text, width) + " " * _GAP, Role.DIM if values[number] is None else role))
        return found

    def _start(self, text: str, body: Any) -> None:
        self._is_running, self._problem = True, text
        self.run_worker(body, thread=True, exit_on_error=False)
        self.draw()

    def _stop(self) -> None:
        if self._session is not None and self._is_running:
            self._session.interrupt()
            # The thread may not have begun yet.
            self.set_timer(_STOP_S, self._stop)

    def _open(self) -> tuple[str, SqlRows]:
        self._session = SqlSession(self._trace)
        columns = tuple((each.table, each.column, each.type) for each in self._session.schema())
        self._problem = ""
        return "Tables and columns", SqlRows(("table", "column", "type"), columns, is_cut=False)

    def _ask(self, session: SqlSession, text: str) -> tuple[str, SqlRows]:
        begun = time.monotonic_ns()
        answer = session.rows(text, _MOST_ROWS)
        count = plural(len(answer.rows), "row")
        heading = f"first {count}" if answer.is_cut else count
        self._problem = ""
        return f"{heading}, {units.format_ns(time.monotonic_ns() - begun)}", answer


def _widths(answer: SqlRows) -> tuple[int, ...]:
    columns = zip(answer.names, *answer.rows, strict=True)
    return tuple(min(max(width_of(_text(value)) for value in column), _WIDEST) for column in columns)


def _text(value: Any) -> str:
    if value is None:
        return "NULL"
    return f"{value:.6g}" if isinstance(value, float) else printable(str(value))
