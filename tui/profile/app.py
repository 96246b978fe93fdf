"""The profile viewer: timeline, summary and operators of a trace in the terminal."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual.app import App
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Input, Static, TabbedContent, TabPane

from neurontools.base import units
from neurontools.base.text import printable, printable_lines
from neurontools.errors import NeuronToolsError
from neurontools.profiler.summary import event_details, top_operators
from neurontools.profiler.summary_text import report, to_text
from neurontools.tui.profile.timeline import TimelineView
from neurontools.tui.widgets.screens import TextScreen
from neurontools.tui.widgets.terminal_driver import TerminalDriver

if TYPE_CHECKING:
    from collections.abc import Iterable

    from textual.app import ComposeResult

    from neurontools.profiler.trace import Trace

TABLE_ROWS = 500
_QUESTIONS = {
    "search": ("Search operations", "regular expression, for example aten\\.mm"),
    "time": ("Go to time", "since the first event, for example 1.5ms"),
}


class Question(ModalScreen[str | None]):
    """A line to type; returns the answer, None for Escape."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "cancel")]
    DEFAULT_CSS = """
    Question { align: center bottom; }
    Question > Input { width: 100%; border: round $primary; }
    """

    def __init__(self, title: str, placeholder: str, value: str = "") -> None:
        super().__init__()
        self._title = title
        self._placeholder = placeholder
        self._value = value

    def compose(self) -> ComposeResult:
        """Make the line."""
        line = Input(value=self._value, placeholder=self._placeholder)
        line.border_title = self._title
        yield line

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Give the answer."""
        self.dismiss(event.value)

    def action_cancel(self) -> None:
        """Give no answer."""
        self.dismiss(None)


def bindings_text(*groups: Iterable[BindingType]) -> str:
    """Return one line per binding: its keys and what they do."""
    rows = [
        (binding.key_display or binding.key.replace(",", " "), binding.description)
        for group in groups
        for binding in group
        if isinstance(binding, Binding)
    ]
    width = max(len(keys) for keys, _ in rows)
    return "\n".join(f"{keys.ljust(width)}  {purpose}" for keys, purpose in rows)


def _cell(text: str) -> Text:
    """Return the text of a profile for a table, which would take a plain one as markup."""
    return Text(printable(text))


class ProfileApp(App[int]):
    """Views of one trace; the library does all computing."""

    TITLE = "neuron-profile"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    TabbedContent { height: 1fr; }
    TabPane { padding: 0; height: 1fr; }
    #summary Static { width: auto; height: auto; }
    DataTable { height: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("1", "tab('timeline')", "timeline", show=False),
        Binding("2", "tab('summary')", "summary", show=False),
        Binding("3", "tab('operators')", "operators", show=False),
        Binding("e", "screenshot_file", "save as SVG", show=False),
        Binding("question_mark", "keys", "help", key_display="?"),
        Binding("q", "exit(0)", "quit"),
        Binding("ctrl+c", "exit(130)", "quit with exit code 130", show=False, priority=True),
    ]

    def __init__(self, trace: Trace, directory: str = ".") -> None:
        super().__init__(driver_class=TerminalDriver)
        self._trace = trace
        self._directory = directory

    def compose(self) -> ComposeResult:
        """Make the three views."""
        with TabbedContent(initial="timeline"):
            with TabPane("1 Timeline", id="timeline"):
                yield TimelineView(self._trace, classes="view")
            with TabPane("2 Summary", id="summary"), VerticalScroll(classes="view"):
                yield Static(printable_lines(to_text(report(self._trace))), markup=False)
            with TabPane("3 Operators", id="operators"):
                yield DataTable(cursor_type="row", zebra_stripes=True, classes="view")
        yield Footer()

    def on_mount(self) -> None:
        """Fill the table and start in the timeline."""
        table = self.query_one(DataTable)
        table.add_columns("operator", "opcode", "engine", "count", "total", "share", "flops", "bytes")
        table.add_rows(
            (
                *map(_cell, (operator.name, operator.opcode, operator.engine)),
                operator.count,
                units.format_ns(operator.total_ns),
                f"{operator.share:.1%}",
                units.format_count(operator.flops),
                units.format_count(operator.bytes_moved),
            )
            for operator in top_operators(self._trace, TABLE_ROWS)
        )
        self.query_one(TimelineView).focus()

    def action_tab(self, name: str) -> None:
        """Show a view and give it the keys."""
        self.query_one(TabbedContent).active = name
        self.query_one(f"#{name} .view").focus()

    def action_exit(self, code: int) -> None:
        """End with an exit code."""
        self.exit(code)

    def action_keys(self) -> None:
        """Show every key."""
        self.push_screen(TextScreen("Keys", bindings_text(TimelineView.BINDINGS, self.BINDINGS)))

    def action_screenshot_file(self) -> None:
        """Save the screen as an SVG file that does not exist yet."""
        number = 1
        while os.path.exists(os.path.join(self._directory, f"neuron-profile-{number}.svg")):
            number += 1
        name = f"neuron-profile-{number}.svg"
        try:
            self.save_screenshot(name, self._directory)
        except OSError as error:
            self.notify(f"cannot write {name}: {error.strerror}", severity="error")
        else:
            self.notify(f"saved {name}")

    def on_timeline_view_asked(self, message: TimelineView.Asked) -> None:
        """Ask, then search or go to a time."""
        title, placeholder = _QUESTIONS[message.what]
        answer = self._search if message.what == "search" else self._go
        self.push_screen(Question(title, placeholder), answer)

    def on_timeline_view_details_requested(self, message: TimelineView.DetailsRequested) -> None:
        """Show the details of an event."""
        rows = event_details(self._trace, message.event)
        width = max(len(name) for name, _ in rows)
        text = "\n".join(f"{name.ljust(width)}  {printable(value)}" for name, value in rows)
        self.push_screen(TextScreen("Event", text))

    def _search(self, pattern: str | None) -> None:
        if not pattern:
            return
        try:
            hits = self.query_one(TimelineView).show_search(pattern)
        except NeuronToolsError as error:
            self.notify(error.message, severity="error", markup=False)
            return
        if hits == 0:
            self.notify(f"no operation matches {pattern}", severity="warning", markup=False)

    def _go(self, text: str | None) -> None:
        if not text:
            return
        try:
            self.query_one(TimelineView).go_to(units.parse_duration_ns(text, needs_unit=True))
        except NeuronToolsError as error:
            self.notify(error.message, severity="error", markup=False)
