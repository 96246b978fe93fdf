"""The devices of a machine as its readers see them: numbers, places and links, from its kind and its instance type."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.machine.kind import DOCS
from neurontools.machine.snapshot import DeviceState
from neurontools.machine.ultraserver import UltraServer, place_in_ultraserver

if TYPE_CHECKING:
    from neurontools.machine.instances.catalogue import InstanceType
    from neurontools.machine.kind import Kind


def device_count(kind: Kind, instance: InstanceType) -> int:
    """Return how many devices are visible."""
    return instance.device_count if kind.visible_devices is None else len(kind.visible_devices)


def device_states(kind: Kind, instance: InstanceType) -> tuple[DeviceState, ...]:
    """Return the visible devices, unused.

    As in the capture of a container (system-tools.md 1.4), devices and cores are numbered anew from 0, while the
    neighbours keep the host's ids, and PCI address, affinity and NUMA node are those of the host's device.
    """
    per_device = instance.cores_per_device(kind.lnc)
    docs = instance.connected_to_docs if kind.neighbours == DOCS else None
    visible = range(instance.device_count) if kind.visible_devices is None else kind.visible_devices
    return tuple(
        DeviceState(
            index=index,
            bdf=instance.pci_bdf[host],
            cpu_affinity=instance.cpu_affinity[host],
            numa_node=instance.numa_node[host],
            connected_to=(docs or instance.connected_to)[host],
            core_ids=tuple(range(index * per_device, (index + 1) * per_device)),
            memory_bytes=instance.device.memory_bytes,
            memory_used_bytes=0,
        )
        for index, host in enumerate(visible)
    )


def ultraserver_of(kind: Kind, instance: InstanceType, owner: str) -> UltraServer | None:
    """Return the machine's place in its UltraServer, None where it is in none; `owner` is who has the UltraServer."""
    ultraserver, node, modes = instance.ultraserver, kind.ultraserver_node, kind.ultraserver_modes
    if ultraserver is None or node is None or modes is None:
        return None
    return place_in_ultraserver(ultraserver.nodes, node, modes, ultraserver.class_files, owner)
