"""Snapshots of a machine, as a value and as JSON text, from the telemetry of its processes.

The telemetry of a process is what the daemon knows of it: its claims, and the last good values of its page.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from msgspec.structs import replace

from neurontools.machine.codec import encode
from neurontools.machine.devices import device_states, ultraserver_of
from neurontools.machine.machine_names import instance_id
from neurontools.machine.pages.page import PageError, PageReader
from neurontools.machine.snapshot import (
    LATENCY_BUCKETS,
    CoreTotals,
    CoreUse,
    DeviceState,
    MemoryUse,
    ModelState,
    ProcessState,
    Snapshot,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from neurontools.machine.events import Process
    from neurontools.machine.instances.catalogue import InstanceType
    from neurontools.machine.journal import Definition
    from neurontools.machine.state import MachineState

EXECUTIONS = "executions"
EXECUTION_ERRORS = "execution_errors"
FLOPS = "flops"

_COUNTERS = (EXECUTIONS, EXECUTION_ERRORS, FLOPS)
COUNTERS = len(_COUNTERS)

_NO_PROCESSES = '"processes":[]'


class Telemetry:
    """The page of one process; read again only when it changed.

    Args:
        process: the process and its claims.
        page_fd: its page, owned by this object from now on; None when the page is lost.
    """

    __slots__ = ("_encoded", "_fd", "_has_been_read", "_origin", "_reader", "counts", "process", "state")

    state: ProcessState
    counts: tuple[int, int, int]

    def __init__(self, process: Process, page_fd: int | None) -> None:
        self.process = process
        self._fd = page_fd
        self._origin = process.origin
        self._encoded: str | None = None
        self._reader: PageReader | None = None
        self._has_been_read = False
        if page_fd is not None:
            self._reader = _reader_of(page_fd, process)
        self._show(self._reader or _LostPage(process.cores), stale=self._reader is None)

    @property
    def page_fd(self) -> int | None:
        """The descriptor of the page."""
        return self._fd

    @property
    def encoded(self) -> str:
        """The JSON text of `state`."""
        if self._encoded is None:
            self._encoded = encode(self.state)
        return self._encoded

    def refresh(self, now_ns: int) -> None:
        """Update `state`; a page that can't be read keeps its last values, marked stale."""
        reader = self._reader
        if reader is None:
            return
        changed = reader.refresh(now_ns)
        if changed is not None:
            if changed or self.state.stale:
                self._has_been_read = True
                self._show(reader, stale=False)
        elif not self.state.stale:
            if not self._has_been_read:
                self._has_been_read = reader.salvage()
            self._show(reader, stale=True)

    def take_last(self, now_ns: int) -> None:
        """Update `state` for the last time: the writer has exited, perhaps in the middle of a change."""
        self.refresh(now_ns)
        reader = self._reader
        if reader is not None and self.state.stale and reader.salvage():
            self._show(reader, stale=True)

    def totals(self) -> tuple[tuple[str, int], ...]:
        """Return what the process did so far, by lifetime counter."""
        return named_counts(self.counts)

    def core_totals(self) -> tuple[CoreTotals, ...]:
        """Return what the process did so far, by core; without cores on which it did nothing."""
        return tuple(
            CoreTotals(
                use.core,
                use.busy_ns,
                use.executions,
                use.flops,
                use.gpsimd_ns,
                use.model_loads,
                use.failures,
            )
            for use in self.state.cores
            if use.executions or use.model_loads
        )

    def close(self) -> None:
        """Close the page."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = self._reader = None

    def _show(self, page: PageReader | _LostPage, *, stale: bool) -> None:
        process = self.process
        key, (user_ns, system_ns) = process.key, page.cpu_ns
        self.state = ProcessState(
            key.pid,
            key.start_ticks,
            process.uid,
            process.command,
            process.tag,
            process.runtime_version,
            self._origin,
            process.uses_device,
            page.uses,
            page.host_memory,
            page.models,
            page.status_counts,
            page.latency_counts,
            process.registered_ns,
            stale,
            user_ns,
            system_ns,
        )
        self.counts = page.counts
        self._encoded = None


class _LostPage:
    """Stands for a page that can't be opened: no activity."""

    def __init__(self, cores: tuple[int, ...]) -> None:
        memory = MemoryUse()
        self.uses = tuple([CoreUse(core, memory=memory) for core in cores])
        self.host_memory = memory
        self.models: tuple[ModelState, ...] = ()
        self.status_counts: tuple[tuple[int, int], ...] = ()
        self.latency_counts = (0,) * LATENCY_BUCKETS
        self.cpu_ns = (0, 0)
        self.counts = (0, 0, 0)


def named_counts(counts: Sequence[int]) -> tuple[tuple[str, int], ...]:
    """Return counts of executions, failed ones and flops by lifetime counter; nothing without an execution."""
    return tuple(zip(_COUNTERS, counts, strict=True)) if counts[0] else ()


def _reader_of(page_fd: int, process: Process) -> PageReader | None:
    try:
        reader = PageReader(page_fd)
    except (PageError, OSError):
        return None
    # The page is the process's to write; its claims are not.
    return reader if reader.cores == process.cores else None


class SnapshotBuilder:
    """Builds snapshots of one machine; parts that did not change are reused."""

    def __init__(self, definition: Definition, instance: InstanceType) -> None:
        lnc = definition.lnc
        self._devices = device_states(definition.config, instance)
        self._wired = tuple(device.connected_to for device in self._devices)
        self._in_container = definition.visible_devices is not None
        self._frame = Snapshot(
            machine=definition.machine,
            source="sim",
            instance_type=instance.name,
            instance_id=instance_id(definition.machine, os.getuid()),
            lnc=lnc,
            lnc_applies=instance.lnc_applies,
            neuroncore_version=instance.device.core.monitor_version(lnc),
            taken_ns=0,
            taken_unix_s=0.0,
            started_unix_s=definition.started_unix_s,
            devices=self._devices,
            processes=(),
            ultraserver=ultraserver_of(definition.config, instance, owner=str(os.getuid())),
        )

    @property
    def links(self) -> tuple[tuple[int, ...], ...]:
        """The neighbours of each device when every link works, by this machine's own numbers.

        In a container they have the host's numbers, of devices that may not be visible: there no link is known.
        """
        return tuple((() if self._in_container else links) or () for links in self._wired)

    def snapshot(
        self, machine: MachineState, telemetry: Collection[Telemetry], taken_ns: int, taken_unix_s: float
    ) -> Snapshot:
        """Return the machine as a value; refreshes the telemetry."""
        frame = self._at(machine, telemetry, taken_ns, taken_unix_s)
        return replace(frame, processes=tuple([page.state for page in telemetry]))

    def encoded(
        self, machine: MachineState, telemetry: Collection[Telemetry], taken_ns: int, taken_unix_s: float
    ) -> str:
        """Return the machine as JSON text; refreshes the telemetry, encodes only what changed."""
        frame = encode(self._at(machine, telemetry, taken_ns, taken_unix_s))
        processes = ",".join([page.encoded for page in telemetry])
        return frame.replace(_NO_PROCESSES, f'"processes":[{processes}]', 1)

    def _at(
        self, machine: MachineState, telemetry: Collection[Telemetry], taken_ns: int, taken_unix_s: float
    ) -> Snapshot:
        for page in telemetry:
            page.refresh(taken_ns)
        # Three lists instead of zip, whose thousand iterators would trigger a garbage collection of the new objects.
        sums = [sum([page.counts[place] for page in telemetry]) for place in range(COUNTERS)]
        lifetime = dict(machine.lifetime)
        for name, amount in named_counts(sums):
            lifetime[name] = lifetime.get(name, 0) + amount
        return replace(
            self._frame,
            taken_ns=taken_ns,
            taken_unix_s=taken_unix_s,
            devices=self._devices_of(machine),
            lifetime=tuple(sorted(lifetime.items())),
            core_totals=tuple(machine.core_totals.values()),
        )

    def _devices_of(self, machine: MachineState) -> tuple[DeviceState, ...]:
        now = tuple(
            self._device_of(machine, device, wired)
            for device, wired in zip(self._devices, self._wired, strict=True)
        )
        if any(new is not old for new, old in zip(now, self._devices, strict=True)):
            self._devices = now
        return self._devices

    def _device_of(
        self, machine: MachineState, device: DeviceState, wired: tuple[int, ...] | None
    ) -> DeviceState:
        index, faults = device.index, machine.faults
        used_bytes, hardware = machine.used_bytes(index), machine.hardware[index]
        health = faults.health(index)
        known = (device.memory_used_bytes, device.hardware, device.lost, device.links_down, device.unhealthy)
        if known == (used_bytes, hardware, *health):
            return device
        lost, links_down, unhealthy = health
        return replace(
            device,
            memory_used_bytes=used_bytes,
            hardware=hardware,
            lost=lost,
            links_down=links_down,
            unhealthy=unhealthy,
            connected_to=wired and tuple(other for other in wired if other not in links_down),
        )
