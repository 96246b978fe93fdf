"""What the daemon tells processes by the doorbells in their pages: faults, and requests for profiles."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from neurontools.machine.events import (
    DeviceChanged,
    Effect,
    FaultInjected,
    FaultsCleared,
    FaultTaken,
    KernelLine,
    TakeFault,
    Tick,
)
from neurontools.machine.pages.page import ring, ring_profile

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, TimerHandle
    from collections.abc import Callable, Iterable, Mapping

    from neurontools.machine.daemon.telemetry import Telemetry
    from neurontools.machine.directory import KernelLog
    from neurontools.machine.events import FaultEvent
    from neurontools.machine.faults.registry import FaultRecord
    from neurontools.machine.processes import ProcessKey
    from neurontools.machine.requests import ResetDevice
    from neurontools.machine.state import MachineState

log = logging.getLogger("neurond")

_JOURNAL_DELAY_S = 0.5


class FaultService:
    """Handles the fault events of one machine.

    Args:
        machine: the machine.
        telemetry: the pages of its processes.
        kernel_log: for the driver's lines.
        loop: runs the timers.
        on_change: called when the journal must be written, with True at once.
    """

    def __init__(
        self,
        machine: MachineState,
        telemetry: Mapping[ProcessKey, Telemetry],
        kernel_log: KernelLog,
        loop: AbstractEventLoop,
        on_change: Callable[[bool], None],
    ) -> None:
        self._machine = machine
        self._telemetry = telemetry
        self._kernel_log = kernel_log
        self._loop = loop
        self._on_change = on_change
        self._timer: TimerHandle | None = None
        self._journal_timer: TimerHandle | None = None
        self._doorbells: dict[ProcessKey, int] = {}

    def handle(self, event: FaultEvent | ResetDevice) -> Effect:
        """Apply an event and return the effect that answers it; raises `RefusedError`."""
        before = self._machine.faults.record()
        answer, *others = self._machine.handle(event, time.monotonic_ns())
        self._carry(others)
        _log_change(answer)
        after = self._machine.faults.record()
        if _effects_state(after) != _effects_state(before):
            self._settle()
        if after != before:
            self._journal_change(event, answer)
        return answer

    def joined(self, key: ProcessKey) -> None:
        """Set the doorbell of a new process to its armed faults. Others do not change: a core has one owner."""
        if self._machine.faults.faults():
            self._ring((key,))

    def left(self, key: ProcessKey) -> None:
        """Forget an exited process."""
        self._doorbells.pop(key, None)

    def adopted(self) -> None:
        """Continue after a former daemon was killed: forget hangs of exited processes, and set every doorbell."""
        self._carry(self._machine.handle(Tick(), time.monotonic_ns()))
        living = {process.key.pid for process in self._machine.processes.values()}
        for fault in self._machine.faults.faults():
            for pid, _ in fault.held:
                if pid not in living:
                    self._machine.faults.release(pid)
        for key, telemetry in self._telemetry.items():
            if telemetry.page_fd is not None:
                ring(telemetry.page_fd, 0)
                self._doorbells.pop(key, None)
        self._settle()

    def close(self) -> None:
        """Stop the timers."""
        for timer in (self._timer, self._journal_timer):
            if timer is not None:
                timer.cancel()
        self._timer = self._journal_timer = None

    def _journal_change(self, event: FaultEvent | ResetDevice, answer: Effect) -> None:
        if isinstance(event, TakeFault) and isinstance(answer, FaultTaken) and not self._must_survive(answer):
            self._journal_later()
        else:
            self._on_change(True)

    def _must_survive(self, answer: FaultTaken) -> bool:
        # Hits of a fault without a count, and executions that a fault lets pass, may be written later: their exact
        # number is not guaranteed.
        hit = answer.hit
        fault = None if hit is None else self._machine.faults.find(hit.fault)
        return fault is not None and (fault.left is not None or bool(fault.broken_cores or fault.held))

    def _journal_later(self) -> None:
        if self._journal_timer is None:
            self._journal_timer = self._loop.call_later(_JOURNAL_DELAY_S, self._journal)

    def _journal(self) -> None:
        self._journal_timer = None
        self._on_change(False)

    def _tick(self) -> None:
        self._timer = None
        before = self._phases()
        self._carry(self._machine.handle(Tick(), time.monotonic_ns()))
        self._settle()
        if self._phases() == before:
            self._journal_later()  # the next errors of a storm, perhaps a hundred a second
        else:
            self._on_change(True)

    def _phases(self) -> list[object]:
        return [(fault.id, fault.phase) for fault in self._machine.faults.faults()]

    def _schedule(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due_ns = self._machine.faults.next_ns()
        if due_ns is not None:
            delay_s = max(0.0, (due_ns - time.monotonic_ns()) / 1e9)
            self._timer = self._loop.call_later(delay_s, self._tick)

    def _settle(self) -> None:
        self._ring(self._telemetry)
        self._schedule()

    def _ring(self, keys: Iterable[ProcessKey]) -> None:
        for key in keys:
            telemetry = self._telemetry[key]
            armed = self._machine.faults.armed_for(telemetry.process)
            if armed != self._doorbells.get(key, 0) and telemetry.page_fd is not None:
                ring(telemetry.page_fd, armed)
                self._doorbells[key] = armed

    def _carry(self, effects: list[Effect] | tuple[Effect, ...]) -> None:
        for effect in effects:
            if isinstance(effect, KernelLine):
                self._write_kernel_log(effect.text)

    def _write_kernel_log(self, text: str) -> None:
        try:
            self._kernel_log.write(text)
        except OSError as error:
            log.error("cannot write the kernel log: %s", error)  # noqa: TRY400  no traceback wanted


def _effects_state(record: FaultRecord) -> list[object]:
    # What doorbells and timers depend on; most hits change only a count.
    return [(fault.id, fault.phase, fault.broken_cores, fault.held, fault.next_ns) for fault in record.faults]


def _log_change(answer: Effect) -> None:
    match answer:
        case FaultInjected(fault):
            log.info("fault %d: %s, %s", fault.id, fault.kind, fault.spec.target())
        case FaultsCleared(ids) if ids:
            log.info("cleared faults %s", ", ".join(map(str, ids)))
        case DeviceChanged(device):
            log.info("device %d was reset", device)


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
