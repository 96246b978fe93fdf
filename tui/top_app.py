"""neuron-top: the live dashboard as a Textual app. It only carries updates and keys to the model and lines to the terminal."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from typing import TYPE_CHECKING, ClassVar

from textual.geometry import Size
from textual.message import Message

from neurontools.dashboard.lookout import Lookout
from neurontools.dashboard.tape import Tape
from neurontools.tui.line_pane import LinePane
from neurontools.tui.lines import Role, fit
from neurontools.tui.top_background import hinted_dark
from neurontools.tui.top_bars import keys_bar, page_at, page_bar
from neurontools.tui.top_classic_actions import ClassicActions
from neurontools.tui.top_driver import TopDriver
from neurontools.tui.top_key_names import key_troubles
from neurontools.tui.top_keys import ANYWHERE, CLASSIC, CLASSIC_ACTIONS
from neurontools.tui.top_layout import MIN_HEIGHT, MIN_WIDTH, too_small
from neurontools.tui.top_machines import Machine, MachinesPage, machines_title
from neurontools.tui.top_machines_actions import MACHINE_KEYS, MachineActions
from neurontools.tui.top_machines_source import MachineUpdate
from neurontools.tui.top_model import TopModel
from neurontools.tui.top_names import AUTO
from neurontools.tui.top_page import filled
from neurontools.tui.top_page_pane import PagePane
from neurontools.tui.top_pages import make_pages
from neurontools.tui.top_rows import title_line
from neurontools.tui.top_screen import panes
from neurontools.tui.top_settings import TopSettings
from neurontools.tui.top_source import Trouble
from neurontools.tui.top_theme import MONOCHROME, theme_for
from neurontools.tui.top_time import SHORTEST_TAPED_NS, TimeDeck
from neurontools.tui.top_time_actions import TimeActions
from neurontools.tui.top_typing import KeysInTurn

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from textual import events
    from textual.app import ComposeResult
    from textual.binding import BindingType

    from neurontools.dashboard.alerts import Alert
    from neurontools.tui.lines import Line
    from neurontools.tui.top_machines_source import SeveralSource
    from neurontools.tui.top_palette import TopCommands
    from neurontools.tui.top_source import Source, Update

_CLASSIC_PANES = ("cores", "cpu", "summary", "details")
_PLAY_S = 0.1
_CHROME_LINES = 3  # title, and the two lines of the bottom bar


def _commands() -> type[TopCommands]:
    from neurontools.tui.top_palette import TopCommands

    return TopCommands


class TopApp(ClassicActions, MachineActions, TimeActions, KeysInTurn):
    """The dashboard.

    Args:
        source: what the dashboard shows; closed when the app ends.
        colour: False draws without any colour.
        silent_after_s: say so when the source yields nothing for this long; None for sources that may pause.
        settings: the user's wishes.
        notices: what to tell the user at the start.
        readonly: send no signals.
        on_alert: is told of every alert that begins.
        process_filter: filter of the process page to begin with.
        replay: the tape that `source` fills, and the speed at which it is played; None follows the source.
        machines: name and source of each machine where `source` tells of several.
    """

    TITLE = "neuron-top"
    CSS = "Screen { overflow: hidden; } Screen:ansi { background: ansi_default; }"
    ENABLE_COMMAND_PALETTE = True
    COMMANDS: ClassVar[set[Callable[[], type[TopCommands]]]] = {_commands}  # type: ignore[assignment]
    ALLOW_SELECT = False
    AUTO_FOCUS = None  # a page that is shown gets the focus, no other one
    BINDINGS: ClassVar[list[BindingType]] = [*ANYWHERE, *MACHINE_KEYS, *CLASSIC]

    class Updated(Message):
        """The source yielded something."""

        def __init__(self, update: Update | MachineUpdate) -> None:
            super().__init__()
            self.update = update

    class SourceEnded(Message):
        """The source has nothing more to tell."""

    def __init__(
        self,
        source: Source | SeveralSource,
        *,
        colour: bool = True,
        silent_after_s: float | None = None,
        settings: TopSettings | None = None,
        notices: Sequence[str] = (),
        readonly: bool = False,
        on_alert: Callable[[Alert], None] | None = None,
        process_filter: str = "",
        replay: tuple[Tape, float] | None = None,
        machines: Sequence[tuple[str, str]] = (),
    ) -> None:
        super().__init__(ansi_color=not colour, driver_class=TopDriver)
        self.settings = settings or TopSettings()
        tape, speed = replay or (Tape(SHORTEST_TAPED_NS), 1.0)
        shown: list[Machine] = []
        for name, where in machines or (("", source.name),):
            lookout = Lookout(self.settings.rules, on_alert)
            model = TopModel(colour=colour, source=where, lookout=lookout)
            deck = TimeDeck(model, tape if not shown else Tape(SHORTEST_TAPED_NS), replay=replay is not None)
            deck.speed = speed
            shown.append(Machine(name, model, deck))
        self.model, self.deck = shown[0].model, shown[0].deck
        self.machines = tuple(shown) if machines else ()
        self.shown_machines = tuple(shown)
        self.pages = make_pages(self.settings.columns, readonly=readonly, process_filter=process_filter)
        self.page = next(page for page in self.pages if page.name == self.settings.page)
        if self.machines:
            page = MachinesPage(self.machines)
            page.on_choose = self.turn_to_machine
            self.pages = (*self.pages, page)
            self.page = page if self.page is self.pages[0] else self.page
        self.follows_background = colour and self.settings.theme == AUTO
        dark = hinted_dark(os.environ)
        self.look = theme_for(self.settings.theme, dark=dark) if colour else MONOCHROME
        self.failure: Exception | None = None
        self.source_ended = asyncio.Event()
        self._source = source
        self._notices = notices
        self._silent_after_s = silent_after_s
        self.set_keymap(dict(self.settings.keys))

    def compose(self) -> ComposeResult:
        """Make the panes, top to bottom."""
        for name in ("title", "machines", *_CLASSIC_PANES):
            yield LinePane(self.look.styles, id=name)
        for page in self.pages[1:]:
            yield PagePane(page, self.look.styles)
        yield LinePane(self.look.styles, id="bottom")

    def on_mount(self) -> None:
        """Draw the empty dashboard, start reading the source, restore the terminal on SIGTERM and SIGHUP."""
        if not self.is_headless:
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGHUP):
                loop.add_signal_handler(number, self.exit, 128 + number)
        # Panes paint only what changed, so after ctrl+z and fg they must be told that the terminal is empty.
        self.app_resume_signal.subscribe(self, lambda _: self.refresh(layout=True))
        self.wear(self.look)
        self.turn_to(self.page)
        if notices := (*self._notices, *key_troubles(self.settings.keys)):
            self.notify("\n".join(notices), severity="warning", markup=False, timeout=10)
        # Not a Textual worker: the interpreter would wait for a thread that is blocked in a read.
        threading.Thread(target=self._read, name="neuron-top source", daemon=True).start()
        if self._silent_after_s is not None:
            self.set_interval(1.0, self._check)
        if self.deck.is_replay:
            self.set_interval(_PLAY_S, self._play)

    def on_unmount(self) -> None:
        """Let the reading thread end."""
        self._source.close()
        for machine in self.shown_machines:
            machine.deck.tape.close()

    def on_resize(self) -> None:
        """Lay out again, once the app knows its new size."""
        self.call_later(self.paint)

    def on_top_app_updated(self, message: Updated) -> None:
        """Show what the source yielded."""
        update = message.update
        machine = self.shown_machines[0]
        if isinstance(update, MachineUpdate):
            machine, update = self.shown_machines[update.index], update.update
        machine.last_update_s = time.monotonic()
        machine.deck.take(update)
        if machine.deck is self.deck or self.page.name == MachinesPage.name:
            self.paint()

    def on_top_app_source_ended(self) -> None:
        """Let those know who wait for the end of a recording."""
        self.deck.is_loaded = True
        self.source_ended.set()

    def on_click(self, event: events.Click) -> None:
        """Let the page know, or turn to another one."""
        if len(self.screen_stack) > 1 or too_small(*self.size):
            return
        x, (width, height) = event.screen_x, self.size
        strip = len(self.strip(width, height))
        y = event.screen_y - strip  # as if the names of several machines were not there
        if strip and y == 0:
            self.click_strip(x)
        elif self.is_classic:
            self.click_classic(x, y, Size(width, height - strip))
        elif event.screen_y == height - 2:
            self.turn_to(page_at(self.pages, self.page, width, x) or self.page)
        elif 1 <= y < height - strip - 2:
            self.carry_out(self.page.click(self.model, x, y - 1))
        self.paint()

    def on_mouse_scroll_down(self) -> None:
        """Move the selection down."""
        self._scroll(1)

    def on_mouse_scroll_up(self) -> None:
        """Move the selection up."""
        self._scroll(-1)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Return whether a key means anything on this page."""
        if action == "turn_machine" or (action, parameters) == ("page", (MachinesPage.name,)):
            return bool(self.machines)
        return self.is_classic or action not in CLASSIC_ACTIONS

    def paint(self) -> None:
        """Show the model: only what its page shows is computed, and only lines that changed are written."""
        width, height = self.size
        shown: dict[str, Sequence[Line]] = {"title": self._small(width, height)}
        if not too_small(width, height):
            strip = self.strip(width, height)
            shown = {**self._page_lines(width, height - len(strip)), "machines": strip}
        with self.batch_update():
            for pane in self.screen_stack[0].query(LinePane):
                pane.show(shown.get(pane.id or "", ()))

    def _page_lines(self, width: int, height: int) -> dict[str, Sequence[Line]]:
        if self.is_classic:
            drawn = panes(self.model, width, height)
            return {name: getattr(drawn, name) for name in ("title", *_CLASSIC_PANES, "bottom")}
        room = height - _CHROME_LINES
        return {
            "title": (self._title(width),),
            f"page-{self.page.name}": filled(self.page.lines(self.model, width, room), width, room),
            "bottom": (
                page_bar(self.pages, self.page, width),
                keys_bar(self.page, self.settings.keys, width),
            ),
        }

    def _title(self, width: int) -> Line:
        if self.page.name == MachinesPage.name:
            return machines_title(len(self.machines), width)
        return title_line(self.model, width)

    def _scroll(self, steps: int) -> None:
        if self.is_classic:
            self.model.tree.move(steps)
        else:
            self.page.scroll(self.model, steps)
        self.paint()

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
        changed = [self._check_machine(machine) for machine in self.shown_machines]
        if any(changed):
            self.paint()

    def _check_machine(self, machine: Machine) -> bool:
        silent_s = time.monotonic() - machine.last_update_s
        trouble = machine.model.trouble
        known = trouble and not trouble.startswith("no data for")
        if self._silent_after_s is None or silent_s <= self._silent_after_s or known:
            return False
        machine.model.update(Trouble(f"no data for {silent_s:.0f} s"))
        return True

    def _play(self) -> None:
        if self.deck.advance():
            self.paint()

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
