"""Device memory of one process: accounted here, reserved from the machine in granules.

Most allocations cost no message: the machine grants 16 MiB at a time, exactly the requested size when that is big.
`free` never waits, because it runs in finalizers, which a garbage collection may start in the middle of an
allocation in the same thread: it queues the bytes, and the holder of the lock settles them.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Protocol

from neurontools.base.interrupts import HOLD_S, InterruptHold
from neurontools.errors import DaemonError, NoMachineError
from neurontools.machine.protocol import OutOfDeviceMemoryError
from neurontools.machine.snapshot import MemoryCategory, MemoryUse
from neurontools.runtime.log import Component, Level, RuntimeLog
from neurontools.runtime.status import NrtError, NrtStatus

if TYPE_CHECKING:
    from neurontools.machine.client import Client
    from neurontools.machine.pages.page import PageWriter

GRANULE_BYTES = 16 << 20
BIG_BYTES = 4 * GRANULE_BYTES
SLOW_NS = 100_000_000


class AllocationFaults(Protocol):
    """Fails allocations where a fault says so."""

    def check_allocation(self, core: int, nbytes: int, device_bytes: int, function: str) -> None:
        """Let an allocation of `nbytes` on a core (machine-wide logical id) fail if a fault says so."""


@dataclass(frozen=True, slots=True)
class MemoryInfo:
    """Memory of a core: in use, most ever in use, and the size of its device's memory, which its cores share."""

    used_bytes: int
    peak_bytes: int
    limit_bytes: int


class _CoreMemory:
    """Memory in use on a core and reserved for it; `confirmed` while the machine is known to hold that reservation."""

    __slots__ = ("confirmed", "core", "device", "peak", "reserved", "total", "used")

    def __init__(self, core: int, device: int) -> None:
        self.core = core
        self.device = device
        self.used = dict.fromkeys(MemoryCategory, 0)
        self.total = self.peak = self.reserved = 0
        self.confirmed = True


class DeviceMemory:
    """Memory of the cores that a process owns; `nc` is the process's own index of a core."""

    def __init__(
        self,
        client: Client,
        writer: PageWriter,
        log: RuntimeLog,
        faults: AllocationFaults,
        *,
        cores_per_device: int,
        device_bytes: int,
    ) -> None:
        self._client = client
        self._writer = writer
        self._log = log
        self._faults = faults
        self._device_bytes = device_bytes
        self._cores = tuple(_CoreMemory(core, core // cores_per_device) for core in writer.cores)
        self._ending = False
        self._silent_until_ns = 0
        self._lock = Lock()
        self._freed: deque[tuple[int, int, MemoryCategory]] = deque()

    def allocate(
        self,
        nc: int,
        nbytes: int,
        category: MemoryCategory = MemoryCategory.TENSORS,
        *,
        function: str = "nrt_tensor_allocate",
    ) -> None:
        """Take memory of a core's device.

        Raises:
            NrtError: NRT_RESOURCE when the device is full or a fault makes it seem so, NRT_INVALID when the size is
                negative, NRT_HW_ERROR when the device is lost.
        """
        if nbytes < 0:
            raise NrtError(
                function, NrtStatus.NRT_INVALID, f"invalid size {nbytes}: must be at least 0 bytes"
            )
        if nbytes and self._writer.armed_faults and not self._ending:
            self._faults.check_allocation(self._cores[nc].core, nbytes, self._device_bytes, function)
        try:
            with InterruptHold(HOLD_S), self._lock:
                self._settle()
                if self._cores[nc].total + nbytes > self._cores[nc].reserved:
                    self._grow(nc, nbytes, function)
                self._count(nc, nbytes, category)
        finally:
            self._settle_if_free()

    def free(self, nc: int, nbytes: int, category: MemoryCategory = MemoryCategory.TENSORS) -> None:
        """Give memory back; safe in finalizers.

        Raises:
            NrtError: NRT_INVALID when less than that is in use.
        """
        if not 0 <= nbytes <= self._cores[nc].used[category]:
            reason = (
                f"{nbytes} bytes of {category} to free on nc{nc}, {self._cores[nc].used[category]} in use"
            )
            raise NrtError("nrt_tensor_free", NrtStatus.NRT_INVALID, reason)
        self._freed.append((nc, nbytes, category))
        self._settle_if_free()

    def info(self, nc: int) -> MemoryInfo:
        """Return the memory in use on a core."""
        self._settle_if_free()
        memory = self._cores[nc]
        return MemoryInfo(memory.total, memory.peak, self._device_bytes)

    def reset_peak(self, nc: int) -> None:
        """Let the peak of a core start again at the memory in use."""
        with self._lock:
            self._settle()
            self._cores[nc].peak = self._cores[nc].total
        self._settle_if_free()

    def use(self, nc: int) -> MemoryUse:
        """Return the memory in use on a core by category."""
        self._settle_if_free()
        return MemoryUse(**{str(category): nbytes for category, nbytes in self._cores[nc].used.items()})

    def keep_reservations(self) -> None:
        """Stop returning memory to the machine: the end of the process returns everything at once."""
        self._ending = True

    def _settle_if_free(self) -> None:
        # The holder of the lock checks the queue again after releasing it, so nothing is left in it.
        if not self._freed:
            return
        with InterruptHold(HOLD_S):  # between the two calls on the lock nothing may raise
            while self._freed and self._lock.acquire(blocking=False):
                try:
                    self._settle()
                finally:
                    self._lock.release()

    def _settle(self) -> None:
        while self._freed:
            nc, nbytes, category = self._freed.popleft()
            self._count(nc, -min(nbytes, self._cores[nc].used[category]), category)
            memory = self._cores[nc]
            if memory.reserved - memory.total > BIG_BYTES:
                self._reserve(nc, memory.total + GRANULE_BYTES)

    def _count(self, nc: int, change: int, category: MemoryCategory) -> None:
        memory = self._cores[nc]
        memory.used[category] += change
        memory.total += change
        memory.peak = max(memory.peak, memory.total)
        self._writer.set_memory(nc, category, memory.used[category])

    def _grow(self, nc: int, nbytes: int, function: str) -> None:
        memory = self._cores[nc]
        try:
            self._reserve(nc, memory.reserved + _generous(memory.total + nbytes - memory.reserved))
        except OutOfDeviceMemoryError:
            self._give_back_idle(memory.device)
        else:
            return
        try:
            self._reserve(nc, memory.total + nbytes)
        except OutOfDeviceMemoryError as full:
            line = pool_line(memory.device, full.total, full.used, full.needed)
            self._log.write(Level.ERROR, Component.TDRV, "mc_alloc", line)
            message = f"Failed to allocate {full.needed} bytes on ND {memory.device}:NC {memory.core}"
            self._log.write(Level.ERROR, Component.TDRV, "dmem_alloc", message)
            remedy = _full_remedy(nc, memory.device, full)
            raise NrtError(function, NrtStatus.NRT_RESOURCE, remedy) from full

    def _give_back_idle(self, device: int) -> None:
        for nc, memory in enumerate(self._cores):
            if memory.device == device and memory.reserved > memory.total:
                self._reserve(nc, memory.total)

    def _reserve(self, nc: int, total_bytes: int) -> None:
        """Set what the machine reserves for a core.

        Without a daemon the job continues, and the next reservation tells the machine the total. A daemon that hangs
        costs the job at most a tenth of its time.

        Raises:
            OutOfDeviceMemoryError: the device is full.
        """
        memory = self._cores[nc]
        start_ns = time.monotonic_ns()
        if self._ending or start_ns < self._silent_until_ns:
            return
        try:
            self._client.reserve(memory.core, total_bytes)
        except OutOfDeviceMemoryError:
            raise
        except (DaemonError, NoMachineError) as error:
            end_ns = time.monotonic_ns()
            if end_ns - start_ns > SLOW_NS:
                self._silent_until_ns = end_ns + 10 * (end_ns - start_ns)
            if memory.confirmed:
                reason = f"the machine may not know how much memory is in use: {error}"
                self._log.write(Level.WARN, Component.TDRV, "dmem_reserve", reason)
            memory.confirmed = False
            return
        memory.reserved = total_bytes
        memory.confirmed = True
        self._writer.set_reserved(nc, total_bytes)


def _generous(needed: int) -> int:
    return needed if needed >= BIG_BYTES else -(-needed // GRANULE_BYTES) * GRANULE_BYTES


def pool_line(device: int, total: int, used: int, needed: int) -> str:
    """Return the driver's line for a device whose memory is full; all in bytes."""
    return (
        f"neuron:mc_alloc: device mempool [{device}:0] total {total} occupied {used} "
        f"needed {needed} available {max(0, total - used)}"
    )


def _full_remedy(nc: int, device: int, full: OutOfDeviceMemoryError) -> str:
    return (
        f"device {device} of nc{nc} has {full.total} bytes, {full.used} are in use and {full.needed} more are needed: "
        "use smaller batches or models, or see with `neuron-top` who else uses the device"
    )
