"""Processes that are asked to profile themselves for a viewer."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from neurontools.machine.pages.page import ring_profile

if TYPE_CHECKING:
    from collections.abc import Mapping

    from neurontools.machine.daemon.telemetry import Telemetry
    from neurontools.machine.processes import ProcessKey

_LARGEST = 0xFFFFFFFF


class ProfileRequests:
    """The requests of viewers; each is a directory, and a number in the doorbell of the process.

    A viewer that dies leaves its request behind; the process notices that no viewer is left, and withdraws it. Requests
    end with the daemon.

    Args:
        telemetry: the pages of the processes.
    """

    def __init__(self, telemetry: Mapping[ProcessKey, Telemetry]) -> None:
        self._telemetry = telemetry
        self._directories: dict[ProcessKey, str] = {}
        # Processes know the last request of a former daemon by its number: another one must be new to them.
        self._last = time.monotonic_ns() // 1_000_000 % _LARGEST

    def ask(self, key: ProcessKey, directory: str) -> str:
        """Ask a process to profile itself, unless something does; return the directory."""
        if key not in self._directories:
            self._directories[key] = directory
            self._last = self._last % _LARGEST + 1
            self._ring(key, self._last)
        return self._directories[key]

    def end(self, key: ProcessKey, directory: str) -> None:
        """Withdraw a request, unless it has been replaced by another."""
        if self._directories.get(key) == directory:
            del self._directories[key]
            self._ring(key, 0)

    def directory(self, key: ProcessKey) -> str:
        """Return where a process is to profile itself to, "" for nowhere."""
        return self._directories.get(key, "")

    def left(self, key: ProcessKey) -> None:
        """Forget an exited process."""
        self._directories.pop(key, None)

    def adopted(self) -> None:
        """Withdraw the requests of a former daemon."""
        for key in self._telemetry:
            self._ring(key, 0)

    def _ring(self, key: ProcessKey, number: int) -> None:
        page_fd = self._telemetry[key].page_fd
        if page_fd is not None:
            ring_profile(page_fd, number)
