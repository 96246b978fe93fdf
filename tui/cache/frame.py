"""The frame of the cache browser: one pane, background threads, and painting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.worker import Worker, WorkerState

from neurontools.cache.browser import change_stamp
from neurontools.cache.entries import scan
from neurontools.cache.entry_facts import EntrySummary, read_facts
from neurontools.cache.entry_report import RowReporter
from neurontools.errors import NeuronToolsError
from neurontools.tui.cache import actions, lines
from neurontools.tui.cache.details import read_report
from neurontools.tui.names import AUTO
from neurontools.tui.widgets.key_queue import KeyQueue
from neurontools.tui.widgets.line_pane import LinePane
from neurontools.tui.widgets.screens import TextScreen
from neurontools.tui.widgets.themed_app import ThemedApp

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.app import ComposeResult
    from textual.binding import BindingType

    from neurontools.cache.browser import Browser
    from neurontools.cache.entries import Entry
    from neurontools.tui.cache.details import RowReport

REFRESH_S = 2.0
_LEAST_FOR_FACTS = 118
_MOST_FACTS = 2_000


class ReadScreen(TextScreen):
    """A text as large as the screen allows; arrows scroll, Escape, Enter and q close it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "scroll(-1)", "up"),
        Binding("down,j", "scroll(1)", "down"),
        Binding("pageup,b", "scroll(-20)", "page up"),
        Binding("pagedown,space", "scroll(20)", "page down"),
        Binding("home", "scroll(-1000000)", "first line"),
        Binding("end", "scroll(1000000)", "last line"),
    ]
    DEFAULT_CSS = """
    ReadScreen > VerticalScroll { width: 100%; height: 100%; max-height: 100%; background: $background; }
    """

    def action_scroll(self, lines: int) -> None:
        """Scroll by lines."""
        self.query_one(VerticalScroll).scroll_relative(y=lines, animate=False)


class CacheFrame(ThemedApp, KeyQueue):
    """Runs reads in threads and paints the `Browser`.

    Args:
        browser: the state to show; nothing is read yet.
        colour: False draws without any colour.
        theme: name of a theme, or "auto".
    """

    TITLE = "neuron-cache"
    CSS = "Screen { overflow: hidden; } Screen:ansi { background: ansi_default; }"
    ENABLE_COMMAND_PALETTE = True
    ALLOW_SELECT = False
    AUTO_FOCUS = None

    def __init__(self, browser: Browser, *, colour: bool = True, theme: str = AUTO) -> None:
        super().__init__(theme=theme, colour=colour, ansi_color=None if colour else True)
        self.browser = browser
        self.first = 0
        self._message = ""
        self._reading = False
        self._stamp: int | None = None
        self._facts: dict[str, EntrySummary] = {}
        self._is_reading_facts = False
        self._reporter = RowReporter(browser.root)
        self._report: RowReport | None = None
        self._is_reporting = self._is_report_old = False

    def compose(self) -> ComposeResult:
        """Make the one pane."""
        yield LinePane(self.look.styles, id="cache")

    def on_mount(self) -> None:
        """Start reading, and watch for changes."""
        self.apply_theme(self.look)
        self.show()
        self.action_read()
        self.set_interval(REFRESH_S, self._look_for_changes)

    def on_resize(self) -> None:
        """Repaint once the app knows its new size."""
        self.call_later(self.show)

    def action_read(self) -> None:
        """Read the cache again."""
        if not self._reading:
            self._reading = True
            self.show()
            self.in_thread(self._read, "read")

    def _read(self) -> tuple[int, tuple[Entry, ...]]:
        stamp = change_stamp(self.browser.root)
        return stamp, scan(self.browser.root).entries

    def _look_for_changes(self) -> None:
        if not self._reading and change_stamp(self.browser.root) != self._stamp:
            self.action_read()

    def in_thread(self, body: Callable[[], Any], name: str) -> None:
        """Run a slow function in a thread; its result arrives under a name."""
        self.run_worker(body, name=name, group=name, thread=True, exit_on_error=False)

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        """Handle the result of a thread."""
        if event.state is WorkerState.ERROR:
            self._reading = self._is_reading_facts = self._is_reporting = False
            self._notify_error(event.worker.error)
        elif event.state is WorkerState.SUCCESS:
            self._take(event.worker.name, event.worker.result)

    def _take(self, name: str, result: Any) -> None:
        if name == "read":
            self._reading = False
            self._stamp, entries = result
            self._facts.clear()
            self._reporter, self._is_report_old = RowReporter(self.browser.root), True
            self.browser.load(entries)
            self.show()
        elif name == "facts":
            self._is_reading_facts = False
            if len(self._facts) > _MOST_FACTS:
                self._facts.clear()
            self._facts |= result
            self.show()
        elif name == "report":
            self._is_reporting, self._report = False, result
            self.show()
        elif name == "delete":
            self.browser.marks.clear()
            self.show_message(result)
            self.action_read()
        else:
            self.show_message("")
            self.push_screen(ReadScreen(name, result))

    def _notify_error(self, error: BaseException | None) -> None:
        if isinstance(error, NeuronToolsError):
            self._stamp = change_stamp(self.browser.root)
            self.show_message(actions.format_error(error))
        elif error is not None:
            raise error

    def show_message(self, message: str) -> None:
        """Show a message in the bottom line."""
        self._message = message
        self.show()

    def show(self) -> None:
        """Paint all changed lines."""
        panes = self.query(LinePane)
        if not panes:
            return
        size = self.size
        self.first = lines.first_row(self.browser, self.first, size)
        painted = lines.screen_lines(
            self.browser,
            self.first,
            size,
            reading=self._reading,
            message=self._message,
            facts=self._facts,
            report=self._report,
        )
        panes.first().show(painted)
        if size.width >= _LEAST_FOR_FACTS and not self._is_reading_facts:
            self._ask_facts(lines.rows_shown(self.browser, size))
        if lines.pane_lines(self.browser, size) and not self._is_reporting:
            self._ask_report()

    def _ask_facts(self, rows: int) -> None:
        """Read what is not known of the entries on the screen, in a thread."""
        shown = self.browser.rows[self.first : self.first + rows]
        entries = [one.entry for one in shown if one.entry is not None and one.entry.path not in self._facts]
        if entries:
            self._is_reading_facts = True
            root = self.browser.root
            self.in_thread(lambda: {entry.path: read_facts(root, entry.place) for entry in entries}, "facts")

    def _ask_report(self) -> None:
        """Read what the panes show of the row at the cursor, in a thread; the row before stays until then."""
        row = self.browser.current
        if row is None:
            self._report = None
        elif self._is_report_old or self._report is None or self._report.row != row:
            self._is_reporting, self._is_report_old = True, False
            reporter = self._reporter
            self.in_thread(lambda: read_report(reporter, row), "report")
