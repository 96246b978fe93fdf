"""The driver's tree for a machine: every path below the root directory with its text and mode, or where it links to.

Paths are relative (`sys/devices/virtual/neuron_device/neuron0/core_count`). What stands in for `/proc/devices` and
for the device nodes is in the tree too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from neurontools.errors import NeuronToolsError
from neurontools.machine.instances.catalogue import InstanceType, instance_type
from neurontools.sysfs.aggregates import (
    NOTHING,
    ON_DEVICE,
    ON_HOST,
    Amounts,
    BaselineReader,
    CoreSum,
    CounterBaseline,
    MemoryPeaks,
    PowerMeter,
    core_sums,
    host_sums,
    portion,
)
from neurontools.sysfs.layout import (
    DEVICE_MODE,
    METRIC_MODE,
    NOTIFY_OFF,
    OTHER,
    PEAK,
    READ_ONLY,
    READY,
    SUCCESS,
    core_layout,
    device_layout,
    emulated,
    format_character_devices,
    format_device_number,
    format_neighbours,
    format_number,
    format_serial_number,
    format_tensor_counters,
    format_uevent,
    power_management,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from neurontools.machine.snapshot import DeviceState, Snapshot
    from neurontools.sysfs.layout import DriverRelease, TreeLayout

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
class TreeFile:
    """A file of the tree."""

    text: str
    mode: int


@dataclass(frozen=True, slots=True)
class TreeLink:
    """A symbolic link of the tree."""

    target: str


Entry = TreeFile | TreeLink


@dataclass(frozen=True, slots=True)
class TreePart:
    """The files of a device or of one of its cores, which change together.

    `key` is what they are made of: as long as it is the same, so are they. `numbers` and `texts` are those of the
    layout's metrics and leaves.
    """

    directory: str
    layout: TreeLayout
    key: object
    numbers: Amounts = field(repr=False)
    texts: tuple[str, ...] = field(repr=False)


class SysfsTree:
    """The tree of a machine whose instance type, id and LNC do not change.

    Args:
        instance: its type.
        driver: the driver that it shows.
        power: tells the devices' power utilization.
    """

    def __init__(
        self, instance: InstanceType, driver: DriverRelease, power: PowerMeter | None = None
    ) -> None:
        self._instance = instance
        self._driver = driver
        self._power = power or PowerMeter()
        self._heartbeat = _core_generation(instance) >= _FIRST_WITH_HEARTBEAT
        self._core_layout = core_layout(driver)
        self._device_layout = device_layout(driver, heartbeat=self._heartbeat)
        self._known: dict[str, TreePart] = {}

    def frame(self, snapshot: Snapshot) -> dict[str, Entry]:
        """Return the files about the machine as a whole: links to the devices, UltraServer, versions, stand-ins."""
        present = _present(snapshot)
        entries: dict[str, Entry] = {
            PROC_DEVICES: TreeFile(format_character_devices(), READ_ONLY),
            MODULE_VERSION: TreeFile(f"{self._driver.driver_version}\n", READ_ONLY),
            PRODUCT_NAME: TreeFile(f"{snapshot.instance_type}\n", READ_ONLY),
        }
        for device in present:
            name = f"neuron{device.index}"
            entries[f"{NODES}/{name}"] = TreeFile("", DEVICE_MODE)
            entries[f"{CLASS}/{name}"] = TreeLink(f"../../devices/virtual/neuron_device/{name}")
            entries[f"{DEVICES}/{name}/subsystem"] = TreeLink("../../../../class/neuron_device")
        if snapshot.ultraserver is not None:
            for name, content in snapshot.ultraserver.files:
                entries[f"{CLASS}/{name}"] = TreeFile(f"{content}\n", READ_ONLY)
        return entries

    def parts(self, snapshot: Snapshot, baseline: CounterBaseline) -> Iterator[TreePart]:
        """Yield the parts of every present device; an unchanged part is the same object as before."""
        sums = baseline.subtract_from(core_sums(snapshot), snapshot)
        hosts = host_sums(snapshot)
        for device in _present(snapshot):
            directory = f"{DEVICES}/neuron{device.index}"
            yield self._device_part(snapshot, device, directory, hosts[device.index])
            for index in range(len(device.core_ids) * snapshot.lnc):
                core = device.core_ids[index // snapshot.lnc]
                place = index % snapshot.lnc
                yield self._core_part(
                    f"{directory}/neuron_core{index}", sums.get(core, NOTHING), place, snapshot.lnc
                )

    def _device_part(
        self, snapshot: Snapshot, device: DeviceState, directory: str, host: Amounts
    ) -> TreePart:
        beats = int((snapshot.taken_unix_s - snapshot.started_unix_s) // 60) if self._heartbeat else 0
        power = self._power.line(device.index, snapshot.started_unix_s)
        key = (device.hardware, device.unhealthy, device.connected_to, host, power, max(0, beats))
        known = self._known.get(directory)
        if known is None or known.key != key:
            numbers = tuple([_host_number(metric.directory, host) for metric in self._device_layout.metrics])
            texts = self._device_texts(snapshot, device, power, max(0, beats))
            known = self._known[directory] = TreePart(directory, self._device_layout, key, numbers, texts)
        return known

    def _device_texts(
        self, snapshot: Snapshot, device: DeviceState, power: str, beats: int
    ) -> tuple[str, ...]:
        names = self._instance.device.sysfs
        texts = [
            format_uevent(device.index),
            format_device_number(device.index),
            *power_management(),
            format_neighbours(device.connected_to),
            str(len(device.core_ids) * snapshot.lnc),
            READY,
            NOTIFY_OFF,
            format_serial_number(snapshot.instance_id, device.index),
            f"{names.device_arch}\n",
            f"{names.device_name}\n",
            f"{names.instance_type}\n",
            *(format_number(getattr(device.hardware, name)) for name in self._driver.hardware),
            power,
        ]
        if self._driver.has_health:
            texts += [power, ",".join(device.unhealthy) + "\n"]
            if self._heartbeat:
                texts.append(format_number(beats))
        return tuple(texts)

    def _core_part(self, directory: str, core: CoreSum, place: int, lnc: int) -> TreePart:
        known = self._known.get(directory)
        if known is None or known.key != core:
            numbers = self._core_numbers(core, place, lnc)
            texts = [f"{self._instance.device.sysfs.core_arch}\n"]
            if self._driver.has_tensor_counters:
                texts.append(self._tensor_counters(core, place, lnc))
            known = self._known[directory] = TreePart(
                directory, self._core_layout, core, numbers, tuple(texts)
            )
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
        return format_tensor_counters(active, busy - active)


def build_tree(
    snapshot: Snapshot,
    instance: InstanceType,
    driver: DriverRelease,
    *,
    baseline: CounterBaseline | None = None,
    power: PowerMeter | None = None,
) -> dict[str, Entry]:
    """Return the whole tree by path, sorted; every peak is the present value.

    Args:
        snapshot: the machine.
        instance: its type.
        driver: the driver to show.
        baseline: counters at the last reset, None if they were never reset.
        power: power utilization so far, None for none.
    """
    tree, peaks = SysfsTree(instance, driver, power), MemoryPeaks()
    entries = tree.frame(snapshot)
    for part in tree.parts(snapshot, baseline or CounterBaseline()):
        entries.update(part_files(part, peaks))
    return dict(sorted(entries.items()))


def part_files(
    part: TreePart, peaks: MemoryPeaks, previous: TreePart | None = None
) -> Iterator[tuple[str, TreeFile]]:
    """Yield the files of a part by path; with a previous state only those whose value differs from it."""
    old_numbers = previous.numbers if previous else (None,) * len(part.numbers)
    for metric, old_number, amount in zip(part.layout.metrics, old_numbers, part.numbers, strict=True):
        if amount != old_number:
            for name in metric.files:
                path = f"{part.directory}/{metric.directory}/{name}"
                value = peaks.update(path, amount) if name == PEAK else amount
                yield path, TreeFile(format_number(value), METRIC_MODE)
    old_texts = previous.texts if previous else (None,) * len(part.texts)
    for leaf, old_text, text in zip(part.layout.leaves, old_texts, part.texts, strict=True):
        if text != old_text:
            yield f"{part.directory}/{leaf.path}", TreeFile(text, leaf.mode)


def _present(snapshot: Snapshot) -> list[DeviceState]:
    return [device for device in snapshot.devices if not device.lost]


def _core_generation(instance: InstanceType) -> int:
    return int(instance.device.sysfs.core_arch.removeprefix("NCv"))


def _host_number(directory: str, host: Amounts) -> int:
    place = _HOST_PLACE.get(directory)
    if place is not None:
        return host[place]
    return host[-1] if directory.endswith("/uncategorized") else 0


def _by_status(core: CoreSum, driver: DriverRelease) -> dict[str, int]:
    names = dict(driver.status_of)
    counts = {SUCCESS: core.executions}
    for status, count in core.failures:
        name = names.get(status, OTHER)
        counts[name] = counts.get(name, 0) + count
        counts[SUCCESS] -= count
    return counts


def find_files(snapshot: Snapshot, path: str) -> dict[str, Entry]:
    """Return the files of a machine's tree that a path selects.

    Args:
        snapshot: the machine.
        path: an absolute path (`/sys/devices/...`), one relative to the devices' directory (`neuron0/core_count`), or a
            pattern such as `neuron*/core_count`; a directory selects everything below it. The class view works too.

    Raises:
        NeuronToolsError: there is no such file.
    """
    baseline = BaselineReader(snapshot.machine).read()
    entries = build_tree(snapshot, instance_type(snapshot.instance_type), emulated(), baseline=baseline)
    pattern = path.strip("/")
    if pattern.startswith(f"{CLASS}/neuron"):
        pattern = DEVICES + pattern.removeprefix(CLASS)
    for candidate in (pattern, f"{DEVICES}/{pattern}".rstrip("/")):
        found = {
            name: entry
            for name, entry in entries.items()
            if fnmatchcase(name, candidate) or fnmatchcase(name, f"{candidate}/*")
        }
        if found:
            return found
    raise NeuronToolsError(f"no file {path!r} in the tree", "list all files with: neurontools sysfs show")


def entry_text(entry: Entry) -> str:
    """Return the text of a file, or the target of a link."""
    return f"-> {entry.target}" if isinstance(entry, TreeLink) else entry.text
