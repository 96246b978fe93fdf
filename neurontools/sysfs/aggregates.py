"""Totals of a machine's cores and devices over running and exited processes, and power utilization."""

from __future__ import annotations

from dataclasses import dataclass
from operator import add, attrgetter
from typing import TYPE_CHECKING

from neurontools.machine.snapshot import MemoryCategory, MemoryUse, add_counts, busy_share
from neurontools.sysfs.layout import format_power

if TYPE_CHECKING:
    from neurontools.machine.snapshot import CoreTotals, CoreUse, Snapshot

Amounts = tuple[int, ...]

ON_DEVICE = (
    MemoryCategory.CONSTANTS,
    MemoryCategory.MODEL_CODE,
    MemoryCategory.MODEL_SHARED_SCRATCHPAD,
    MemoryCategory.RUNTIME_MEMORY,
    MemoryCategory.TENSORS,
)
"""The categories that lie on a device, in the order of `CoreSum.memory`."""

ON_HOST = (
    MemoryCategory.APPLICATION_MEMORY,
    MemoryCategory.CONSTANTS,
    MemoryCategory.DMA_BUFFERS,
    MemoryCategory.TENSORS,
)
"""The categories of host memory, in the order of what `host_sums` returns; the last number there is all others."""

_WINDOW_S = 60.0
VALID, NO_DATA = "POWER_STATUS_VALID", "POWER_STATUS_NO_DATA"
_NO_MEMORY: Amounts = (0,) * len(ON_DEVICE)
_NO_HOST_MEMORY: Amounts = (0,) * (len(ON_HOST) + 1)
_on_device = attrgetter(*map(str, ON_DEVICE))
_on_host = attrgetter(*map(str, ON_HOST))


@dataclass(frozen=True, slots=True)
class CoreSum:
    """One logical core. `failures` are pairs of NRT status number and executions; `host_bytes` are its buffers there."""

    busy_ns: int = 0
    executions: int = 0
    flops: int = 0
    model_loads: int = 0
    failures: tuple[tuple[int, int], ...] = ()
    memory: Amounts = _NO_MEMORY
    host_bytes: int = 0


NOTHING = CoreSum()


def core_sums(snapshot: Snapshot) -> dict[int, CoreSum]:
    """Return what was done on each logical core and what it holds, by machine-wide id; cores of which there is nothing are left out."""
    sums = {totals.core: _exited_sum(totals) for totals in snapshot.core_totals}
    for process in snapshot.processes:
        for use in process.cores:
            known = sums.get(use.core)
            sums[use.core] = _running_sum(use) if known is None else _add(known, _running_sum(use))
    return sums


def host_sums(snapshot: Snapshot) -> dict[int, Amounts]:
    """Return the host memory of each device by category; what a process has is divided among the devices of its cores."""
    device_of = {core: device.index for device in snapshot.devices for core in device.core_ids}
    sums: dict[int, Amounts] = {device.index: _NO_HOST_MEMORY for device in snapshot.devices}
    for process in snapshot.processes:
        for use in process.cores:
            device = device_of.get(use.core)
            buffers = use.memory.dma_buffers, use.memory.application_memory
            if device is not None and any(buffers):
                own = MemoryUse(dma_buffers=buffers[0], application_memory=buffers[1])
                sums[device] = tuple(map(add, sums[device], _host_amounts(own)))
        devices = sorted({device_of[use.core] for use in process.cores if use.core in device_of})
        amounts = _host_amounts(process.host_memory)
        for place, device in enumerate(devices):
            share = tuple([portion(amount, place, len(devices)) for amount in amounts])
            sums[device] = tuple(map(add, sums[device], share))
    return sums


def portion(amount: int, place: int, parts: int) -> int:
    """Return one of several nearly equal parts of a number; together they are the number."""
    return amount // parts + (place < amount % parts)


class PowerMeter:
    """Lowest, highest and mean power utilization of each device over a minute.

    Modelled as the share of time in which the device's cores were executing.

    Before the second snapshot there is no data; then the line is written once a minute, as the driver's is.
    """

    def __init__(self) -> None:
        self._before: Snapshot | None = None
        self._percent: dict[int, list[float]] = {}
        self._lines: dict[int, str] = {}
        self._written_s = 0.0

    def update(self, snapshot: Snapshot) -> None:
        """Take in the next snapshot."""
        before, self._before = self._before, snapshot
        if before is None or before.started_unix_s != snapshot.started_unix_s:
            self._percent, self._lines = {}, {}
            return
        shares = busy_share(before, snapshot)
        for device in snapshot.devices:
            mean = sum(shares[core] for core in device.core_ids) / len(device.core_ids)
            self._percent.setdefault(device.index, []).append(100.0 * mean)
        if not self._lines or snapshot.taken_unix_s - self._written_s >= _WINDOW_S:
            self._write(snapshot.taken_unix_s)

    def line(self, device: int, unix_s: float) -> str:
        """Return the line of a device; `unix_s` is the time to show where there is no data yet."""
        return self._lines.get(device) or format_power(NO_DATA, int(unix_s), 0.0, 0.0, 0.0)

    def _write(self, unix_s: float) -> None:
        self._written_s = unix_s
        self._lines = {
            device: format_power(VALID, int(unix_s), min(seen), max(seen), sum(seen) / len(seen))
            for device, seen in self._percent.items()
        }
        self._percent = {}


def _exited_sum(totals: CoreTotals) -> CoreSum:
    return CoreSum(totals.busy_ns, totals.executions, totals.flops, totals.model_loads, totals.failures)


def _running_sum(use: CoreUse) -> CoreSum:
    memory = use.memory
    host_bytes = memory.dma_buffers + memory.application_memory
    return CoreSum(
        use.busy_ns, use.executions, use.flops, use.model_loads, use.failures, _on_device(memory), host_bytes
    )


def _add(left: CoreSum, right: CoreSum) -> CoreSum:
    return CoreSum(
        left.busy_ns + right.busy_ns,
        left.executions + right.executions,
        left.flops + right.flops,
        left.model_loads + right.model_loads,
        add_counts(left.failures, right.failures),
        tuple(map(add, left.memory, right.memory)),
        left.host_bytes + right.host_bytes,
    )


def _host_amounts(memory: MemoryUse) -> Amounts:
    known: Amounts = _on_host(memory)
    return (*known, memory.total_bytes - sum(known))
