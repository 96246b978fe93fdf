"""neuron-top: the live dashboard as a Textual app. It only carries updates and keys to the model and lines to the terminal."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, ClassVar

from textual.app import App
from textual.binding import Binding, BindingType
from textual.message import Message

from neurontools.tui.line_pane import LinePane
from neurontools.tui.lines import Role, fit
from neurontools.tui.top_help import HelpScreen
from neurontools.tui.top_layout import MIN_HEIGHT, MIN_WIDTH, too_small
from neurontools.tui.top_memory import first_row
from neurontools.tui.top_model import TopModel
from neurontools.tui.top_rows import tab_at
from neurontools.tui.top_screen import layout_for, panes
from neurontools.tui.top_source import Trouble
from neurontools.tui.top_theme import BACKGROUND, COLOUR, MONOCHROME

if TYPE_CHECKING:
    from textual import events
    from textual.app import ComposeResult

    from neurontools.tui.lines import Line
    from neurontools.tui.top_source import Source, Update

_PANES = ("title", "cores", "cpu", "summary", "details", "bottom")
_INTERRUPTED = 130


class TopApp(App[int]):
    """The dashboard.

    Args:
        source: what the dashboard shows; closed when the app ends.
        colour: False draws without any colour.
        silent_after_s: say so when the source yields nothing for this long; None for sources that may pause.
    """

    TITLE = "neuron-top"
    CSS = f"""
    Screen {{ background: {BACKGROUND}; overflow: hidden; }}
    Screen:ansi {{ background: ansi_default; }}
    """
    ENABLE_COMMAND_PALETTE = False
    ALLOW_SELECT = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "exit(0)", "quit"),
        Binding("ctrl+c", f"exit({_INTERRUPTED})", "interrupt", priority=True),
        Binding("ctrl+z", "suspend_process", "suspend"),
        Binding("up", "move(-1)", "up"),
        Binding("down", "move(1)", "down"),
        Binding("pageup", "move(-10)", "page up"),
        Binding("pagedown", "move(10)", "page down"),
        Binding("home", "move(-1000000)", "first"),
        Binding("end", "move(1000000)", "last"),
        Binding("left", "collapse", "collapse"),
        Binding("right", "expand", "expand"),
        Binding("enter", "toggle_row", "expand or collapse"),
        Binding("x", "toggle_all", "expand or collapse all"),
        Binding("a", "step_tab(-1)", "previous tab"),
        Binding("d", "step_tab(1)", "next tab"),
        Binding("f,F", "flops", "FLOPS"),
        Binding("question_mark", "help", "help"),
        Binding("ctrl+s", "save_svg", "save as SVG"),
        *(Binding(str(number), f"tab({number})", f"tab {number}") for number in range(1, 10)),
    ]

    class Updated(Message):
        """The source yielded something."""

        def __init__(self, update: Update) -> None:
            super().__init__()
            self.update = update

    class SourceEnded(Message):
        """The source has nothing more to tell."""

    def __init__(self, source: Source, *, colour: bool = True, silent_after_s: float | None = None) -> None:
        super().__init__(ansi_color=not colour)
        self.model = TopModel(colour=colour, source=source.name)
        self.failure: Exception | None = None
        self._source = source
        self._look = COLOUR if colour else MONOCHROME
        self._silent_after_s = silent_after_s
        self._last_update_s = time.monotonic()
        self.source_ended = asyncio.Event()

    def compose(self) -> ComposeResult:
        """Make the panes, top to bottom."""
        for name in _PANES:
            yield LinePane(self._look, id=name)

    def on_mount(self) -> None:
        """Draw the empty dashboard, start reading the source, restore the terminal on SIGTERM and SIGHUP."""
        if not self.is_headless:
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGHUP):
                loop.add_signal_handler(number, self.exit, 128 + number)
        # Panes paint only what changed, so after ctrl+z and fg they must be told that the terminal is empty.
        self.app_resume_signal.subscribe(self, lambda _: self.refresh(layout=True))
        self._paint()
        # Not a Textual worker: the interpreter would wait for a thread that is blocked in a read.
        threading.Thread(target=self._read, name="neuron-top source", daemon=True).start()
        if self._silent_after_s is not None:
            self.set_interval(1.0, self._check)

    def on_unmount(self) -> None:
        """Let the reading thread end."""
        self._source.close()

    def on_resize(self) -> None:
        """Lay out again, once the app knows its new size."""
        self.call_later(self._paint)

    def on_top_app_updated(self, message: Updated) -> None:
        """Show what the source yielded."""
        self._last_update_s = time.monotonic()
        self.model.update(message.update)
        self._paint()

    def on_top_app_source_ended(self) -> None:
        """Let those know who wait for the end of a recording."""
        self.source_ended.set()

    def on_click(self, event: events.Click) -> None:
        """Select the row or the tab under the mouse; a click on the selected row toggles it."""
        if len(self.screen_stack) > 1 or too_small(*self.size):
            return
        row = self._row_at(event.screen_y)
        if row is not None:
            if row == self.model.selected:
                self.model.toggle()
            else:
                self.model.select(row)
        elif event.screen_y == self.size.height - 2:
            tab = tab_at(self.model, self.size.width, event.screen_x)
            if tab is not None:
                self.model.go_to_tab(tab)
        self._paint()

    def on_mouse_scroll_down(self) -> None:
        """Move the selection down."""
        self.action_move(1)

    def on_mouse_scroll_up(self) -> None:
        """Move the selection up."""
        self.action_move(-1)

    def action_exit(self, code: int) -> None:
        """End the app with an exit code."""
        self.exit(code)

    def action_move(self, steps: int) -> None:
        """Move the selection in the tree."""
        self.model.move(steps)
        self._paint()

    def action_toggle_row(self) -> None:
        """Open or close the selected row."""
        self.model.toggle()
        self._paint()

    def action_expand(self) -> None:
        """Open the selected row."""
        self.model.expand()
        self._paint()

    def action_collapse(self) -> None:
        """Close the selected row or go to its parent."""
        self.model.collapse()
        self._paint()

    def action_toggle_all(self) -> None:
        """Open or close the whole tree."""
        self.model.toggle_all()
        self._paint()

    def action_step_tab(self, steps: int) -> None:
        """Go to the previous or next tab."""
        self.model.step_tab(steps)
        self._paint()

    def action_tab(self, number: int) -> None:
        """Go to a tab by its number on the screen."""
        self.model.go_to_tab(number - 1)
        self._paint()

    def action_flops(self) -> None:
        """Switch between utilization and FLOPS."""
        self.model.toggle_flops()
        self._paint()

    def action_help(self) -> None:
        """Show the keys."""
        self.push_screen(HelpScreen(self._look))

    def action_save_svg(self) -> None:
        """Save the screen as an SVG picture in the working directory."""
        try:
            path = self.save_screenshot()
        except OSError as error:
            self.notify(f"cannot save the screen: {error.strerror}", severity="error", markup=False)
        else:
            self.notify(f"saved {path}", markup=False)

    def _read(self) -> None:
        try:
            for update in self._source.updates():
                self.post_message(self.Updated(update))
        except Exception as error:  # noqa: BLE001  a bug in a source must end the app, not only this thread
            self.failure = error
            self.call_from_thread(self.exit, 1)
        else:
            self.post_message(self.SourceEnded())

    def _check(self) -> None:
        if not self.is_headless and not (sys.__stdin__ and sys.__stdin__.isatty()):
            self.exit(128 + signal.SIGHUP)  # the terminal is gone; Textual would read its end for ever
        silent_s = time.monotonic() - self._last_update_s
        if (
            self._silent_after_s is not None
            and silent_s > self._silent_after_s
            and not self._is_known_trouble()
        ):
            self.model.update(Trouble(f"no data for {silent_s:.0f} s"))
            self._paint()

    def _is_known_trouble(self) -> bool:
        return bool(self.model.trouble) and not self.model.trouble.startswith("no data for")

    def _row_at(self, y: int) -> int | None:
        layout = layout_for(self.model, *self.size)
        top = self.size.height - 2 - layout.tree_lines
        if not top <= y < self.size.height - 2:
            return None
        index = first_row(self.model, layout.tree_lines) + y - top
        return index if index < len(self.model.rows) else None

    def _paint(self) -> None:
        width, height = self.size
        shown = self._small(width, height) if too_small(width, height) else None
        drawn = None if shown else panes(self.model, width, height)
        with self.batch_update():
            for name in _PANES:
                lines = getattr(drawn, name) if drawn else (shown if name == "title" else ())
                self.screen_stack[0].query_one(f"#{name}", LinePane).show(lines or ())

    @staticmethod
    def _small(width: int, height: int) -> tuple[Line, ...]:
        text = (
            "neuron-top",
            f"needs {MIN_WIDTH}x{MIN_HEIGHT},",
            f"here are {width}x{height}",
            "(q: quit)",
        )
        lines = tuple(fit(((line.center(width), Role.PLAIN),), width) for line in text)
        above = max(0, (height - len(lines)) // 2)
        return (*((fit((), width),) * above), *lines)[:height]
