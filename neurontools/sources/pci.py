"""Where the Neuron devices of a host sit on its PCI bus, from sysfs."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

_DEVICES = "sys/bus/pci/devices"


@dataclass(frozen=True, slots=True)
class PciPlace:
    """A device on the bus: its address, and which CPUs and memory are near."""

    bdf: str
    cpu_affinity: str
    numa_node: str


def neuron_places(root: str, pci_ids: Collection[str]) -> tuple[PciPlace, ...]:
    """Return the places of all PCI devices with one of these ids, by address.

    Args:
        root: the directory that has `sys` in it, "" for the host's own.
        pci_ids: vendor and device, such as "1d0f:7164".
    """
    directory = f"{root}/{_DEVICES}"
    try:
        names = sorted(os.listdir(directory))
    except OSError:
        return ()
    return tuple(
        PciPlace(
            name, _read(f"{directory}/{name}/local_cpulist"), _read(f"{directory}/{name}/numa_node") or "-1"
        )
        for name in names
        if _id(f"{directory}/{name}") in pci_ids
    )


def _id(directory: str) -> str:
    vendor, device = (_read(f"{directory}/{name}").removeprefix("0x") for name in ("vendor", "device"))
    return f"{vendor}:{device}"


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""
