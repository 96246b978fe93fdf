"""The driver's tree for a machine: every path below the root directory with its text and mode, or where it links to.

Paths are relative (`sys/devices/virtual/neuron_device/neuron0/core_count`). What stands in for `/proc/devices` and
for the device nodes is in the tree too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from neurontools.sysfs import formats
from neurontools.sysfs.generation import OTHER, SUCCESS
from neurontools.sysfs.history import History
from neurontools.sysfs.layout import (
    DEVICE_MODE,
    METRIC_MODE,
    READ_ONLY,
    Role,
    core_layout,
    device_layout,
    power_management,
)
from neurontools.sysfs.power import PowerMeter
from neurontools.sysfs.sums import (
    NOTHING,
    ON_DEVICE,
    ON_HOST,
    Amounts,
    CoreSum,
    core_sums,
    host_sums,
    portion,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from neurontools.machine.instances.catalogue import InstanceType
    from neurontools.machine.snapshot import DeviceState, Snapshot
    from neurontools.sysfs.generation import Generation
    from neurontools.sysfs.layout import Layout

DEVICES = "sys/devices/virtual/neuron_device"
CLASS = "sys/class/neuron_device"
MODULE_VERSION = "sys/module/neuron/version"
PRODUCT_NAME = "sys/devices/virtual/dmi/id/product_name"
PROC_DEVICES = "proc/devices"
NODES = "dev"

_FIRST_WITH_HEARTBEAT = 3
_MEMORY_PLACE = {f"stats/memory_usage/device_mem/{name}": place for place, name in enumerate(ON_DEVICE)}
_HOST_PLACE = {f"stats/memory_usage/host_mem/{name}": place for place, name in enumerate(ON_HOST)}


@dataclass(frozen=True, slots=True)
class File:
    """A file of the tree."""

    text: str
    mode: int


@dataclass(frozen=True, slots=True)
class Link:
    """A symbolic link of the tree."""

    target: str


Entry = File | Link


@dataclass(frozen=True, slots=True)
class Part:
    """The files of a device or of one of its cores, which change together.

    `key` is what they are made of: as long as it is the same, so are they. `numbers` and `texts` are those of the
    layout's metrics and leaves.
    """

    directory: str
    layout: Layout
    key: object
    numbers: Amounts = field(repr=False)
    texts: tuple[str, ...] = field(repr=False)


class Tree:
    """The tree of a machine whose instance type, id and LNC do not change.

    Args:
        instance: its type.
        driver: the driver that it shows.
        power: tells the devices' power utilization.
    """

    def __init__(self, instance: InstanceType, driver: Generation, power: PowerMeter | None = None) -> None:
        self._instance = instance
        self._driver = driver
        self._power = power or PowerMeter()
        self._heartbeat = _core_generation(instance) >= _FIRST_WITH_HEARTBEAT
        self._core_layout = core_layout(driver)
        self._device_layout = device_layout(driver, heartbeat=self._heartbeat)
        self._known: dict[str, Part] = {}

    def frame(self, snapshot: Snapshot) -> dict[str, Entry]:
        """Return what is about the machine as a whole: links to the devices, UltraServer, versions, stand-ins."""
        present = _present(snapshot)
        entries: dict[str, Entry] = {
            PROC_DEVICES: File(formats.character_devices(), READ_ONLY),
            MODULE_VERSION: File(f"{self._driver.driver_version}\n", READ_ONLY),
            PRODUCT_NAME: File(f"{snapshot.instance_type}\n", READ_ONLY),
        }
        for device in present:
            name = f"neuron{device.index}"
            entries[f"{NODES}/{name}"] = File("", DEVICE_MODE)
            entries[f"{CLASS}/{name}"] = Link(f"../../devices/virtual/neuron_device/{name}")
            entries[f"{DEVICES}/{name}/subsystem"] = Link("../../../../class/neuron_device")
        if snapshot.ultraserver is not None:
            for name, content in snapshot.ultraserver.files:
                entries[f"{CLASS}/{name}"] = File(f"{content}\n", READ_ONLY)
        return entries

    def parts(self, snapshot: Snapshot) -> Iterator[Part]:
        """Yield the parts of every device that is there; a part that did not change is the same object as before."""
        sums, hosts = core_sums(snapshot), host_sums(snapshot)
        for device in _present(snapshot):
            directory = f"{DEVICES}/neuron{device.index}"
            yield self._device_part(snapshot, device, directory, hosts[device.index])
            for index in range(len(device.core_ids) * snapshot.lnc):
                core = device.core_ids[index // snapshot.lnc]
                place = index % snapshot.lnc
                yield self._core_part(
                    f"{directory}/neuron_core{index}", sums.get(core, NOTHING), place, snapshot.lnc
                )

    def _device_part(self, snapshot: Snapshot, device: DeviceState, directory: str, host: Amounts) -> Part:
        beats = int((snapshot.taken_unix_s - snapshot.started_unix_s) // 60) if self._heartbeat else 0
        power = self._power.line(device.index, snapshot.started_unix_s)
        key = (device.hardware, device.unhealthy, device.connected_to, host, power, max(0, beats))
        known = self._known.get(directory)
        if known is None or known.key != key:
            numbers = tuple([_host_number(metric.directory, host) for metric in self._device_layout.metrics])
            texts = self._device_texts(snapshot, device, power, max(0, beats))
            known = self._known[directory] = Part(directory, self._device_layout, key, numbers, texts)
        return known

    def _device_texts(
        self, snapshot: Snapshot, device: DeviceState, power: str, beats: int
    ) -> tuple[str, ...]:
        names = self._instance.device.sysfs
        texts = [
            formats.uevent(device.index),
            formats.device_number(device.index),
            *power_management(),
            formats.neighbours(device.connected_to),
            str(len(device.core_ids) * snapshot.lnc),
            formats.READY,
            formats.NOTIFY_OFF,
            formats.serial_number(snapshot.instance_id, device.index),
            f"{names.device_arch}\n",
            f"{names.device_name}\n",
            f"{names.instance_type}\n",
            *(formats.number(getattr(device.hardware, name)) for name in self._driver.hardware),
            power,
        ]
        if self._driver.has_health:
            texts += [power, ",".join(device.unhealthy) + "\n"]
            if self._heartbeat:
                texts.append(formats.number(beats))
        return tuple(texts)

    def _core_part(self, directory: str, core: CoreSum, place: int, lnc: int) -> Part:
        known = self._known.get(directory)
        if known is None or known.key != core:
            numbers = self._core_numbers(core, place, lnc)
            texts = [f"{self._instance.device.sysfs.core_arch}\n"]
            if self._driver.has_tensor_counters:
                texts.append(self._tensor_counters(core, place, lnc))
            known = self._known[directory] = Part(directory, self._core_layout, core, numbers, tuple(texts))
        return known

    def _core_numbers(self, core: CoreSum, place: int, lnc: int) -> Amounts:
        statuses = _by_status(core, self._driver)
        memory = [portion(amount, place, lnc) for amount in core.memory]
        by_path = {
            "stats/memory_usage/device_mem": sum(memory),
            "stats/memory_usage/host_mem": portion(core.host_bytes, place, lnc),
            "stats/other_info/flop_count": portion(core.flops, place, lnc),
            "stats/other_info/inference_count": core.executions,
            "stats/other_info/model_load_count": core.model_loads,
            "stats/other_info/nc_time_in_use": core.busy_ns,
            **{path: memory[at] for path, at in _MEMORY_PLACE.items()},
            **{f"stats/status/{name}": count for name, count in statuses.items()},
        }
        return tuple([by_path.get(metric.directory, 0) for metric in self._core_layout.metrics])

    def _tensor_counters(self, core: CoreSum, place: int, lnc: int) -> str:
        # Modelled: the cycles that the FLOPs take at the dense bf16 rate are active, the rest of the busy time is idle.
        version = self._instance.device.core
        busy = int(core.busy_ns * version.engine_clock_hz("Tensor") / 1e9)
        seconds = portion(core.flops, place, lnc) / version.tensor_flops_s("bf16")
        active = min(busy, int(seconds * version.engine_clock_hz("Tensor")))
        return formats.tensor_counters(active, busy - active)


def tree(
    snapshot: Snapshot,
    instance: InstanceType,
    driver: Generation,
    history: History | None = None,
    power: PowerMeter | None = None,
) -> dict[str, Entry]:
    """Return the whole tree by path, sorted.

    Args:
        snapshot: the machine.
        instance: its type.
        driver: the driver to show.
        history: resets and peaks so far, brought up to date; None for none.
        power: power utilization so far, None for none.
    """
    whole = Tree(instance, driver, power)
    past = history or History()
    entries = whole.frame(snapshot)
    for part in whole.parts(snapshot):
        entries.update(part_files(part, past))
    return dict(sorted(entries.items()))


def part_files(part: Part, history: History) -> Iterator[tuple[str, File]]:
    """Yield the files of a part by path."""
    for metric, amount in zip(part.layout.metrics, part.numbers, strict=True):
        yield from metric_files(f"{part.directory}/{metric.directory}", metric.roles, amount, history)
    for leaf, text in zip(part.layout.leaves, part.texts, strict=True):
        path = f"{part.directory}/{leaf.path}"
        shown = history.notify_delay(path, text) if leaf.role is Role.NOTIFY else text
        yield path, File(shown, leaf.mode)


def metric_files(
    directory: str, roles: tuple[Role, ...], amount: int, history: History
) -> Iterator[tuple[str, File]]:
    """Yield the files of one number by path."""
    for role in roles:
        path = f"{directory}/{role}"
        yield path, File(formats.number(history.shown(path, role, amount)), METRIC_MODE)


def _present(snapshot: Snapshot) -> list[DeviceState]:
    return [device for device in snapshot.devices if not device.lost]


def _core_generation(instance: InstanceType) -> int:
    return int(instance.device.sysfs.core_arch.removeprefix("NCv"))


def _host_number(directory: str, host: Amounts) -> int:
    place = _HOST_PLACE.get(directory)
    if place is not None:
        return host[place]
    return host[-1] if directory.endswith("/uncategorized") else 0


def _by_status(core: CoreSum, driver: Generation) -> dict[str, int]:
    names = dict(driver.status_of)
    counts = {SUCCESS: core.executions}
    for status, count in core.failures:
        name = names.get(status, OTHER)
        counts[name] = counts.get(name, 0) + count
        counts[SUCCESS] -= count
    return counts
