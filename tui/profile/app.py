"""The profile viewer: timeline, summary and operators of a trace in the terminal."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import ContentSwitcher, DataTable, Input, Static

from neurontools.base import units
from neurontools.base.text import plural, printable, printable_lines
from neurontools.errors import NeuronToolsError
from neurontools.profiler.analysis.operators import top_operators
from neurontools.profiler.analysis.summary import event_details
from neurontools.profiler.analysis.summary_text import report, to_text
from neurontools.tui.names import AUTO
from neurontools.tui.profile.timeline import TimelineView
from neurontools.tui.widgets.chrome import head_line, pages_line
from neurontools.tui.widgets.line_pane import LinePane
from neurontools.tui.widgets.screens import TextScreen
from neurontools.tui.widgets.terminal_driver import TerminalDriver, hinted_dark
from neurontools.tui.widgets.theme import MONOCHROME, theme_for
from neurontools.tui.widgets.themed_app import ThemedApp

if TYPE_CHECKING:
    from collections.abc import Iterable

    from textual import events
    from textual.app import ComposeResult

    from neurontools.profiler.trace.trace import Trace
    from neurontools.tui.widgets.chrome import ChromeLine

TABLE_ROWS = 500
VIEWS = ("timeline", "summary", "operators")
_FEET = {
    "timeline": "←→ move  + - zoom  tab event  / search  g time  ⏎ details",
    "summary": "↑↓ scroll",
    "operators": "↑↓ select",
}
_HINTS = (("?", "help"), ("^p", "palette"), ("q", "quit"))
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


class ProfileApp(ThemedApp):
    """Views of one trace; the library does all computing."""

    TITLE = "neuron-profile"
    CSS = """
    Screen:ansi { background: ansi_default; }
    ContentSwitcher { height: 1fr; border: round $foreground 25%; border-title-color: $foreground;
        border-subtitle-color: $foreground 60%; }
    #summary { height: 1fr; }
    #summary Static { width: auto; height: auto; padding: 0 1; }
    DataTable { height: 1fr; background: transparent; }
    DataTable > .datatable--header { background: transparent; color: $foreground 60%; }
    DataTable > .datatable--cursor { background: $foreground 12%; color: $foreground; text-style: bold; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f1,1", "tab('timeline')", "timeline", key_display="F1 1"),
        Binding("f2,2", "tab('summary')", "summary", key_display="F2 2"),
        Binding("f3,3", "tab('operators')", "operators", key_display="F3 3"),
        Binding("ctrl+s,e", "screenshot_file", "save the screen as SVG", key_display="ctrl+s e"),
        Binding("ctrl+t", "next_theme", "next theme"),
        Binding("ctrl+p", "command_palette", "command palette"),
        Binding("question_mark", "keys", "help", key_display="?"),
        Binding("q", "exit(0)", "quit"),
        Binding("ctrl+c", "exit(130)", "quit with exit code 130", show=False, priority=True),
    ]

    def __init__(self, trace: Trace, directory: str = ".", *, theme: str = AUTO) -> None:
        super().__init__(driver_class=TerminalDriver)
        self._trace = trace
        self._directory = directory
        self.look = MONOCHROME if self.no_color else theme_for(theme, dark=hinted_dark(os.environ))
        self._view = VIEWS[0]

    def compose(self) -> ComposeResult:
        """Make the three views between the line of tabs and the line of keys."""
        yield LinePane(self.look.styles, id="head")
        with ContentSwitcher(initial=VIEWS[0]):
            yield TimelineView(self._trace, id="timeline")
            with VerticalScroll(id="summary"):
                yield Static(printable_lines(to_text(report(self._trace))), markup=False)
            yield DataTable(id="operators", cursor_type="row")
        yield LinePane(self.look.styles, id="foot")

    def on_mount(self) -> None:
        """Fill the table and start in the timeline."""
        self.apply_theme(self.look)
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
        self.action_tab(VIEWS[0])

    def on_resize(self) -> None:
        """Draw the lines at the new width, once the app knows it."""
        self.call_later(self._paint)

    def on_click(self, event: events.Click) -> None:
        """Show the view whose name is clicked."""
        if len(self.screen_stack) > 1 or event.screen_y not in {0, self.size.height - 1}:
            return
        line = self._head() if event.screen_y == 0 else self._foot()
        position = line.at(event.screen_x)
        if position is not None:
            self.action_tab(VIEWS[position])

    def action_tab(self, name: str) -> None:
        """Show a view and give it the keys."""
        self._view = name
        frame = self.screen_stack[0].query_one(ContentSwitcher)
        frame.current = name
        frame.border_title = name.capitalize()
        frame.border_subtitle = _FEET[name]
        self.screen_stack[0].query_one(f"#{name}").focus()
        self._paint()

    def _head(self) -> ChromeLine:
        names = [name.capitalize() for name in VIEWS]
        state = f"{plural(self._trace.event_count, 'event')}, {units.format_ns(self._trace.end_ns)}"
        return head_line("neuron-profile", names, VIEWS.index(self._view), self.size.width, state=state)

    def _foot(self) -> ChromeLine:
        names = [name.capitalize() for name in VIEWS]
        return pages_line(names, VIEWS.index(self._view), _HINTS, self.size.width)

    def _paint(self) -> None:
        for name, line in (("head", self._head()), ("foot", self._foot())):
            for pane in self.screen_stack[0].query(f"#{name}").results(LinePane):
                pane.show((line.line,))

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
