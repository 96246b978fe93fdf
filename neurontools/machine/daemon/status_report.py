"""Builds snapshots of a machine, as a value and as JSON text."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from msgspec.structs import replace

from neurontools.machine.codec import encode
from neurontools.machine.daemon.telemetry import COUNTERS, named_counts
from neurontools.machine.devices import device_states, ultraserver_of
from neurontools.machine.machine_names import instance_id
from neurontools.machine.snapshot import DeviceState, Snapshot

if TYPE_CHECKING:
    from collections.abc import Collection

    from neurontools.machine.daemon.telemetry import Telemetry
    from neurontools.machine.instances.catalogue import InstanceType
    from neurontools.machine.journal import Definition
    from neurontools.machine.state import Machine

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
        self, machine: Machine, telemetry: Collection[Telemetry], taken_ns: int, taken_unix_s: float
    ) -> Snapshot:
        """Return the machine as a value; refreshes the telemetry."""
        frame = self._at(machine, telemetry, taken_ns, taken_unix_s)
        return replace(frame, processes=tuple([page.state for page in telemetry]))

    def encoded(
        self, machine: Machine, telemetry: Collection[Telemetry], taken_ns: int, taken_unix_s: float
    ) -> str:
        """Return the machine as JSON text; refreshes the telemetry, encodes only what changed."""
        frame = encode(self._at(machine, telemetry, taken_ns, taken_unix_s))
        processes = ",".join([page.encoded for page in telemetry])
        return frame.replace(_NO_PROCESSES, f'"processes":[{processes}]', 1)

    def _at(
        self, machine: Machine, telemetry: Collection[Telemetry], taken_ns: int, taken_unix_s: float
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

    def _devices_of(self, machine: Machine) -> tuple[DeviceState, ...]:
        now = tuple(
            self._device_of(machine, device, wired)
            for device, wired in zip(self._devices, self._wired, strict=True)
        )
        if any(new is not old for new, old in zip(now, self._devices, strict=True)):
            self._devices = now
        return self._devices

    def _device_of(self, machine: Machine, device: DeviceState, wired: tuple[int, ...] | None) -> DeviceState:
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
