"""Appending records to events.bin: buffered, bounded in time, and never in the way of the program that is profiled."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from neurontools.profiler.records import EVENTS_FILE, MODELS_FILE

if TYPE_CHECKING:
    from collections.abc import Callable

FLUSH_BYTES = 1 << 18
FLUSH_NS = 200_000_000


class CaptureFiles:
    """The append-only files of one capture.

    Records are written in whole blocks, when 256 KiB are waiting or 0.2 s after the last write, so that a killed
    process loses little. The first failure (a full disk) ends the capture with one warning and never raises. A forked
    child writes nothing.

    Args:
        directory: an existing, empty directory.
        on_warning: gets one line when writing fails.
    """

    def __init__(self, directory: str, on_warning: Callable[[str], None]) -> None:
        self._directory = directory
        self._on_warning = on_warning
        self._pid = os.getpid()
        self._waiting = bytearray()
        self._flushed_ns = 0
        self._fds = {name: self._open(name) for name in (EVENTS_FILE, MODELS_FILE)}

    @property
    def writable(self) -> bool:
        """Whether the capture still goes on."""
        return bool(self._fds)

    def append_model(self, line: bytes) -> None:
        """Store a line about a program or a model at once: it must be there before the first event that needs it."""
        self._write(MODELS_FILE, line)

    def append_events(self, records: bytes, now_ns: int) -> None:
        """Store whole records, soon."""
        self._waiting += records
        if len(self._waiting) >= FLUSH_BYTES or now_ns - self._flushed_ns >= FLUSH_NS:
            self._flushed_ns = now_ns
            self.flush()

    def flush(self) -> None:
        """Write what is waiting."""
        if self._waiting:
            self._write(EVENTS_FILE, self._waiting)
            self._waiting = bytearray()

    def store_once(self, name: str, data: bytes) -> None:
        """Store a file of its own unless it is there already."""
        path = os.path.join(self._directory, name)
        if not self._fds or os.path.exists(path):
            return
        try:
            with open(path + ".part", "wb") as file:
                file.write(data)
            os.replace(path + ".part", path)
        except OSError as error:
            self._stop(error)

    def close(self) -> None:
        """Write what is waiting and close the files."""
        self.flush()
        for fd in self._fds.values():
            os.close(fd)
        self._fds = {}

    def _open(self, name: str) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        return os.open(os.path.join(self._directory, name), flags, 0o644)

    def _write(self, name: str, data: bytes | bytearray) -> None:
        if not self._fds or os.getpid() != self._pid:
            return
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._fds[name], view) :]
        except OSError as error:
            self._stop(error)

    def _stop(self, error: OSError) -> None:
        for fd in self._fds.values():
            os.close(fd)
        self._fds = {}
        self._on_warning(f"profile capture in {self._directory} ended early: {error.strerror}")
