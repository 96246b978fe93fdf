"""Builds snapshots of a machine, as a value and as JSON text, and pushes them to watchers."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from msgspec.structs import replace

from neurontools.machine.changes import changes
from neurontools.machine.codec import encode
from neurontools.machine.daemon.telemetry import COUNTERS, named_counts
from neurontools.machine.devices import device_states, ultraserver_of
from neurontools.machine.machine_names import instance_id
from neurontools.machine.protocol import CHANGES, SNAPSHOT, push_line
from neurontools.machine.snapshot import DeviceState, Snapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from neurontools.machine.daemon.server import Connection
    from neurontools.machine.daemon.telemetry import Telemetry
    from neurontools.machine.instances.catalogue import InstanceType
    from neurontools.machine.journal import Definition
    from neurontools.machine.state import MachineState

_NO_PROCESSES = '"processes":[]'


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
        # Three lists, not zip: its thousand iterators would set the garbage collector off on what was just made.
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


class Watching:
    """The watchers and their periods. Without watchers there is no timer.

    Args:
        snapshot: returns the machine as a value.
        encoded_snapshot: returns it as JSON text.
    """

    def __init__(self, snapshot: Callable[[], Snapshot], encoded_snapshot: Callable[[], str]) -> None:
        self._snapshot = snapshot
        self._encoded_snapshot = encoded_snapshot
        self._whole: dict[float, set[Connection]] = {}
        # With what was pushed last: a connection gets everything in order or is dropped.
        self._changes: dict[float, dict[Connection, Snapshot | None]] = {}
        self._timers: set[float] = set()

    def add(self, connection: Connection, period_s: float, *, changes: bool = False) -> None:
        """Push a snapshot to a connection every `period_s` seconds; a former period is forgotten.

        Args:
            connection: whose.
            period_s: seconds between two.
            changes: push only the first one whole, then what changed.
        """
        self.remove(connection)
        if changes:
            self._changes.setdefault(period_s, {})[connection] = None
        else:
            self._whole.setdefault(period_s, set()).add(connection)
        if period_s not in self._timers:
            self._timers.add(period_s)
            self._schedule(period_s)

    def remove(self, connection: Connection) -> None:
        """Push nothing more to a connection."""
        for whole in self._whole.values():
            whole.discard(connection)
        for bases in self._changes.values():
            bases.pop(connection, None)

    def push_first(self, connection: Connection) -> None:
        """Push a snapshot now: a new watcher need not wait."""
        for bases in self._changes.values():
            if connection in bases:
                bases[connection] = snapshot = self._snapshot()
                connection.send(push_line(SNAPSHOT, encode(snapshot)))
                return
        connection.send(self._whole_line())

    def _schedule(self, period_s: float) -> None:
        asyncio.get_running_loop().call_later(period_s, self._tick, period_s)

    def _tick(self, period_s: float) -> None:
        whole, bases = self._whole.get(period_s), self._changes.get(period_s)
        if not whole and not bases:
            self._timers.discard(period_s)
            self._whole.pop(period_s, None)
            self._changes.pop(period_s, None)
            return
        self._schedule(period_s)
        if whole:
            line = self._whole_line()
            for connection in list(whole):
                connection.send(line)
        if bases:
            self._push_changes(bases)

    def _push_changes(self, bases: dict[Connection, Snapshot | None]) -> None:
        snapshot = self._snapshot()
        lines: dict[int, bytes] = {}
        for connection, base in list(bases.items()):
            if base is None:
                continue
            line = lines.get(id(base))
            if line is None:
                line = lines[id(base)] = push_line(CHANGES, encode(changes(base, snapshot)))
            bases[connection] = snapshot
            connection.send(line)

    def _whole_line(self) -> bytes:
        return push_line(SNAPSHOT, self._encoded_snapshot())
