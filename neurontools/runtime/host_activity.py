"""What a process does around its executions, reported to profilers: steps, cuts, compiles, copies, waits, allocations.

Without an observer nothing is collected: every hook is `if observers:`, once per step, graph, copy or allocation and
never once per operator. Times are CLOCK_MONOTONIC ns.
"""

from __future__ import annotations

import gc
import sys
import time
from enum import IntEnum

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Protocol

    HostRecord = tuple["HostEvent", int, int, int, str, str, int, int]
    """An event: kind, start_ns, end_ns, nc, name, source, nbytes, number; see `report`."""

    class HostObserver(Protocol):
        """Records what a process does on the host. Calls come in the thread that does it, releases in finalizers."""

        def on_host_event(self, event: HostRecord) -> None:
            """Take note of an event; must not wait for a lock and must not raise."""


class HostEvent(IntEnum):
    """Kinds of events; the numbers are those of profiles on disk. `number` below is that of a `HostRecord`."""

    STEP = 0
    """The program ended a training step: mark_step, sync, optimizer_step. Lasts from the end of the step before."""
    CUT = 1
    """A recording ended and ran; named by what ended it. `number` counts its operators."""
    COMPILE = 2
    """A graph was compiled. `number` counts its operators."""
    CACHE_HIT = 3
    """A graph that this process had not used before was found in the compile cache."""
    UPLOAD = 4
    """A tensor was copied to the device."""
    DOWNLOAD = 5
    """A tensor was copied from the device, after the cut that computed it."""
    WAIT = 6
    """The program asked for the end of all executions: synchronize, wait_device_ops. Contains the cut."""
    COLLECTIVE = 7
    """A collective between workers; `number` is the size of its group."""
    PEER_WAIT = 8
    """The part of a collective in which this worker waited for others."""
    MARK = 9
    """A point in time with a name from the program: `neurontools.mark`."""
    REGION = 10
    """A block with a name from the program: `xp.Trace`, `xp.StepTrace`."""
    INPUT = 11
    """The program waited for the next batch of a data loader."""
    GARBAGE = 12
    """Python collected garbage; `number` is the generation."""
    CPU_OPERATOR = 13
    """An operator that the device does not have ran on the CPU."""
    ALLOCATION = 14
    """A buffer took device memory; `number` is the buffer's."""
    RELEASE = 15
    """A buffer gave its device memory back; 0 as its number: it is older than the profile."""
    CPU_UTIL = 16
    """A sample of the computer: percent of all its CPUs, instead of bytes."""
    HOST_MEMORY = 17
    """A sample of the computer: bytes of its memory in use."""


HOST_LOAD = frozenset({HostEvent.CPU_UTIL, HostEvent.HOST_MEMORY})
"""Kinds that are recorded only on request: samples of the computer."""

observers: list[HostObserver] = []
"""The observers of this process. Hooks test it; `add_observer` and `remove_observer` change it."""

# Reading a member of an enum takes as long as a call.
_ALLOCATION, _RELEASE = HostEvent.ALLOCATION, HostEvent.RELEASE
_GARBAGE_NS = 100_000  # shorter collections are many, and nothing to act on
_buffers: dict[int, int] = {}
_last_buffer = 0
_cut_end_ns = 0
_executed = False
_garbage_start_ns = 0


def add_observer(observer: HostObserver) -> None:
    """Report everything from now on to an observer, too."""
    if not observers:
        _buffers.clear()
        gc.callbacks.append(_watch_garbage)
    observers.append(observer)


def remove_observer(observer: HostObserver) -> None:
    """Report nothing more to an observer; no error if it is none."""
    if observer in observers:
        observers.remove(observer)
        if not observers and _watch_garbage in gc.callbacks:
            gc.callbacks.remove(_watch_garbage)


def report(
    kind: HostEvent,
    start_ns: int,
    end_ns: int,
    *,
    nc: int = 0,
    name: str = "",
    source: str = "",
    nbytes: int = 0,
    number: int = 0,
) -> None:
    """Report an event to all observers.

    Args:
        kind: what it is.
        start_ns: when it began.
        end_ns: when it ended.
        nc: the process's own index of the core; 0 for events of no core.
        name: what was done, or the cause.
        source: the user's `file:line`, "" if unknown.
        nbytes: size of what was moved or allocated.
        number: see `HostEvent`.
    """
    global _cut_end_ns  # noqa: PLW0603 # of this process
    if kind is HostEvent.CUT:
        _cut_end_ns = end_ns
        note_execution()
    event = (kind, start_ns, end_ns, nc, name, source, nbytes, number)
    for observer in observers:
        observer.on_host_event(event)


def note_execution() -> None:
    """Note that the step that runs executed something: eager mode reports no cuts."""
    global _executed  # noqa: PLW0603 # of this process
    _executed = True


def report_step(start_ns: int, name: str, source: str) -> None:
    """Report that a step ends now, unless nothing was executed in it: programs often end a step twice."""
    global _executed  # noqa: PLW0603 # of this process
    if _executed:
        _executed = False
        report(HostEvent.STEP, start_ns, time.monotonic_ns(), name=name, source=source)


def after_cut(start_ns: int, end_ns: int) -> int:
    """Return the start of what began with a cut in between: the end of that cut, else `start_ns`."""
    return min(max(start_ns, _cut_end_ns), end_ns)


def report_allocation(nc: int, buffer: object, nbytes: int, name: str, source: str) -> None:
    """Report that a buffer took device memory, and give it a number."""
    global _last_buffer  # noqa: PLW0603 # of this process
    _last_buffer += 1
    number = _buffers[id(buffer)] = _last_buffer
    now_ns = time.monotonic_ns()
    event = (_ALLOCATION, now_ns, now_ns, nc, name, source, nbytes, number)
    for observer in observers:
        observer.on_host_event(event)


def report_release(nc: int, buffer: object, nbytes: int) -> None:
    """Report that a buffer gave its device memory back; safe in finalizers."""
    now_ns = time.monotonic_ns()
    event = (_RELEASE, now_ns, now_ns, nc, "", "", nbytes, _buffers.pop(id(buffer), 0))
    for observer in observers:
        observer.on_host_event(event)


def mark(name: str) -> None:
    """Report a point in time under a name, for `neurontools.mark`, which calls this."""
    if observers:
        frame = sys._getframe(2)  # noqa: SLF001 # the program's line
        now_ns = time.monotonic_ns()
        source = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        report(HostEvent.MARK, now_ns, now_ns, name=str(name), source=source)


def _watch_garbage(phase: str, info: dict[str, Any]) -> None:
    global _garbage_start_ns  # noqa: PLW0603 # of this process
    now_ns = time.monotonic_ns()
    if phase == "start":
        _garbage_start_ns = now_ns
    elif now_ns - _garbage_start_ns >= _GARBAGE_NS and observers:
        name = f"generation {info['generation']}"
        report(HostEvent.GARBAGE, _garbage_start_ns, now_ns, name=name, number=int(info["generation"]))
