"""The links between devices: state, modelled load, and a placement for drawing them.

The driver has no traffic counter for links, so the load is modelled: a link is as busy as the less busy of its two
devices in a job that holds cores of both.
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

from msgspec import Struct

from neurontools.dashboard.process_rows import job_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from neurontools.dashboard.process_rows import Job
    from neurontools.machine.snapshot import DeviceState, Snapshot

Pair = tuple[int, int]


class DeviceLink(Struct, frozen=True):
    """A link between two devices, the lower index first. `load` (0..1) is modelled, None where no job spans it."""

    devices: Pair
    is_down: bool
    load: float | None


class TopologyPosition(Struct, frozen=True):
    """Devices in rows and columns; None is an empty place."""

    rows: tuple[tuple[int | None, ...], ...]


def links(snapshot: Snapshot, utilization: Mapping[int, float]) -> dict[Pair, DeviceLink]:
    """Return the links of a machine by their devices.

    Args:
        snapshot: the machine; neighbours that are not among its devices (a container's) are left out.
        utilization: of every core, by machine-wide id.
    """
    known = {device.index for device in snapshot.devices}
    loads = _loads(snapshot, utilization)
    found: dict[Pair, DeviceLink] = {}
    for device in snapshot.devices:
        for peer in (*(device.connected_to or ()), *device.links_down):
            if peer in known and peer != device.index:
                pair = (min(device.index, peer), max(device.index, peer))
                down = peer in device.links_down or (pair in found and found[pair].is_down)
                found[pair] = DeviceLink(pair, down, None if down else loads.get(pair))
    return found


def is_switched(devices: Sequence[int], pairs: Iterable[Pair]) -> bool:
    """Return whether every device is linked to every other, so that drawing single links is useless."""
    return len(devices) > 3 and set(combinations(sorted(devices), 2)) <= set(pairs)


def placement(devices: Sequence[int], pairs: Iterable[Pair], most_columns: int) -> TopologyPosition:
    """Arrange devices in rows so that as many links as possible join neighbours, wrapping around the edges.

    Args:
        devices: their indices.
        pairs: the links.
        most_columns: how many devices fit beside each other.
    """
    linked = set(pairs)
    widths = [
        width
        for width in (4, *range(2, min(most_columns, len(devices)) + 1), 1)
        if width <= max(1, most_columns)
    ]
    candidates = [
        _rows(devices, width, snake=snake)
        for width in widths
        if width <= max(1, len(devices))
        for snake in (False, True)
    ]
    best = max(candidates, key=lambda rows: len(drawn_pairs(TopologyPosition(rows)) & linked))
    return TopologyPosition(best)


def drawn_pairs(place: TopologyPosition) -> set[Pair]:
    """Return the pairs of devices that are adjacent in the drawing, wrapping around the edges."""
    pairs = set()
    for line in (*place.rows, *zip(*place.rows, strict=True)):
        for left, right in zip(line, (*line[1:], line[0]), strict=True):
            if left is not None and right is not None and left != right:
                pairs.add((min(left, right), max(left, right)))
    return pairs


def _rows(devices: Sequence[int], width: int, *, snake: bool) -> tuple[tuple[int | None, ...], ...]:
    padded: list[int | None] = [*devices, *[None] * (-len(devices) % width)]
    rows = [padded[at : at + width] for at in range(0, len(padded), width)]
    return tuple(tuple(row[::-1] if snake and number % 2 else row) for number, row in enumerate(rows))


def _loads(snapshot: Snapshot, utilization: Mapping[int, float]) -> dict[Pair, float]:
    device_of = {core: device.index for device in snapshot.devices for core in device.core_ids}
    shares: dict[Job, dict[int, list[float]]] = {}
    for process in snapshot.processes:
        if process.cores:
            of_job = shares.setdefault(job_of(process), {})
            for use in process.cores:
                if use.core in device_of:
                    of_job.setdefault(device_of[use.core], []).append(utilization.get(use.core, 0.0))
    loads: dict[Pair, float] = {}
    for of_job in shares.values():
        means = {device: sum(values) / len(values) for device, values in of_job.items()}
        for pair in combinations(sorted(means), 2):
            loads[pair] = max(loads.get(pair, 0.0), min(means[pair[0]], means[pair[1]]))
    return loads


def device_utilization(device: DeviceState, utilization: Mapping[int, float]) -> float:
    """Return the mean utilization of a device's cores."""
    cores = device.core_ids
    return sum(utilization.get(core, 0.0) for core in cores) / len(cores) if cores else 0.0
