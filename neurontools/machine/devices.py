"""The devices of a machine: their layout, their states as readers see them, and the place in an UltraServer.

AWS's documentation shows the names of the UltraServer's files and single values (`busy`, `-1`, 16 hexadecimal digits,
`1,2,3,4`). Which instances are pairs, and the made-up ids, are our decision: a user's machines are all instances of one
UltraServer.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools.machine.machine_config import DOCS
from neurontools.machine.snapshot import DeviceState, UltraServer

if TYPE_CHECKING:
    from neurontools.machine.instances.catalogue import InstanceType
    from neurontools.machine.machine_config import MachineConfig

_NONE = "-1"
_FOUR, _PAIRS_ACROSS, _PAIRS_DOWN = 1, 2, 3  # X4, X2H, X2V
_PAIR = 2


@dataclass(frozen=True, slots=True)
class Layout:
    """The resources of a machine. Logical core ids count through the devices: device = core // cores_per_device.

    `links` are the neighbours of each device; empty where they are not needed.
    """

    device_count: int
    cores_per_device: int
    memory_bytes: int
    links: tuple[tuple[int, ...], ...] = ()

    @property
    def core_count(self) -> int:
        """Logical cores of the whole machine."""
        return self.device_count * self.cores_per_device

    def device_of(self, core: int) -> int:
        """Return the device of a core."""
        return core // self.cores_per_device

    def cores_of(self, device: int) -> range:
        """Return the cores of a device."""
        return range(device * self.cores_per_device, (device + 1) * self.cores_per_device)


def device_count(config: MachineConfig, instance: InstanceType) -> int:
    """Return how many devices are visible."""
    return instance.device_count if config.visible_devices is None else len(config.visible_devices)


def device_states(config: MachineConfig, instance: InstanceType) -> tuple[DeviceState, ...]:
    """Return the visible devices, unused.

    As in AWS's documented capture of a container, devices and cores are numbered anew from 0, while the
    neighbours keep the host's ids, and PCI address, affinity and NUMA node are those of the host's device.
    """
    per_device = instance.cores_per_device(config.lnc)
    docs = instance.connected_to_docs if config.neighbours == DOCS else None
    visible = range(instance.device_count) if config.visible_devices is None else config.visible_devices
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


def ultraserver_of(config: MachineConfig, instance: InstanceType, owner: str) -> UltraServer | None:
    """Return the machine's place in its UltraServer, None if it is not in one; `owner` is the UltraServer's owner."""
    ultraserver, node, modes = instance.ultraserver, config.ultraserver_node, config.ultraserver_modes
    if ultraserver is None or node is None or modes is None:
        return None
    return place_in_ultraserver(ultraserver.nodes, node, modes, ultraserver.class_files, owner)


def place_in_ultraserver(
    nodes: int, node: int, modes: tuple[int, ...], class_files: tuple[str, ...], owner: str
) -> UltraServer:
    """Return the place of one instance.

    Args:
        nodes: instances of the UltraServer.
        node: which of them this one is, from 0.
        modes: ways in which they may be joined.
        class_files: names of the files.
        owner: the owner of the UltraServer; its ids are derived from it.
    """
    files = tuple((name, _content(name, node, modes, owner)) for name in class_files)
    return UltraServer(nodes, node, modes, files)


def _content(name: str, node: int, modes: tuple[int, ...], owner: str) -> str:
    pair = _pair(node, modes)
    match name:
        case "ultraserver_mode":
            return ",".join(map(str, modes))
        case "node_id":
            return str(node)
        case "reservation_id":
            return _made_up_id(f"{owner}\0reservation")
        case "node_id_4":
            return str(node) if _FOUR in modes else _NONE
        case "server_id_4":
            return _made_up_id(owner) if _FOUR in modes else _NONE
        case "node_id_2":
            return _NONE if pair is None else str(pair[1])
        case "server_id_2":
            return _NONE if pair is None else _made_up_id(f"{owner}\0{pair[0]}")
    raise ValueError(f"no content is known for {name}")


def _pair(node: int, modes: tuple[int, ...]) -> tuple[int, int] | None:
    """Return which pair an instance belongs to and its place in it; across the rows first if both ways are open."""
    if _PAIRS_ACROSS in modes:
        return node // _PAIR, node % _PAIR
    if _PAIRS_DOWN in modes:
        return node % _PAIR, node // _PAIR
    return None


def _made_up_id(seed: str) -> str:
    return hashlib.sha256(f"ultraserver\0{seed}".encode()).hexdigest()[:16]
