"""The fabric of an instance: its cores, the links between devices, their rates and routes, and the model's constants."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

from neurontools import paths
from neurontools.errors import NeuronToolsError
from neurontools.machine.instances.catalogue import InstanceType, instance_type

Link = tuple[int, int]

_LINK_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*(GiB|TiB|GB|TB)/s")
_NETWORK_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*Gbps")
_RATE_UNITS = {"GiB": 2**30, "TiB": 2**40, "GB": 1e9, "TB": 1e12}
_TORUS_SIDE = 4

# Two cycles through all devices of the 4x4 torus that share no link.
_TORUS_CYCLES = (
    (0, 1, 2, 3, 7, 4, 5, 6, 10, 11, 8, 9, 13, 14, 15, 12),
    (0, 4, 8, 12, 13, 1, 5, 9, 10, 14, 2, 6, 7, 11, 15, 3),
)


@dataclass(frozen=True, slots=True)
class Constants:
    """The cost model's constants: latencies in seconds, shares of the catalogue's rates, spread of iterations."""

    launch_s: float
    step_s: float
    hop_s: float
    peer_s: float
    network_s: float
    link_share: float
    core_share: float
    reduction_share: float
    network_share: float
    jitter: float


@cache
def constants() -> Constants:
    """Return the cost model's constants."""
    document = _read("model.yaml")
    latency = {f"{name}_s": us * 1e-6 for name, us in document["latency_us"].items()}
    share = {f"{name}_share": value for name, value in document["share"].items()}
    return Constants(**latency, **share, jitter=document["jitter"])


@cache
def allowed_ranks(instance: str, lnc: int) -> tuple[int, ...] | None:
    """Return how many ranks can take part on one instance, None where any number can."""
    counts = _read("ranks.yaml").get(instance, {}).get(lnc)
    return None if counts is None else tuple(counts)


def _read(name: str) -> dict[str, Any]:
    import yaml

    with open(f"{paths.fixtures_dir()}/collectives/{name}", encoding="utf-8") as file:
        document: dict[str, Any] = yaml.safe_load(file)
    return document


@dataclass(frozen=True, slots=True, eq=False)
class Fabric:
    """An instance at a logical NeuronCore configuration, as collectives see it. Rates in bytes/s.

    `find_fabric` makes one value of each, so they are compared by identity, which keeps looking up routes fast.

    `link_rate` is that of one link in one direction between two devices, or of a device's port at a switch; 0 on
    instances with one device. `core_rate` is what one core sends or receives at most, `reduction_rate` what it adds
    up. `network_rate` is 0 where the instance's network is not known.
    """

    instance: str
    lnc: int
    topology: str
    neighbours: tuple[tuple[int, ...], ...]
    cores_per_device: int
    link_rate: float
    core_rate: float
    reduction_rate: float
    network_rate: float

    @property
    def core_count(self) -> int:
        """Logical cores of the instance."""
        return len(self.neighbours) * self.cores_per_device

    def device_of(self, core: int) -> int:
        """Return the device of a core."""
        return core // self.cores_per_device

    def cycles(self) -> tuple[tuple[int, ...], ...]:
        """Return closed tours through all devices that share no link; rings follow them."""
        if self.topology == "torus4x4":
            return _TORUS_CYCLES
        return (tuple(range(len(self.neighbours))),)

    @property
    def has_closed_rings(self) -> bool:
        """Whether the last device of a tour is a neighbour of the first."""
        return self.topology in {"torus4x4", "ring", "switched"}

    def links(self) -> tuple[Link, ...]:
        """Return the links, one entry for each direction."""
        return tuple((source, target) for source, row in enumerate(self.neighbours) for target in row)


def find_fabric(instance: str | InstanceType, lnc: int | None = None) -> Fabric:
    """Return the fabric of an instance type; `lnc` None is the type's default.

    Raises:
        UnknownInstanceError: no such type.
        NeuronToolsError: the type does not offer that logical NeuronCore configuration.
    """
    kind = instance_type(instance) if isinstance(instance, str) else instance
    return _make_fabric(kind, kind.device.lnc_default if lnc is None else lnc)


@cache
def _make_fabric(kind: InstanceType, lnc: int) -> Fabric:
    fitted, device = constants(), kind.device
    cores = kind.cores_per_device(lnc)
    neighbours = tuple(row or () for row in kind.connected_to)
    network = _NETWORK_RATE.search(kind.network)
    return Fabric(
        instance=kind.name,
        lnc=lnc,
        topology=kind.topology,
        neighbours=neighbours,
        cores_per_device=cores,
        link_rate=_link_rate(kind, neighbours) * fitted.link_share,
        core_rate=device.dma_bandwidth_bytes_s / cores * fitted.core_share,
        reduction_rate=device.memory_bandwidth_bytes_s / cores * fitted.reduction_share,
        network_rate=float(network[1]) * 1e9 / 8 * fitted.network_share if network else 0.0,
    )


def _link_rate(kind: InstanceType, neighbours: tuple[tuple[int, ...], ...]) -> float:
    if len(neighbours) == 1:
        return 0.0
    match = _LINK_RATE.search(kind.neuronlink)
    if match is None:
        raise NeuronToolsError(f"the catalogue has no NeuronLink rate of {kind.name}")
    both_directions = float(match[1]) * _RATE_UNITS[match[2]]
    links = 1 if kind.topology == "switched" else max(map(len, neighbours))
    return both_directions / (2 * links)


@cache
def route(fabric: Fabric, source: int, target: int) -> tuple[Link, ...]:
    """Return the links from one device to another: dimension by dimension on a torus, else a shortest path.

    Behind a switch the two "links" are the ports of the two devices. Of two equally short ways round, devices with an
    even number take the one and those with an odd number the other, which spreads the load evenly.
    """
    if source == target:
        return ()
    if fabric.topology == "switched":
        return ((source, -1), (-1, target))
    if fabric.topology == "torus4x4":
        return _torus_route(source, target)
    path = _shortest(fabric.neighbours, source, target)
    return tuple(pairwise(path))


def _torus_route(source: int, target: int) -> tuple[Link, ...]:
    row, column = divmod(source, _TORUS_SIDE)
    rows, columns = divmod(target, _TORUS_SIDE)
    links, current = [], source
    for move in _moves(column, columns):
        column = (column + move) % _TORUS_SIDE
        links.append((current, current := row * _TORUS_SIDE + column))
    for move in _moves(row, rows):
        row = (row + move) % _TORUS_SIDE
        links.append((current, current := row * _TORUS_SIDE + column))
    return tuple(links)


def _moves(start: int, end: int) -> list[int]:
    distance = (end - start) % _TORUS_SIDE
    if distance * 2 == _TORUS_SIDE:
        return [1 if start % 2 == 0 else -1] * distance
    return [1] * distance if distance * 2 < _TORUS_SIDE else [-1] * (_TORUS_SIDE - distance)


def _shortest(neighbours: tuple[tuple[int, ...], ...], source: int, target: int) -> list[int]:
    came_from = {source: source}
    waiting = deque([source])
    while target not in came_from:
        current = waiting.popleft()
        near = sorted(neighbours[current], key=lambda device: (device - source) % len(neighbours))
        for device in near if source % 2 == 0 else reversed(near):
            if device not in came_from:
                came_from[device] = current
                waiting.append(device)
    path = [target]
    while path[-1] != source:
        path.append(came_from[path[-1]])
    return path[::-1]
