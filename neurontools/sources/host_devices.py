"""The devices of a real host as a snapshot shows them: from its driver, its PCI bus, its monitor, and the catalogue."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec.structs import replace

from neurontools.machine.instances.catalogue import find_instance_type, instance_names, instance_type
from neurontools.machine.snapshot import CoreTotals, CoreUse, DeviceState
from neurontools.sysfs.reading import read_core, visible_devices

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from neurontools.machine.instances.catalogue import InstanceType
    from neurontools.machine.snapshot import HardwareCounters, ProcessState
    from neurontools.sources.reported_machine import ReportedMachine
    from neurontools.sysfs.reading import CoreReading, DeviceReading, DriverReading

# The runtime's names for the logical NeuronCore configuration (AWS Neuron documentation, runtime configuration).
_LNC_VARIABLES = ("NEURON_LOGICAL_NC_CONFIG", "NEURON_RT_VIRTUAL_CORE_SIZE")
_NOWHERE = ("", "", "-1")
_PCI_DEVICES = "sys/bus/pci/devices"


@dataclass(frozen=True, slots=True)
class PciPlace:
    """A device on the bus: its address, and which CPUs and memory are near."""

    bdf: str
    cpu_affinity: str
    numa_node: str


class HostDevices:
    """The devices that can be seen here, numbered from 0 as the tools number them.

    Args:
        root: the directory that has `sys` and `dev` in it, "" for the host's own.
        driver: what the driver says.
        reported: the reports of the host's neuron-monitor.
    """

    def __init__(self, root: str, driver: DriverReading, reported: ReportedMachine) -> None:
        self._root = root
        self._identity = _identity(driver, reported)
        self._visible = visible_devices(root, (device.index for device in driver.devices))
        instance = find_instance_type(driver.product_name)
        first = driver.devices[0]
        self._physical = max(1, first.core_count)
        self.lnc = _lnc(reported, instance, self._physical)
        self.lnc_applies = self.lnc > 1 if instance is None else instance.lnc_applies
        self.neuroncore_version = reported.hardware.neuroncore_version or (
            instance.device.core.monitor_version(self.lnc) if instance is not None else ""
        )
        self._memory_bytes = reported.hardware.neuron_device_memory_size or _memory_bytes(instance)
        self._links = instance.connected_to if instance is not None else ()
        places, self.notices = _places(root, instance)
        self._places = places
        self._partial = len(driver.devices) < len(self._links)
        self._readings: dict[tuple[int, int], CoreReading] = {}

    def fits(self, driver: DriverReading, reported: ReportedMachine) -> bool:
        """Return whether this still describes the host."""
        return self._identity == _identity(driver, reported)

    def states(self, driver: DriverReading, reported: ReportedMachine) -> tuple[DeviceState, ...]:
        """Return the devices as a snapshot shows them."""
        readings = {device.index: device for device in driver.devices}
        return tuple(
            self._state(index, readings[host], reported)
            for index, host in enumerate(self._visible)
            if host in readings
        )

    def cores_held(self, holders: Mapping[int, frozenset[int]]) -> dict[int, tuple[int, ...]]:
        """Return the logical cores of the devices that each process holds open."""
        place = {host: index for index, host in enumerate(self._visible)}
        return {
            pid: tuple(core for host in sorted(held) if host in place for core in self._core_ids(place[host]))
            for pid, held in holders.items()
        }

    def core_totals(self, processes: tuple[ProcessState, ...], *, fresh: bool) -> tuple[CoreTotals, ...]:
        """Return what the driver counted on each logical core beside what the living processes are known to have done.

        Args:
            processes: the living ones.
            fresh: read the driver's counters, else take those that were read last.
        """
        if fresh or not self._readings:
            self._readings = {
                (host, core): read_core(self._root, host, core)
                for host in self._visible
                for core in range(self._physical)
            }
        live: dict[int, list[CoreUse]] = {}
        for process in processes:
            for use in process.cores:
                live.setdefault(use.core, []).append(use)
        totals = (
            self._totals(core, host, place * self.lnc, live.get(core, []))
            for index, host in enumerate(self._visible)
            for place, core in enumerate(self._core_ids(index))
        )
        return tuple(total for total in totals if total.executions or total.model_loads or total.flops)

    def _totals(self, core: int, host: int, first: int, live: list[CoreUse]) -> CoreTotals:
        parts = [self._readings[host, first + place] for place in range(self.lnc)]
        done = dict(parts[0].failures)
        for use in live:
            for status, count in use.failures:
                done[status] = max(0, done.get(status, 0) - count)
        return CoreTotals(
            core,
            executions=max(0, parts[0].executions - sum(use.executions for use in live)),
            flops=max(0, sum(part.flops for part in parts) - sum(use.flops for use in live)),
            model_loads=max(0, parts[0].model_loads - sum(use.model_loads for use in live)),
            failures=tuple(sorted((status, count) for status, count in done.items() if count)),
        )

    def _state(self, index: int, reading: DeviceReading, reported: ReportedMachine) -> DeviceState:
        host = reading.index
        where = self._place_of(reading)
        place = self._places[where] if where < len(self._places) else None
        bdf, affinity, numa = (place.bdf, place.cpu_affinity, place.numa_node) if place else _NOWHERE
        connected = reading.connected_to
        if connected is None and host < len(self._links):
            connected = self._links[host]
        return DeviceState(
            index=index,
            bdf=bdf,
            cpu_affinity=affinity,
            numa_node=numa,
            connected_to=connected or None,
            core_ids=self._core_ids(index),
            memory_bytes=self._memory_bytes,
            memory_used_bytes=reading.memory_used_bytes,
            hardware=_newer(reading, reported, index),
            unhealthy=reading.unhealthy,
            power=reading.power,
        )

    def _place_of(self, reading: DeviceReading) -> int:
        # Where devices are numbered from 0 although they are only some of the host's, their links keep its numbers.
        if self._partial:
            same = [
                place for place, links in enumerate(self._links) if links and links == reading.connected_to
            ]
            if len(same) == 1:
                return same[0]
        return reading.index

    def _core_ids(self, index: int) -> tuple[int, ...]:
        cores = self._physical // self.lnc
        return tuple(range(index * cores, (index + 1) * cores))


def _identity(driver: DriverReading, reported: ReportedMachine) -> tuple[object, ...]:
    return (
        driver.product_name,
        driver.version,
        tuple((device.index, device.core_count) for device in driver.devices),
        reported.hardware,
    )


def _lnc(reported: ReportedMachine, instance: InstanceType | None, physical: int) -> int:
    """Return the logical NeuronCore configuration: the monitor's, else the environment's, else the device's default."""
    choices = [reported.stated_lnc]
    choices += [int(text) for name in _LNC_VARIABLES if (text := os.environ.get(name, "")).isdecimal()]
    choices.append(instance.device.lnc_default if instance is not None else 1)
    return next((lnc for lnc in choices if lnc > 0 and physical % lnc == 0), 1)


def _memory_bytes(instance: InstanceType | None) -> int:
    return instance.device.memory_bytes if instance is not None else 0


def _newer(reading: DeviceReading, reported: ReportedMachine, index: int) -> HardwareCounters:
    """Return the driver's error counters; older drivers have no corrected errors in sysfs, the monitor may know them."""
    counters, counted = reading.hardware, reported.errors.get(index)
    if counted is None:
        return counters
    return replace(
        counters,
        mem_ecc_corrected=max(counters.mem_ecc_corrected, counted.mem_ecc_corrected),
        sram_ecc_corrected=max(counters.sram_ecc_corrected, counted.sram_ecc_corrected),
    )


def _places(root: str, instance: InstanceType | None) -> tuple[tuple[PciPlace, ...], tuple[str, ...]]:
    """Return the PCI address of each of the driver's devices, and notices about them.

    The bus does not say which address is which Neuron device. The catalogue knows for its instance types; where the
    host has other addresses, their order is used.
    """
    pci_ids = [*instance.device.pci_ids] if instance is not None else _all_pci_ids()
    found = find_pci_places(root, pci_ids)
    catalogued = (
        ()
        if instance is None
        else tuple(map(PciPlace, instance.pci_bdf, instance.cpu_affinity, instance.numa_node))
    )
    if not found:
        return catalogued, ()
    by_bdf = {place.bdf: place for place in found}
    if by_bdf.keys() == {place.bdf for place in catalogued}:
        return tuple(by_bdf[place.bdf] for place in catalogued), ()
    if len(found) == 1:
        return found, ()
    return found, ("PCI addresses are listed in bus order: it is not known which device has which address",)


def _all_pci_ids() -> list[str]:
    types = (instance_type(name).device for name in instance_names())
    return sorted({pci_id for device in types for pci_id in device.pci_ids})


def find_pci_places(root: str, pci_ids: Collection[str]) -> tuple[PciPlace, ...]:
    """Return the places of all PCI devices with one of these ids, by address.

    Args:
        root: the directory that has `sys` in it, "" for the host's own.
        pci_ids: vendor and device, such as "1d0f:7164".
    """
    directory = f"{root}/{_PCI_DEVICES}"
    try:
        names = sorted(os.listdir(directory))
    except OSError:
        return ()
    return tuple(
        PciPlace(
            name, _read(f"{directory}/{name}/local_cpulist"), _read(f"{directory}/{name}/numa_node") or "-1"
        )
        for name in names
        if _pci_id(f"{directory}/{name}") in pci_ids
    )


def _pci_id(directory: str) -> str:
    vendor, device = (_read(f"{directory}/{name}").removeprefix("0x") for name in ("vendor", "device"))
    return f"{vendor}:{device}"


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""
