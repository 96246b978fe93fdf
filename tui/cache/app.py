"""The app of neuron-cache tui: keys, actions, and reads in background threads."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, ClassVar

from textual.binding import Binding, BindingType
from textual.worker import Worker, WorkerState

from neurontools.base.text import plural
from neurontools.base.units import format_size
from neurontools.cache import lock_list, pins_and_tags
from neurontools.cache.entries import Entry, scan
from neurontools.cache.pruning import prune
from neurontools.cache.show import format_details, read_details
from neurontools.cache.walk import walk
from neurontools.cache.why import explain, report
from neurontools.errors import NeuronToolsError
from neurontools.tui.cache.browser import Browser, Refused, change_stamp
from neurontools.tui.cache.lines import HEAD_LINES, rows_shown, screen_lines
from neurontools.tui.names import AUTO
from neurontools.tui.widgets.line_pane import LinePane
from neurontools.tui.widgets.requests import Choose, Prompt
from neurontools.tui.widgets.screens import ChooseScreen, PromptScreen, TextScreen, key_rows
from neurontools.tui.widgets.themed_app import KeyQueue, ThemedApp

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual import events
    from textual.app import ComposeResult

    from neurontools.cache.pruning.prune import Pruning


def entry_text(root: str, entry: Entry, width: int) -> str:
    """Return the text of `neuron-cache show` for an entry, wrapped to a width.

    Raises:
        NeuronToolsError: it is gone.
    """
    return format_details(read_details(root, entry.place), time.time(), width)


def why_text(root: str, paths: tuple[str, ...], width: int) -> str:
    """Return the text of `neuron-cache why` for one entry, or for two in this order.

    Raises:
        NeuronToolsError: an entry is gone or not readable.
    """
    found = explain.explain_pair(root, *paths) if len(paths) > 1 else explain.explain_entry(root, paths[0])
    return report.format_explanation(found, report.ReportStyle(width=width, full=True, most_lines=1000))


def change_pins(root: str, entries: tuple[Entry, ...]) -> str:
    """Pin entries, or unpin them if all are pinned; return a message.

    Raises:
        TagError: an entry is gone or not writable.
    """
    unpin = all(entry.pinned for entry in entries)
    change = pins_and_tags.remove_pin if unpin else pins_and_tags.set_pin
    return f"{sum(change(root, entry.place) for entry in entries)} {'un' * unpin}pinned"


def question_lines(work: Pruning, most: int) -> tuple[str, ...]:
    """Return the lines shown before entries are deleted: the first entries, and the total."""
    plan = work.plan
    lines = [
        f"{format_size(choice.entry.size_bytes):>9}  {choice.entry.module}" for choice in plan.remove[:most]
    ]
    if len(plan.remove) > most:
        lines.append(f"{'':>9}  and {len(plan.remove) - most} more")
    lines += [f"stays: {choice.entry.module}: {choice.reason}" for choice in plan.spare[:most]]
    total = plural(len(plan.remove), "entry", "entries")
    return (*lines, f"{format_size(plan.freed_bytes):>9}  {total} in all")


def delete(work: Pruning) -> str:
    """Delete those entries that may still be removed, and return a message."""
    removal, _ = work.carry_out()
    spared = (*work.plan.spare, *removal.spared)
    words = prune.format_removal(removal).splitlines()[-1]
    return f"{words}; {len(spared)} spared: {spared[0].reason}" if spared else words


REFRESH_S = 2.0
INTERRUPTED = 130
_WHEEL_ROWS = 3
_ENTRIES_ASKED = 6
_TWO = 2
# Border, padding and scroll bar of a screen that is read.
_FRAME_OF_TEXT = 6


class CacheApp(ThemedApp, KeyQueue):
    """Shows a `Browser`.

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

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "exit(0)", "quit", id="quit"),
        Binding("ctrl+c", f"exit({INTERRUPTED})", "quit with exit code 130", priority=True, id="interrupt"),
        Binding("ctrl+z", "suspend_process", "suspend to the shell (fg resumes)", id="suspend"),
        Binding("question_mark", "keys", "this help", id="help"),
        Binding("up,k", "browser('move', -1)", "up", id="up"),
        Binding("down,j", "browser('move', 1)", "down", id="down"),
        Binding("pageup", "page(-1)", "page up", id="page-up"),
        Binding("pagedown", "page(1)", "page down", id="page-down"),
        Binding("home", "browser('move', -10000000)", "first row", id="first"),
        Binding("end", "browser('move', 10000000)", "last row", id="last"),
        Binding("right,l", "browser('open')", "open the group, or step in", id="open"),
        Binding("left,h", "browser('close')", "close the group, or step out", id="close"),
        Binding("enter", "show", "details of the entry; open or close a group", id="show"),
        Binding("space", "mark", "mark or unmark for deletion; a group with its entries", id="mark"),
        Binding("a", "mark_shown", "mark everything shown", id="mark-shown"),
        Binding("u", "unmark", "clear all marks", id="unmark"),
        Binding("d", "delete", "delete the marked entries (asks first)", id="delete"),
        Binding("p", "pin", "pin or unpin", id="pin"),
        Binding("t", "tag", "tag", id="tag"),
        Binding("w", "why", "why it was compiled, or how two marked entries differ", id="why"),
        Binding("L", "locks", "locks and waiting processes", id="locks"),
        Binding("slash", "filter", "filter like 'ls --filter'", id="filter"),
        Binding("s", "browser('next_order')", "next sort key", id="sort"),
        Binding("g", "browser('next_grouping')", "next grouping", id="group"),
        Binding("r", "read", "read again", id="read"),
        Binding("ctrl+p", "command_palette", "command palette", id="palette"),
        Binding("ctrl+t", "next_theme", "next theme", id="next-theme"),
        Binding("ctrl+s", "save_svg", "save the screen as SVG", id="save-svg"),
    ]

    def __init__(self, browser: Browser, *, colour: bool = True, theme: str = AUTO) -> None:
        super().__init__(theme=theme, colour=colour, ansi_color=None if colour else True)
        self.browser = browser
        self._message = ""
        self._reading = False
        self._stamp: int | None = None

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
            self._reading = False
            self._notify_error(event.worker.error)
        elif event.state is WorkerState.SUCCESS:
            self._take(event.worker.name, event.worker.result)

    def _take(self, name: str, result: Any) -> None:
        if name == "read":
            self._reading = False
            self._stamp, entries = result
            self.browser.load(entries)
            self.show()
        elif name == "delete":
            self.browser.marks.clear()
            self.show_message(result)
            self.action_read()
        else:
            self.show_message("")
            self.push_screen(TextScreen(name, result, whole=True))

    def _notify_error(self, error: BaseException | None) -> None:
        if isinstance(error, NeuronToolsError):
            self._stamp = change_stamp(self.browser.root)
            self.show_message(" ".join(error.message.split()))
        elif error is not None:
            raise error

    def show_message(self, message: str) -> None:
        """Show a message in the bottom line."""
        self._message = message
        self.show()

    def show(self) -> None:
        """Paint all changed lines."""
        for pane in self.query(LinePane):
            pane.show(screen_lines(self.browser, self.size, reading=self._reading, message=self._message))

    # Moving

    def action_browser(self, method: str, *values: int) -> None:
        """Run a method of the browser."""
        getattr(self.browser, method)(*values)
        self.show()

    def action_page(self, pages: int) -> None:
        """Move the cursor by screens."""
        self.action_browser("move", pages * max(1, rows_shown(self.size) - 1))

    def on_click(self, event: events.Click) -> None:
        """Move the cursor to a row; a second click opens it."""
        at = event.screen_y - HEAD_LINES
        cursor = self.browser.cursor
        position = cursor.first + at
        if not 0 <= at < rows_shown(self.size) or position >= len(self.browser.rows):
            return
        if cursor.row == position:
            self.action_show()
        self.action_browser("move", position - cursor.row)

    def on_mouse_scroll_up(self) -> None:
        """Move up with the wheel."""
        self.action_browser("move", -_WHEEL_ROWS)

    def on_mouse_scroll_down(self) -> None:
        """Move down with the wheel."""
        self.action_browser("move", _WHEEL_ROWS)

    # Marks and removal

    def action_mark(self) -> None:
        """Mark the row under the cursor and move to the next."""
        refused = self.browser.toggle_mark()
        self.browser.move(1)
        self._notify_refused(refused)

    def action_mark_shown(self) -> None:
        """Mark everything shown."""
        self._notify_refused(self.browser.marks.mark(self.browser.shown))

    def action_unmark(self) -> None:
        """Clear all marks."""
        self.browser.marks.clear()
        self.show_message("")

    def action_delete(self) -> None:
        """Ask, then delete the marked entries."""
        if not self.browser.marks:
            self.show_message("nothing is marked: space marks a row, a marks all")
            return

        def chosen(choice: int | None) -> None:
            if choice == 0:
                self.show_message("deleting …")
                self.in_thread(lambda: delete(work), "delete")

        work = self.browser.marks.removal()
        lines = question_lines(work, _ENTRIES_ASKED)
        self.push_screen(
            ChooseScreen(Choose("Delete?", lines, ("delete",), lambda _: None), self.look), chosen
        )

    def _notify_refused(self, refused: Refused) -> None:
        more = f" and {len(refused) - 1} more" if len(refused) > 1 else ""
        messages = [f"not marked: {entry.module}{more}: {reason}" for entry, reason in refused[:1]]
        self.show_message("".join(messages))

    def action_pin(self) -> None:
        """Pin or unpin the entry under the cursor."""
        self._change(lambda entries: change_pins(self.browser.root, entries))

    def action_tag(self) -> None:
        """Ask for a tag and add it to the entry under the cursor."""

        def set_tag(entries: tuple[Entry, ...], tag: str) -> str:
            count = sum(pins_and_tags.set_tag(self.browser.root, entry.place, tag) for entry in entries)
            return f"{count} tagged {tag}"

        def tagged(tag: str | None) -> None:
            if tag:
                self._change(lambda entries: set_tag(entries, tag))

        self.push_screen(PromptScreen(Prompt("tag"), self.look, lambda: None), tagged)

    def _change(self, change: Callable[[tuple[Entry, ...]], str]) -> None:
        if not self.browser.chosen:
            return
        try:
            message = change(self.browser.chosen)
        except NeuronToolsError as error:
            message = " ".join(error.message.split())
        self.show_message(message)
        self.action_read()

    # Views

    def action_show(self) -> None:
        """Show an entry, or open and close a group."""
        entry = self.browser.current.entry if self.browser.current else None
        if entry is None:
            self.action_browser("toggle")
        else:
            self._read_text(entry.module, lambda width: entry_text(self.browser.root, entry, width))

    def _read_text(self, title: str, text: Callable[[int], str]) -> None:
        width = self.size.width - _FRAME_OF_TEXT
        self.in_thread(lambda: text(width), title)

    def action_why(self) -> None:
        """Explain the two marked entries, the older one first, or the one under the cursor."""
        entries = sorted(self.browser.marks.values(), key=lambda entry: entry.made_unix_s)
        if len(entries) != _TWO:
            row = self.browser.current
            entries = [row.entry] if row and row.entry else []
        if not entries:
            self.show_message("why needs an entry, or two marked entries")
            return
        self.show_message("comparing …")
        paths = tuple(entry.path for entry in entries)
        self._read_text("why", lambda width: why_text(self.browser.root, paths, width))

    def action_locks(self) -> None:
        """Show the locks."""
        root = self.browser.root
        self._read_text(
            "locks", lambda _: lock_list.format_locks(root, lock_list.list_locks(walk(root).places))
        )

    def action_keys(self) -> None:
        """Show every key."""
        self.show_help(("Keys", key_rows(self.BINDINGS)))

    def action_filter(self) -> None:
        """Filter while it is typed."""

        def changed(text: str) -> str:
            try:
                self.browser.set_filter(text)
            except NeuronToolsError as error:
                return error.message.splitlines()[0]
            return ""

        prompt = Prompt("filter: state=failed size>1GB used>30d name~bert", self.browser.filter_text, changed)
        self.push_screen(PromptScreen(prompt, self.look, self.show))
