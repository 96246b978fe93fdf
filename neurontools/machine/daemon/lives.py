"""Whose end takes which registered processes off the machine: their own, or that of the player of synthetic ones."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from neurontools.machine.processes import open_pidfd

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Callable

    from neurontools.machine.processes import ProcessKey


class Lives:
    """Watches living processes, each by one pidfd, however many registered ones end with it.

    Args:
        loop: tells when a watched process is gone.
        on_end: gets the registered processes that end with it.
    """

    def __init__(self, loop: AbstractEventLoop, on_end: Callable[[tuple[ProcessKey, ...]], None]) -> None:
        self._loop = loop
        self._on_end = on_end
        self._pidfds: dict[ProcessKey, int] = {}
        self._tied: dict[ProcessKey, dict[ProcessKey, None]] = {}
        self._living: dict[ProcessKey, ProcessKey] = {}

    def tie(self, key: ProcessKey, living: ProcessKey) -> None:
        """Let a registered process end with a living one.

        Raises:
            ProcessLookupError: that one is gone.
        """
        if living not in self._pidfds:
            self._pidfds[living] = pidfd = open_pidfd(living)
            self._tied[living] = {}
            self._loop.add_reader(pidfd, self._ended, living)
        self._tied[living][key] = None
        self._living[key] = living

    def untie(self, key: ProcessKey) -> None:
        """Watch no longer for a registered process; no error when it was not tied."""
        living = self._living.pop(key, None)
        if living is None:
            return
        del self._tied[living][key]
        if not self._tied[living]:
            self._drop(living)

    def tied_to(self, living: ProcessKey) -> tuple[ProcessKey, ...]:
        """Return the registered processes that end with a living one."""
        return tuple(self._tied.get(living, ()))

    def close(self) -> None:
        """Watch nothing any more."""
        for living in list(self._pidfds):
            self._drop(living)
        self._living.clear()

    def _ended(self, living: ProcessKey) -> None:
        self._on_end(self.tied_to(living))

    def _drop(self, living: ProcessKey) -> None:
        pidfd = self._pidfds.pop(living)
        self._loop.remove_reader(pidfd)
        os.close(pidfd)
        del self._tied[living]
