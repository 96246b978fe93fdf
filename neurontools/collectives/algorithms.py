"""The algorithms: which of them a group of ranks can use, and their plans.

Their names are those that the real tool prints ; no document describes them, so the steps
behind the names are our decision (docs/reference/nccom-test.md).
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from neurontools.collectives import hierarchy, mesh, recursive_halving, rings
from neurontools.collectives.operations import Operation
from neurontools.collectives.plans import Plan

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, Protocol

    from neurontools.collectives.fabric import Fabric
    from neurontools.collectives.plans import Step
    from neurontools.collectives.rings import Tours

    class _Family(Protocol):
        def gather(self, shape: Any, /) -> Iterator[Step]: ...

        def reduce_scatter(self, shape: Any, /) -> Iterator[Step]: ...

        def all_to_all(self, shape: Any, /) -> Iterator[Step]: ...


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
    """Return the algorithms that a group can use, in the order in which ties are decided.

    Args:
        operation: the collective.
        cores: the cores of the group's ranks.
        fabric: the instance.
    """
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
    """Return the steps of an algorithm.

    Args:
        algorithm: one of `available_algorithms`.
        operation: the collective.
        cores: the cores of the group's ranks.
        fabric: the instance.
        pairs: who sends to whom in a permute, by position; None: each to the next.
    """
    ranks = len(cores)
    if operation.is_point_to_point:
        ring = tuple((here, (here + 1) % ranks) for here in range(ranks))
        return Plan(1, tuple(mesh.permute(ring if pairs is None else pairs)))
    match algorithm:
        case Algorithm.MESH:
            return Plan(1, tuple(_steps(operation, mesh, ranks)))
        case Algorithm.RDH:
            return Plan(1, tuple(_steps(operation, recursive_halving, ranks)))
        case Algorithm.RING:
            return Plan(1, tuple(_steps(operation, rings, _tours(cores, fabric)[:1])))
        case Algorithm.KANGARING:
            tours = _tours(cores, fabric)
            return Plan(len(tours), tuple(_steps(operation, rings, tours)))
        case Algorithm.HIERARCHICAL:
            return _hierarchical(operation, cores, fabric)


def group_by_device(cores: tuple[int, ...], fabric: Fabric) -> tuple[tuple[int, ...], ...]:
    """Return the positions of a group by device, in the order in which devices first appear."""
    found: dict[int, list[int]] = {}
    for position, core in enumerate(cores):
        found.setdefault(fabric.device_of(core), []).append(position)
    return tuple(map(tuple, found.values()))


def _steps(operation: Operation, family: _Family, shape: object) -> Iterator[Step]:
    match operation:
        case Operation.ALL_GATHER | Operation.ALL_GATHERV:
            yield from family.gather(shape)
        case Operation.REDUCE_SCATTER:
            yield from family.reduce_scatter(shape)
        case Operation.ALL_REDUCE:
            yield from family.reduce_scatter(shape)
            yield from family.gather(shape)
        case _:
            yield from family.all_to_all(shape)


def _hierarchical(operation: Operation, cores: tuple[int, ...], fabric: Fabric) -> Plan:
    groups = group_by_device(cores, fabric)
    width = len(groups[0])
    if operation.is_all_to_all:
        return Plan(1, tuple(hierarchy.all_to_all(len(groups), width)))
    leaders = tuple(cores[group[0]] for group in groups)
    tours = _tours(leaders, fabric)
    steps: list[Step] = []
    if operation.reduces:
        steps += hierarchy.reduce_scatter(tours, width)
    if operation is not Operation.REDUCE_SCATTER:
        steps += hierarchy.gather(tours, width)
    return Plan(len(tours), tuple(steps))


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
