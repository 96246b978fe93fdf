"""The append-only files of a capture, the ring of the newest records, and the records of the host and of device memory.

A record of the row Host or Memory has, beside its times,

    status      its kind, see `HostEvent`
    name        number of a string: what was done, or the cause
    link        number of a string: the user's `file:line`, or an empty one; with call stacks, a line `function file:line`
                for each frame of the program follows, the innermost first
    value       bytes that were copied, exchanged, allocated or released; or a sample of observer.py
    execution   number of the step, of the buffer, of operators, or of the workers of a group; see `HostEvent`

An event costs less than a microsecond. It is queued without a lock: buffers are released in finalizers, which may run
in the middle of a write. Every 256th event, or the first after 0.2 s, writes all if it finds the lock free.
"""

from __future__ import annotations

import os
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from neurontools.base.files import READ_SAFELY, write_all, write_atomic
from neurontools.profiler.capture.format import (
    META_FILE,
    MODELS_FILE,
    NO_CORE,
    RECORD,
    STRINGS_FILE,
    Track,
    json_line,
)
from neurontools.runtime.host_activity import HOST_LOAD, HostEvent, remove_observer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from threading import Lock

    from neurontools.profiler.capture.settings import StepWindow
    from neurontools.runtime.host_activity import HostRecord


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


__all__ = ["HostEvent", "HostRecorder"]

_PACK = RECORD.pack
_HOST, _MEMORY = int(Track.HOST), int(Track.MEMORY)
_STEP, _ALLOCATION, _RELEASE = HostEvent.STEP, HostEvent.ALLOCATION, HostEvent.RELEASE
_OTHER_TRACKS = {
    _ALLOCATION: _MEMORY,
    _RELEASE: _MEMORY,
    HostEvent.CPU_UTIL: int(Track.CPU),
    HostEvent.HOST_MEMORY: int(Track.RAM),
}
_TRACKS = tuple(_OTHER_TRACKS.get(kind, _HOST) for kind in HostEvent)
_LABELS = tuple(kind.name.lower() for kind in HostEvent)
_ALL_KINDS = frozenset(HostEvent)
_WRITE_EVENTS = 256
_WRITE_NS = 200_000_000
_LARGEST = 0xFFFFFFFF


class HostRecorder:
    """Writes what a process does on the host; a `HostObserver`.

    Args:
        files: of the capture.
        lock: of the files.
        ncs: process-local NeuronCores whose memory is recorded; None for all.
        steps: the steps to record; None for all.
        kinds: what is recorded; steps are always counted.
        started_ns: when the capture, and so its first step, began.
        on_last_step: called at the end of the last step.
    """

    def __init__(
        self,
        files: CaptureFiles,
        lock: Lock,
        *,
        ncs: frozenset[int] | None = None,
        steps: StepWindow | None = None,
        kinds: frozenset[HostEvent] = _ALL_KINDS,
        started_ns: int = 0,
        on_last_step: Callable[[], None] | None = None,
    ) -> None:
        self._files = files
        self._lock = lock
        self._ncs = ncs
        self._steps = steps
        self._kinds = kinds
        self._takes_all = kinds | HOST_LOAD == _ALL_KINDS and ncs is None
        self._on_last_step = on_last_step
        self._pid = os.getpid()
        self._queue: deque[HostRecord] = deque()
        self._write_at_ns = 0
        self._step = 0
        self._step_start_ns = started_ns
        self._held: dict[int, HostRecord] = {}
        self.records = steps is None or steps[0] <= 1
        """Whether the program is in a step that is recorded."""

    def on_host_event(self, event: HostRecord) -> None:
        """Queue an event; write the queue when it is long, or 0.2 s after the last time."""
        end_ns = event[2]
        if event[0] is _STEP:
            self._end_step(event)
            return
        queue = self._queue
        if self.records and self._takes_all:
            queue.append(event)
        else:
            self._take(event)
        if (end_ns >= self._write_at_ns or len(queue) >= _WRITE_EVENTS) and self._lock.acquire(
            blocking=False
        ):
            try:
                self.write(end_ns)
            finally:
                self._lock.release()

    def hold(self, used_bytes: Sequence[int]) -> None:
        """Queue the memory that is older than the capture, by NeuronCore; its releases have the number 0."""
        now_ns = time.monotonic_ns()
        for nc, nbytes in enumerate(used_bytes):
            if nbytes:
                self._take((_ALLOCATION, now_ns, now_ns, nc, "before the profile", "", nbytes, 0))

    def write(self, now_ns: int) -> None:
        """Write the queue; the caller has the lock."""
        self._write_at_ns = now_ns + _WRITE_NS
        take, numbers, string = self._queue.popleft, self._files.strings, self._files.string
        if os.getpid() != self._pid:
            self._queue.clear()
            return
        records = []
        for _ in range(len(self._queue)):  # a finalizer may queue more meanwhile
            kind, start_ns, end_ns, nc, name, source, nbytes, number = take()
            name = name or _LABELS[kind]
            what = numbers[name] if name in numbers else string(name)
            line = numbers[source] if source in numbers else string(source)
            duration_ns, track = end_ns - start_ns, _TRACKS[kind]
            records.append(
                _PACK(start_ns, duration_ns, nbytes, what, line, number & _LARGEST, kind, nc, track)
            )
        if records:
            self._files.append(b"".join(records), now_ns)

    def close(self, now_ns: int) -> None:
        """Write the queue and stop observing; the caller has the lock."""
        remove_observer(self)
        self.write(now_ns)
        self.records = False
        self._held.clear()

    def _end_step(self, event: HostRecord) -> None:
        self._step += 1
        _, _, end_ns, _, name, source, _, _ = event
        start_ns, self._step_start_ns = self._step_start_ns, end_ns
        if self.records:
            self._take((_STEP, start_ns, end_ns, NO_CORE, name, source, 0, self._step))
        if self._steps is None:
            return
        first, last = self._steps
        if self._step >= last:
            self.records = False
            if self._on_last_step is not None:
                self._on_last_step()
        elif self._step >= first - 1 and not self.records:
            self.records = True
            for kind, _, _, nc, what, line, nbytes, number in tuple(self._held.values()):
                self._take((kind, end_ns, end_ns, nc, what, line, nbytes, number))
            self._held.clear()

    def _take(self, event: HostRecord) -> None:
        """Queue an event; before the first recorded step, remember only which buffers are alive."""
        kind, number = event[0], event[-1]
        if self.records:
            if kind in self._kinds and (
                self._ncs is None or event[3] in self._ncs or _TRACKS[kind] != _MEMORY
            ):
                self._queue.append(event)
        elif kind is _ALLOCATION:
            self._held[number] = event
        elif kind is _RELEASE:
            self._held.pop(number, None)
