"""What takes updates from the source to the models and notices when none come, for the app to inherit."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from textual.app import App
from textual.message import Message

from neurontools.tui.top_machines import MachinesPage
from neurontools.tui.top_machines_source import MachineUpdate
from neurontools.tui.top_source import Trouble

if TYPE_CHECKING:
    import asyncio

    from neurontools.tui.top_machines import Machine
    from neurontools.tui.top_machines_source import SeveralSource
    from neurontools.tui.top_page import Page
    from neurontools.tui.top_source import Source, Update
    from neurontools.tui.top_time import TimeDeck

_SILENT = "no data for"
_TOLD_EVERY_S = 1.0


class Watching(App[int]):
    """Reads `source` in a thread of its own; `paint` shows what became of it."""

    source: Source | SeveralSource
    silent_after_s: float | None
    shown_machines: tuple[Machine, ...]
    deck: TimeDeck
    page: Page
    failure: Exception | None = None
    """What ended the source against its will."""
    source_ended: asyncio.Event
    """Set when the source has nothing more to tell."""

    class Updated(Message):
        """The source yielded something."""

        def __init__(self, update: Update | MachineUpdate) -> None:
            super().__init__()
            self.update = update

    class SourceEnded(Message):
        """The source has nothing more to tell."""

    def paint(self) -> None:
        """Show the model."""
        raise NotImplementedError

    def start_watching(self) -> None:
        """Begin to read."""
        # Not a Textual worker: the interpreter would wait for a thread that is blocked in a read.
        threading.Thread(target=self._read, name="neuron-top source", daemon=True).start()
        if self.silent_after_s is not None:
            self.set_timer(self.silent_after_s, self._listen)

    def on_watching_updated(self, message: Updated) -> None:
        """Show what the source yielded."""
        update = message.update
        machine = self.shown_machines[0]
        if isinstance(update, MachineUpdate):
            machine, update = self.shown_machines[update.index], update.update
        machine.last_update_s = time.monotonic()
        machine.deck.take(update)
        if machine.deck is self.deck or self.page.name == MachinesPage.name:
            self.paint()

    def on_watching_source_ended(self) -> None:
        """Let those know who wait for the end of a recording."""
        self.deck.is_loaded = True
        self.source_ended.set()

    def _read(self) -> None:
        try:
            for update in self.source.updates():
                self.post_message(self.Updated(update))
        except Exception as error:  # noqa: BLE001  a bug in a source must end the app, not only this thread
            self.failure = error
            self.call_from_thread(self.exit, 1)
        else:
            self.post_message(self.SourceEnded())

    def _listen(self) -> None:
        # As long as data comes this wakes up about when it could have become too late, not each second.
        assert self.silent_after_s is not None
        now_s = time.monotonic()
        silent_s = [now_s - machine.last_update_s for machine in self.shown_machines]
        told = [
            _tell(machine, for_s)
            for machine, for_s in zip(self.shown_machines, silent_s, strict=True)
            if for_s > self.silent_after_s
        ]
        if any(told):
            self.paint()
        self.set_timer(max(_TOLD_EVERY_S, self.silent_after_s - max(silent_s)), self._listen)


def _tell(machine: Machine, silent_s: float) -> bool:
    trouble = machine.model.trouble
    if trouble and not trouble.startswith(_SILENT):
        return False
    machine.model.update(Trouble(f"{_SILENT} {silent_s:.0f} s"))
    return True
