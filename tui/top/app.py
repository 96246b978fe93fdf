"""neuron-top as a Textual app: passes updates of its source, keys and the mouse to the model, and lines to the terminal."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, ClassVar

from textual.geometry import Size

from neurontools.dashboard.monitor import MachineMonitor
from neurontools.dashboard.snapshot_history import SnapshotHistory
from neurontools.tui.top.keys import ANYWHERE, CLASSIC, CLASSIC_ACTIONS, MACHINE_KEYS, key_problems
from neurontools.tui.top.layout import too_small
from neurontools.tui.top.model import TopModel
from neurontools.tui.top.page import PageOptions
from neurontools.tui.top.page_actions import MachineActions, TopCommands
from neurontools.tui.top.pages.registry import make_pages
from neurontools.tui.top.playback import SHORTEST_TAPED_NS, MonitoredMachine, PlaybackController
from neurontools.tui.top.screen import TITLE, page_keys, page_names, whole_frame
from neurontools.tui.top.settings import TopSettings
from neurontools.tui.top.source import (
    Item,
    MachineUpdate,
    SeveralSource,
    SourceEnd,
    SourceProblem,
    Update,
    UpdateReader,
    UpdateSource,
)
from neurontools.tui.widgets.line_pane import LinePane, write_rows
from neurontools.tui.widgets.terminal_driver import TerminalDriver
from neurontools.tui.widgets.themed_app import KeyQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from textual import events
    from textual.app import ComposeResult
    from textual.binding import BindingType
    from textual.timer import Timer

    from neurontools.dashboard.alerts import Alert
    from neurontools.tui.top.page import Page
    from neurontools.tui.top.screen import Frame
    from neurontools.tui.widgets.start_screen import StartScreen


_PLAY_S = 0.1
_BEHIND_S = 0.2
_SILENT = "no data for"
_SILENCE_PERIOD_S = 1.0
_LINES_OF_NOTICE = 6  # that one may take, with room to spare


def limit_notices(notices: Sequence[str], most: int) -> tuple[str, ...]:
    """Return the first notices, and a line with the number of the others."""
    if len(notices) <= most:
        return tuple(notices)
    return (*notices[:most], f"and {len(notices) - most} more; neuron-top --once lists them all")


def _commands() -> type[TopCommands]:

    return TopCommands


class TopApp(MachineActions, KeyQueue):
    """The dashboard.

    Args:
        source: the data; closed when the app ends.
        colour: False draws without any colour.
        silent_after_s: warn if the source yields nothing for this long; None for sources that may pause.
        settings: of the user.
        notices: shown at the start.
        readonly: send no signals.
        on_alert: called with every alert that begins.
        process_filter: initial filter of the process page.
        replay: the history that `source` fills, and the speed at which it is played; None follows the source.
        machines: name and source of each machine, if `source` has several.
        reader: already reads `source`; None makes one.
        start_screen: has the terminal, with a first frame.
    """

    TITLE = TITLE
    CSS = "Screen { overflow: hidden; } Screen:ansi { background: ansi_default; }"
    ENABLE_COMMAND_PALETTE = True
    COMMANDS: ClassVar[set[Callable[[], type[TopCommands]]]] = {_commands}  # type: ignore[assignment]
    ALLOW_SELECT = False
    AUTO_FOCUS = None  # only the visible page has the focus
    BINDINGS: ClassVar[list[BindingType]] = [*ANYWHERE, *MACHINE_KEYS, *CLASSIC]
    failure: Exception | None = None
    """The error that ended the source."""
    _reader_context: Context

    def __init__(
        self,
        source: UpdateSource | SeveralSource,
        *,
        colour: bool = True,
        silent_after_s: float | None = None,
        settings: TopSettings | None = None,
        notices: Sequence[str] = (),
        readonly: bool = False,
        on_alert: Callable[[Alert], None] | None = None,
        process_filter: str = "",
        replay: tuple[SnapshotHistory, float] | None = None,
        machines: Sequence[tuple[str, str]] = (),
        reader: UpdateReader | None = None,
        start_screen: StartScreen | None = None,
    ) -> None:
        self.settings = settings or TopSettings()
        super().__init__(
            theme=self.settings.theme,
            colour=colour,
            dark=start_screen.is_dark if start_screen else None,
            ansi_color=None if colour else True,
        )
        self.shows_classic = self.settings.classic
        history, speed = replay or (SnapshotHistory(SHORTEST_TAPED_NS), 1.0)
        shown: list[MonitoredMachine] = []
        for name, where in machines or (("", source.name),):
            monitor = MachineMonitor(self.settings.rules, on_alert)
            model = TopModel(colour=colour, source=where, monitor=monitor)
            playback = PlaybackController(
                model, history if not shown else SnapshotHistory(SHORTEST_TAPED_NS), replay=replay is not None
            )
            playback.speed = speed
            shown.append(MonitoredMachine(name, model, playback))
        self.model, self.playback = shown[0].model, shown[0].playback
        self.machines = tuple(shown) if machines else ()
        self.shown_machines = tuple(shown)
        self.pages = make_pages(
            PageOptions(self.settings.columns, readonly, process_filter),
            machines=self._make_machines_page if machines else None,
        )
        page = self.settings.page
        self.page = self.pages[-1] if machines and page == self.pages.names[0] else self.pages.named(page)
        self.start_screen = start_screen
        self.source_ended = asyncio.Event()
        """Set at the end of the source."""
        self.source = source
        self._reader = reader or UpdateReader(source)
        self._notices = notices
        self._later: Timer | None = None
        self._next_listen: asyncio.TimerHandle | None = None
        self.silent_after_s = silent_after_s
        self.set_keymap(dict(self.settings.keys))

    def _make_machines_page(self) -> Page:
        from neurontools.tui.top.pages.machines import MachinesPage

        page = MachinesPage(self.machines)
        page.on_choose = self.turn_to_machine
        return page

    def compose(self) -> ComposeResult:
        """Make the panes, top to bottom; those of other pages are made when they are shown."""
        for name in ("title", "machines") if self.machines else ("title",):
            yield LinePane(self.look.styles, id=name)
        yield from self.missing_panes()
        yield LinePane(self.look.styles, id="bottom")

    def on_mount(self) -> None:
        """Draw the empty dashboard, start reading the source."""
        self.apply_theme(self.look)
        self._start_watching()  # what has come already is in the first frame
        self.turn_to(self.page)
        if notices := (*self._notices, *key_problems(self.settings.keys, several=bool(self.machines))):
            notices = limit_notices(notices, max(3, self.size.height // _LINES_OF_NOTICE))
            self.notify("\n".join(notices), severity="warning", markup=False, timeout=10)
        if self.playback.is_replay:
            self.set_interval(_PLAY_S, self._play)

    def on_unmount(self) -> None:
        """End the reading thread."""
        if self._next_listen is not None:
            self._next_listen.cancel()
        self.source.close()
        for machine in self.shown_machines:
            machine.playback.history.close()

    def on_resize(self) -> None:
        """Lay out again, once the app knows its new size."""
        self.call_later(self.paint)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Return whether a key is active on this page."""
        if action == "turn_machine" or (action, parameters) == ("page", ("machines",)):
            return bool(self.machines)
        return self.is_overview or action not in CLASSIC_ACTIONS

    def paint(self) -> None:
        """Show the model: only the visible page is computed, and only changed lines are written."""
        if not self.panes:
            return
        if isinstance(self._driver, TerminalDriver) and self._driver.is_behind:
            self._paint_later()
            return
        frame = self._frame()
        shown = [(pane, tuple(frame.get(pane.id or "", ()))) for pane in self.panes]
        changed = [(pane, lines) for pane, lines in shown if lines != pane.lines]
        if not changed or write_rows(self, changed):
            return
        with self.batch_update():
            for pane, lines in changed:
                pane.show(lines)

    def _paint_later(self) -> None:
        # A terminal that accepts no output must not block the app, which still handles signals.
        if self._later is None:
            self._later = self.set_timer(_BEHIND_S, self._catch_up)

    def _catch_up(self) -> None:
        self._later = None
        self.paint()

    def _frame(self) -> Frame:
        return whole_frame(
            self.pages,
            self.page,
            self.model,
            self.size,
            self.settings.keys,
            classic=self.shows_classic,
            strip=self.strip(*self.size),
        )

    def _play(self) -> None:
        if self.playback.advance():
            self.paint()

    def action_tree(self, method: str, *values: int) -> None:
        """Run a method of the memory tree."""
        getattr(self.model.tree, method)(*values)
        self.paint()

    def action_model(self, method: str, *values: int) -> None:
        """Run a method of the model."""
        getattr(self.model, method)(*values)
        self.paint()

    def action_playback(self, method: str, *values: int) -> None:
        """Run a method of the playback."""
        getattr(self.playback, method)(*values)
        self.paint()

    # The mouse

    def on_click(self, event: events.Click) -> None:
        """Pass the click to the page, or switch to another page."""
        if len(self.screen_stack) > 1 or too_small(*self.size):
            return
        x, (width, height) = event.screen_x, self.size
        strip = len(self.strip(width, height))
        y = event.screen_y - strip  # without the machine bar
        if strip and y == 0:
            self.click_strip(x)
        elif self.is_classic:
            from neurontools.tui.top.pages.overview import click_classic

            click_classic(self.model, x, y, Size(width, height - strip))
        elif event.screen_y in {0, height - 1}:
            self._click_page(x, width, at_top=event.screen_y == 0)
        elif 1 <= y < height - strip - 2:
            self.carry_out(self.page.click(self.model, x, y - 1))
        self.paint()

    def _click_page(self, x: int, width: int, *, at_top: bool) -> None:
        line = (
            page_names(self.pages, self.page, self.model, width)
            if at_top
            else page_keys(self.pages, self.page, self.settings.keys, width)
        )
        position = line.at(x)
        if position is not None:
            self.turn_to(self.pages[position])

    def on_mouse_scroll_down(self) -> None:
        """Move the selection down."""
        self._scroll(1)

    def on_mouse_scroll_up(self) -> None:
        """Move the selection up."""
        self._scroll(-1)

    def _scroll(self, steps: int) -> None:
        if len(self.screen_stack) > 1 or too_small(*self.size):
            return
        self.page.scroll(self.model, steps)
        self.paint()

    # The source

    def _start_watching(self) -> None:
        self._reader_context = copy_context()
        loop = asyncio.get_running_loop()

        def pass_on(item: Item) -> None:
            # A Textual message would do the same at twice the cost.
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._safely, self._receive, item, context=self._reader_context)

        for item in self._reader.follow(pass_on):
            self._receive(item)
        if self.silent_after_s is not None:
            self._listen_in(self.silent_after_s)

    def take(self, update: Update | MachineUpdate) -> None:
        """Show an update of the source."""
        machine = self.shown_machines[0]
        if isinstance(update, MachineUpdate):
            machine, update = self.shown_machines[update.index], update.update
        machine.last_update_s = time.monotonic()
        machine.playback.take(update)
        if machine.playback is self.playback or self.lists_machines:
            self.paint()

    def _receive(self, item: Item) -> None:
        if not isinstance(item, SourceEnd):
            self.take(item)
        elif item.error is not None:
            self._fail(item.error)
        else:
            self.playback.is_loaded = True
            self.source_ended.set()

    def _safely(self, what: Callable[..., None], *values: object) -> None:
        try:
            what(*values)
        except Exception as error:  # noqa: BLE001  a bug must end the app, not only this step
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self.failure = error
        self.exit(1)

    def _listen(self) -> None:
        # While data arrives this wakes up only when it could be late, not each second.
        assert self.silent_after_s is not None
        now_s = time.monotonic()
        silent_s = [now_s - machine.last_update_s for machine in self.shown_machines]
        reported = [
            _report_silence(machine, for_s)
            for machine, for_s in zip(self.shown_machines, silent_s, strict=True)
            if for_s > self.silent_after_s
        ]
        if any(reported):
            self.paint()
        self._listen_in(max(_SILENCE_PERIOD_S, self.silent_after_s - max(silent_s)))

    def _listen_in(self, delay_s: float) -> None:
        # A timer of Textual is a task; this is needed every few seconds, also on a machine that rests.
        self._next_listen = asyncio.get_running_loop().call_later(
            delay_s, self._safely, self._listen, context=self._reader_context
        )


def _report_silence(machine: MonitoredMachine, silent_s: float) -> bool:
    trouble = machine.model.trouble
    if trouble and not trouble.startswith(_SILENT):
        return False
    machine.model.update(SourceProblem(f"{_SILENT} {silent_s:.0f} s"))
    return True
