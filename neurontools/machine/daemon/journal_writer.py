"""Writes the records of registered processes; retries while the disk is full."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from neurontools.base.files import remove_quietly
from neurontools.machine.journal import save_record

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, TimerHandle

    from neurontools.machine.events import Process
    from neurontools.machine.processes import ProcessKey

log = logging.getLogger("neurond")

PAGE, RECORD = ".page", ".json"
RETRY_S = 1.0


class RecordWriter:
    """The records in one directory.

    Args:
        pages_dir: their directory, which also holds the pages.
        boot: id of this boot.
        loop: runs the timer of the records that could not be written.
    """

    def __init__(self, pages_dir: str, boot: str, loop: AbstractEventLoop) -> None:
        self._pages_dir = pages_dir
        self._boot = boot
        self._loop = loop
        self._unsaved: dict[ProcessKey, Process] = {}
        self._timer: TimerHandle | None = None

    def save(self, process: Process) -> None:
        """Write the record of a process; one that can't be written is tried again every second."""
        try:
            save_record(self.path(process.key, RECORD), process, self._boot)
        except OSError as error:
            if process.key not in self._unsaved:
                log.error("no record of process %d: %s", process.key.pid, error)  # noqa: TRY400  no traceback wanted
            self._unsaved[process.key] = process
            if self._timer is None:
                self._timer = self._loop.call_later(RETRY_S, self._retry)
        else:
            self._unsaved.pop(process.key, None)

    def remove(self, key: ProcessKey) -> None:
        """Delete the record and the page of a process."""
        self._unsaved.pop(key, None)
        for suffix in (PAGE, RECORD):
            remove_quietly(self.path(key, suffix))

    def path(self, key: ProcessKey, suffix: str) -> str:
        """Return the path of the record or the page of a process."""
        return f"{self._pages_dir}/{file_name(key, suffix)}"

    def close(self) -> None:
        """Stop retrying."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _retry(self) -> None:
        self._timer = None
        for process in list(self._unsaved.values()):
            self.save(process)


def file_name(key: ProcessKey, suffix: str) -> str:
    """Return the name of the record or the page of a process."""
    return f"{key.pid}-{key.start_ticks}{suffix}"
