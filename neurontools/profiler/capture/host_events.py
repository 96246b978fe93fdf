"""Records of the host and of device memory in a capture: steps, cuts, compiles, copies, waits, allocations.

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
from typing import TYPE_CHECKING

from neurontools.profiler.capture.format import NO_CORE, RECORD, Track
from neurontools.runtime.host_activity import HOST_LOAD, HostEvent, remove_observer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from threading import Lock

    from neurontools.profiler.capture.files import CaptureFiles
    from neurontools.profiler.capture.settings import StepWindow
    from neurontools.runtime.host_activity import HostRecord

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
