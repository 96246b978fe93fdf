"""Reading the driver's tree: of this host, or of a mirror below another root directory.

Files that are missing or may not be read count as 0 or as unknown: drivers differ, and older ones show some files to
root only.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from neurontools.machine.snapshot import HardwareCounter, HardwareCounters
from neurontools.sysfs.aggregates import ON_DEVICE, VALID
from neurontools.sysfs.layout import driver_release
from neurontools.sysfs.tree import CLASS, DEVICES, MODULE_VERSION, NODES, PRODUCT_NAME

if TYPE_CHECKING:
    from collections.abc import Iterable

_DEVICE = re.compile(r"neuron(\d+)")
_CORE = re.compile(r"neuron_core(\d+)")
_UNHEALTHY = "stats/hardware/health_status/unhealthy_components"
_POWER = "stats/power/utilization"
_RELEASES = ("2.32", "2.28")


@dataclass(frozen=True, slots=True)
class CoreReading:
    """Counters of one physical core. `failures` are pairs of NRT status number and executions that ended so."""

    executions: int = 0
    failures: tuple[tuple[int, int], ...] = ()
    flops: int = 0
    model_loads: int = 0


@dataclass(frozen=True, slots=True)
class DeviceReading:
    """One device.

    `connected_to` is None where the file may not be read; `memory_used_bytes` is what its cores hold, `unhealthy` are
    the components that are broken. `power` is lowest, highest and mean of the last minute (0..1), None without data.
    """

    index: int
    core_count: int
    connected_to: tuple[int, ...] | None
    device_name: str
    hardware: HardwareCounters
    memory_used_bytes: int
    unhealthy: tuple[str, ...]
    power: tuple[float, float, float] | None = None


@dataclass(frozen=True, slots=True)
class DriverReading:
    """What the driver says about the host; `product_name` is the instance type."""

    version: str
    product_name: str
    devices: tuple[DeviceReading, ...]


def read_driver(root: str) -> DriverReading | None:
    """Return what the driver says, None where there is none.

    Args:
        root: the directory that has `sys` and `dev` in it, "" for the host's own.
    """
    indices = _device_indices(root)
    if not indices:
        return None
    return DriverReading(
        version=_text(f"{root}/{MODULE_VERSION}"),
        product_name=_text(f"{root}/{PRODUCT_NAME}"),
        devices=tuple(_read_device(root, index) for index in indices),
    )


def read_core(root: str, device: int, core: int) -> CoreReading:
    """Return the counters of a physical core, by its index inside its device."""
    directory = f"{root}/{DEVICES}/neuron{device}/neuron_core{core}/stats"
    counts: dict[int, int] = {}
    for name, status in _statuses().items():
        count = _number(f"{directory}/status/{name}/total")
        if count:
            counts[status] = counts.get(status, 0) + count
    return CoreReading(
        executions=sum(counts.values()),
        failures=tuple(sorted((status, count) for status, count in counts.items() if status)),
        flops=_number(f"{directory}/other_info/flop_count/total"),
        model_loads=_number(f"{directory}/other_info/model_load_count/total"),
    )


def visible_devices(root: str, indices: Iterable[int]) -> tuple[int, ...]:
    """Return the devices that can be opened here: in a container perhaps not all that the driver knows.

    A node's minor number says which device it is, whatever the node is called; a plain file that stands in for one
    is what its name says. Without any node all devices count.
    """
    nodes = []
    try:
        names = os.listdir(f"{root}/{NODES}")
    except OSError:
        names = []
    for name in names:
        match = _DEVICE.fullmatch(name)
        if match is not None:
            nodes.append(_minor(f"{root}/{NODES}/{name}", int(match[1])))
    known = sorted(indices)
    return tuple(index for index in known if index in nodes) or tuple(known)


def _device_indices(root: str) -> list[int]:
    for directory in (DEVICES, CLASS):
        indices = _numbered(f"{root}/{directory}", _DEVICE)
        if indices:
            return indices
    return []


def _read_device(root: str, index: int) -> DeviceReading:
    directory = f"{root}/{DEVICES}/neuron{index}"
    if not os.path.isdir(directory):
        directory = f"{root}/{CLASS}/neuron{index}"
    cores = _numbered(directory, _CORE)
    return DeviceReading(
        index=index,
        unhealthy=tuple(filter(None, _text(f"{directory}/{_UNHEALTHY}").split(","))),
        core_count=_number(f"{directory}/core_count") or len(cores),
        connected_to=_neighbours(_content(f"{directory}/connected_devices")),
        device_name=_text(f"{directory}/info/architecture/device_name"),
        hardware=HardwareCounters(
            **{name.value: _number(f"{directory}/stats/hardware/{name}") for name in HardwareCounter}
        ),
        memory_used_bytes=sum(
            _memory(f"{directory}/neuron_core{core}/stats/memory_usage/device_mem") for core in cores
        ),
        power=_power(_text(f"{directory}/{_POWER}")),
    )


def _power(line: str) -> tuple[float, float, float] | None:
    """Return the shares of a line such as `POWER_STATUS_VALID,1789180860,0.00,100.00,41.50`."""
    status, *numbers = line.split(",")
    if status != VALID or len(numbers) != 4:
        return None
    try:
        low, high, mean = (float(number) / 100 for number in numbers[1:])
    except ValueError:
        return None
    return low, high, mean


def _memory(directory: str) -> int:
    total = _content(f"{directory}/total")
    if total is not None:
        return _to_number(total)
    return sum(_number(f"{directory}/{name}/total") for name in ON_DEVICE)


def _neighbours(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        return None


@cache
def _statuses() -> dict[str, int]:
    """Return the directories below `status` of all drivers and the NRT status number that stands for each."""
    statuses: dict[str, int] = {}
    for driver in map(driver_release, _RELEASES):
        statuses.update(dict.fromkeys(driver.statuses, 1))
        statuses.update({name: number for number, name in reversed(driver.status_of)})
    return {**statuses, "success": 0}


def _numbered(directory: str, pattern: re.Pattern[str]) -> list[int]:
    try:
        names = os.listdir(directory)
    except OSError:
        return []
    return sorted(int(match[1]) for match in map(pattern.fullmatch, names) if match)


def _minor(path: str, number: int) -> int:
    try:
        found = os.stat(path)
    except OSError:
        return number
    return os.minor(found.st_rdev) if stat.S_ISCHR(found.st_mode) else number


def _number(path: str) -> int:
    return _to_number(_content(path) or "")


def _to_number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        return 0


def _text(path: str) -> str:
    return (_content(path) or "").strip()


def _content(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return None
