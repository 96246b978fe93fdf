"""What a machine's cores and devices did and hold altogether: the living processes and those that are gone."""

from __future__ import annotations

from dataclasses import dataclass
from operator import add, attrgetter
from typing import TYPE_CHECKING

from neurontools.machine.memory import MemoryCategory, MemoryUse

if TYPE_CHECKING:
    from neurontools.machine.hardware import CoreTotals
    from neurontools.machine.snapshot import CoreUse, Snapshot

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
    sums = {totals.core: _gone(totals) for totals in snapshot.core_totals}
    for process in snapshot.processes:
        for use in process.cores:
            known = sums.get(use.core)
            sums[use.core] = _living(use) if known is None else _both(known, _living(use))
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


def _gone(totals: CoreTotals) -> CoreSum:
    return CoreSum(totals.busy_ns, totals.executions, totals.flops, totals.model_loads, totals.failures)


def _living(use: CoreUse) -> CoreSum:
    memory = use.memory
    host_bytes = memory.dma_buffers + memory.application_memory
    return CoreSum(
        use.busy_ns, use.executions, use.flops, use.model_loads, use.failures, _on_device(memory), host_bytes
    )


def _both(one: CoreSum, other: CoreSum) -> CoreSum:
    failures = dict(one.failures)
    for status, count in other.failures:
        failures[status] = failures.get(status, 0) + count
    return CoreSum(
        one.busy_ns + other.busy_ns,
        one.executions + other.executions,
        one.flops + other.flops,
        one.model_loads + other.model_loads,
        tuple(sorted(failures.items())),
        tuple(map(add, one.memory, other.memory)),
        one.host_bytes + other.host_bytes,
    )


def _host_amounts(memory: MemoryUse) -> Amounts:
    known: Amounts = _on_host(memory)
    return (*known, memory.total_bytes - sum(known))
