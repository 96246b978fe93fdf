"""The algorithms: which of them a group of ranks can use, and their plans.

Their names are those that the real tool prints; no document describes them, so the steps behind the names are our decision (docs/reference/nccom-test.md).
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from neurontools.collectives.operations import Operation
from neurontools.collectives.plans import Hierarchy, Mesh, Plan, RecursiveHalving, Rings, permute

if TYPE_CHECKING:
    from collections.abc import Iterator

    from neurontools.collectives.fabric import Fabric
    from neurontools.collectives.plans import Schedule, Step, Tours


class Algorithm(StrEnum):
    """How the ranks of a collective exchange their data, by the name that the tool prints."""

    MESH = "mesh"
    RDH = "rdh"
    HIERARCHICAL = "hier"
    RING = "ring"
    KANGARING = "kangaring"


def available_algorithms(
    operation: Operation, cores: tuple[int, ...], fabric: Fabric
) -> tuple[Algorithm, ...]:
    """Return the algorithms that ranks on these cores can use, in the order in which ties are decided."""
    if operation.is_point_to_point:
        return (Algorithm.MESH,)
    ranks, devices = len(cores), group_by_device(cores, fabric)
    several, width = len(devices) > 1, len(devices[0])
    # The levels of the hierarchy need positions that are numbered device by device, as many on each.
    even = several and width > 1 and sum(devices, ()) == tuple(range(ranks))
    even = even and all(len(group) == width for group in devices)
    possible = {
        Algorithm.MESH: True,
        Algorithm.RDH: ranks > 2 and ranks & (ranks - 1) == 0,
        Algorithm.HIERARCHICAL: even,
        Algorithm.RING: ranks > 2,
        Algorithm.KANGARING: several and fabric.has_closed_rings,
    }
    return tuple(algorithm for algorithm, can in possible.items() if can)


def make_plan(
    algorithm: Algorithm,
    operation: Operation,
    cores: tuple[int, ...],
    fabric: Fabric,
    pairs: tuple[tuple[int, int], ...] | None = None,
) -> Plan:
    """Return the steps of one of the `available_algorithms` for ranks on these cores.

    `pairs` are who sends to whom in a permute, by position; None: each to the next.
    """
    ranks = len(cores)
    if operation.is_point_to_point:
        ring = tuple((rank, (rank + 1) % ranks) for rank in range(ranks))
        return Plan(1, (permute(ring if pairs is None else pairs),))
    channels, schedule = _schedule(algorithm, operation, cores, fabric)
    return Plan(channels, tuple(_steps(operation, schedule)))


def group_by_device(cores: tuple[int, ...], fabric: Fabric) -> tuple[tuple[int, ...], ...]:
    """Return the positions of a group by device, in the order in which devices first appear."""
    found: dict[int, list[int]] = {}
    for position, core in enumerate(cores):
        found.setdefault(fabric.device_of(core), []).append(position)
    return tuple(map(tuple, found.values()))


def _schedule(
    algorithm: Algorithm, operation: Operation, cores: tuple[int, ...], fabric: Fabric
) -> tuple[int, Schedule]:
    """Return into how many pieces every block is cut, and who sends them where."""
    match algorithm:
        case Algorithm.MESH:
            return 1, Mesh(len(cores))
        case Algorithm.RDH:
            return 1, RecursiveHalving(len(cores))
        case Algorithm.RING:
            return 1, Rings(_tours(cores, fabric)[:1])
        case Algorithm.KANGARING:
            tours = _tours(cores, fabric)
            return len(tours), Rings(tours)
        case Algorithm.HIERARCHICAL:
            groups = group_by_device(cores, fabric)
            tours = _tours(tuple(cores[group[0]] for group in groups), fabric)
            return 1 if operation.is_all_to_all else len(tours), Hierarchy(tours, len(groups[0]))


def _steps(operation: Operation, schedule: Schedule) -> Iterator[Step]:
    match operation:
        case Operation.ALL_GATHER | Operation.ALL_GATHERV:
            yield from schedule.gather()
        case Operation.REDUCE_SCATTER:
            yield from schedule.reduce_scatter()
        case Operation.ALL_REDUCE:
            yield from schedule.reduce_scatter()
            yield from schedule.gather()
        case _:
            yield from schedule.all_to_all()


def _tours(cores: tuple[int, ...], fabric: Fabric) -> Tours:
    # A tour visits the positions of one device after another; the opposite direction is a tour of its own.
    tours = []
    for cycle in fabric.cycles():
        place = {device: index for index, device in enumerate(cycle)}
        tour = sorted(
            range(len(cores)), key=lambda position: (place[fabric.device_of(cores[position])], position)
        )
        tours += [tour, tour[::-1]]
    return tours
