"""Mixin of the app: passes updates from the source to the models and reports silence."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import suppress
from contextvars import Context, copy_context
from typing import TYPE_CHECKING

from textual.app import App

from neurontools.tui.top.machines.page import MachinesPage
from neurontools.tui.top.machines.source import MachineUpdate
from neurontools.tui.top.source import SourceProblem

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.tui.top.machines.page import MonitoredMachine
    from neurontools.tui.top.machines.source import SeveralSource
    from neurontools.tui.top.page import Page
    from neurontools.tui.top.playback import PlaybackController
    from neurontools.tui.top.source import Update, UpdateSource

_SILENT = "no data for"
_SILENCE_PERIOD_S = 1.0


class UpdateReader(App[int]):
    """Reads `source` in a thread; `paint` shows the changed model."""

    source: UpdateSource | SeveralSource
    silent_after_s: float | None
    shown_machines: tuple[MonitoredMachine, ...]
    playback: PlaybackController
    page: Page
    failure: Exception | None = None
    """The error that ended the source."""
    source_ended: asyncio.Event
    """Set at the end of the source."""
    _reader_context: Context

    def paint(self) -> None:
        """Show the model."""
        raise NotImplementedError

    def start_watching(self) -> None:
        """Start reading."""
        self._reader_context = copy_context()
        # Not a Textual worker: the interpreter would wait for a thread blocked in a read.
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._read, args=(loop,), name="neuron-top source", daemon=True).start()
        if self.silent_after_s is not None:
            self.set_timer(self.silent_after_s, self._listen)

    def take(self, update: Update | MachineUpdate) -> None:
        """Show an update of the source."""
        machine = self.shown_machines[0]
        if isinstance(update, MachineUpdate):
            machine, update = self.shown_machines[update.index], update.update
        machine.last_update_s = time.monotonic()
        machine.playback.take(update)
        if machine.playback is self.playback or self.page.name == MachinesPage.name:
            self.paint()

    def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        # A Textual message would do the same at twice the cost.
        def run(what: Callable[..., None], *values: object) -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._safely, what, *values, context=self._reader_context)

        try:
            for update in self.source.updates():
                run(self.take, update)
        except Exception as error:  # noqa: BLE001  a bug in a source must end the app, not only this thread
            run(self._fail, error)
        else:
            run(self._end)

    def _safely(self, what: Callable[..., None], *values: object) -> None:
        try:
            what(*values)
        except Exception as error:  # noqa: BLE001  a bug must end the app, not only this step
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self.failure = error
        self.exit(1)

    def _end(self) -> None:
        self.playback.is_loaded = True
        self.source_ended.set()

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
        self.set_timer(max(_SILENCE_PERIOD_S, self.silent_after_s - max(silent_s)), self._listen)


def _report_silence(machine: MonitoredMachine, silent_s: float) -> bool:
    trouble = machine.model.trouble
    if trouble and not trouble.startswith(_SILENT):
        return False
    machine.model.update(SourceProblem(f"{_SILENT} {silent_s:.0f} s"))
    return True
