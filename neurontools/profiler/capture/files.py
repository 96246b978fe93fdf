"""The append-only files of a capture, and the ring that keeps the newest records."""

from __future__ import annotations

import os
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from neurontools.base.files import READ_SAFELY, write_all, write_atomic
from neurontools.profiler.capture.format import META_FILE, MODELS_FILE, RECORD, STRINGS_FILE, json_line

if TYPE_CHECKING:
    from collections.abc import Callable

FLUSH_BYTES = 1 << 18
FLUSH_NS = 200_000_000
_SEGMENTS = 8
_FEWEST = 64


class CaptureFiles:
    """The files of one capture.

    Records are written in whole blocks, when 256 KiB are buffered or 0.2 s after the last write, so that a killed
    process loses little. Over the limit the oldest file of records is removed. The first failure (a full disk) ends the
    capture with one warning and never raises. A forked child writes nothing.

    Args:
        directory: an existing, empty directory.
        limit: number of records to keep, within an eighth.
        on_warning: gets one line when writing fails, and when records are dropped.
    """

    def __init__(self, directory: str, limit: int, on_warning: Callable[[str], None]) -> None:
        self._directory = directory
        self._on_warning = on_warning
        self._pid = os.getpid()
        self._buffer = bytearray()
        self._flush_at_ns = 0
        self.strings: dict[str, int] = {}
        """The numbers of the strings that are stored."""
        self._limit = limit
        self._segment_records = max(limit // _SEGMENTS, _FEWEST)
        self._written = 0
        self.stored_bytes = 0
        """What models, strings and NEFFs take; the limit is on records alone."""
        self._stored: list[str] = []
        self._segments: deque[tuple[str, int]] = deque()
        self._fds = {name: self._open(name) for name in (MODELS_FILE, STRINGS_FILE)}
        self._events_fd = self._next_segment()

    @property
    def writable(self) -> bool:
        """Whether the capture still goes on."""
        return bool(self._fds)

    @property
    def dropped(self) -> int:
        """Number of records that were removed over the limit."""
        return self._segments[0][1]

    def append_model(self, line: bytes) -> None:
        """Store a line about a model at once: it must be there before the first record that needs it."""
        self._store(MODELS_FILE, line)

    def string(self, text: str) -> int:
        """Return the number of a string, stored at once when it is new."""
        number = self.strings.get(text)
        if number is None:
            number = self.strings[text] = len(self.strings)
            self._store(STRINGS_FILE, json_line(text))
        return number

    def append(self, records: bytes, now_ns: int) -> None:
        """Store whole records, soon."""
        self._buffer += records
        if now_ns >= self._flush_at_ns or len(self._buffer) >= FLUSH_BYTES:
            self._flush_at_ns = now_ns + FLUSH_NS
            self.flush()

    def flush(self) -> None:
        """Write buffered records."""
        while self._buffer and self._fds:
            room = self._segment_records - (self._written - self._segments[-1][1])
            if room <= 0:
                self._rotate()
                continue
            part = bytes(self._buffer[: room * RECORD.size])
            self._write(self._events_fd, part)
            del self._buffer[: len(part)]
            self._written += len(part) // RECORD.size
        self._buffer.clear()

    def store_once(self, name: str, data: bytes) -> None:
        """Store a file of its own unless it is there already."""
        path = os.path.join(self._directory, name)
        if not self._fds or os.path.exists(path):
            return
        try:
            write_atomic(path, data, sync=False)
            self.stored_bytes += len(data)
            self._stored.append(name)
        except OSError as error:
            self._stop(error)

    def close(self) -> None:
        """Write buffered records and close the files."""
        self.flush()
        self._close()

    def remove(self) -> None:
        """Remove the files of the closed capture, and its directory unless something else is in it."""
        names = {META_FILE, MODELS_FILE, STRINGS_FILE, *self._stored, *(name for name, _ in self._segments)}
        with suppress(OSError):
            descriptor = os.open(self._directory, READ_SAFELY | os.O_DIRECTORY)
            try:
                for name in names:
                    with suppress(OSError):
                        os.unlink(name, dir_fd=descriptor)
            finally:
                os.close(descriptor)
            os.rmdir(self._directory)

    def _store(self, name: str, line: bytes) -> None:
        if self._fds:
            self._write(self._fds[name], line)
            self.stored_bytes += len(line)

    def _rotate(self) -> None:
        """Begin a file of records; remove the oldest ones over the limit."""
        os.close(self._events_fd)
        try:
            self._events_fd = self._next_segment()
            while self._written - self._segments[0][1] > self._limit:
                name, _ = self._segments.popleft()
                os.unlink(os.path.join(self._directory, name))
        except OSError as error:
            self._events_fd = -1
            self._stop(error)

    def _next_segment(self) -> int:
        name = f"events-{self._written:06}.bin"
        fd = self._open(name)
        self._segments.append((name, self._written))
        return fd

    def _open(self, name: str) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        return os.open(os.path.join(self._directory, name), flags, 0o644)

    def _write(self, fd: int, data: bytes) -> None:
        if os.getpid() != self._pid:
            return
        try:
            write_all(fd, data)
        except OSError as error:
            self._stop(error)

    def _close(self) -> None:
        for fd in (*self._fds.values(), self._events_fd):
            if fd >= 0:
                os.close(fd)
        self._fds = {}

    def _stop(self, error: OSError) -> None:
        self._close()
        self._on_warning(f"profile capture in {self._directory} ended early: {error.strerror}")
