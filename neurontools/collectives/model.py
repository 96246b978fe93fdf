"""The cost model: how long a collective takes on an instance, and which algorithm it chooses.

The time of an algorithm is linear in the size. The model's fastest algorithm is chosen, as the real tool shows
one with --show-algorithm. Everything here is modelled; docs/reference/nccom-test.md says on what it is calibrated.

A step of a plan lasts as long as its slowest part: the busiest link, the core that sends or receives most, and then the
core that adds up most. Latency of a step: the step itself, its longest route, and the peers that one rank sends to.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Any

from neurontools.collectives.fabric import Fabric, constants, find_fabric, route
from neurontools.collectives.operations import Operation, block_count, bus_factor, parse_name
from neurontools.collectives.plans import Hierarchy, Mesh, Plan, RecursiveHalving, Rings, permute
from neurontools.errors import NeuronToolsError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from neurontools.collectives.fabric import Link
    from neurontools.collectives.plans import Schedule, Step, Tours
    from neurontools.machine.instances.catalogue import InstanceType

    _Flows = dict[tuple[int, int], tuple[float, float]]  # between cores: share moved, share added up


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


Groups = tuple[tuple[int, ...], ...]
Shares = tuple[float, ...]

_RINGS = (Algorithm.RING, Algorithm.KANGARING)


@dataclass(frozen=True, slots=True)
class Price:
    """Seconds of a collective: `latency_s + nbytes * per_byte_s`."""

    latency_s: float
    per_byte_s: float

    def time_s(self, nbytes: int) -> float:
        """Return the time of a size."""
        return self.latency_s + nbytes * self.per_byte_s


def price(groups: Sequence[tuple[Plan, tuple[int, ...], Sequence[float]]], fabric: Fabric) -> Price:
    """Return the price of plans that run side by side.

    Args:
        groups: for each group its plan, the cores of its positions, and the share of every block in the size.
        fabric: the instance.
    """
    seen: dict[frozenset[tuple[tuple[int, int], tuple[float, float]]], tuple[float, float]] = {}
    latency_s, per_byte_s = constants().launch_s, 0.0
    for number in range(max(len(plan.steps) for plan, _, _ in groups)):
        flows: _Flows = {}
        for plan, cores, shares in groups:
            if number < len(plan.steps):
                _add_flows(flows, plan.steps[number], plan.channels, cores, shares)
        key = frozenset(flows.items())
        if key not in seen:
            seen[key] = (_latency_s(flows, fabric), _slope_s(flows, fabric))
        latency_s += seen[key][0]
        per_byte_s += seen[key][1]
    return Price(latency_s, per_byte_s)


def _add_flows(
    flows: _Flows,
    step: Step,
    channels: int,
    cores: tuple[int, ...],
    shares: Sequence[float],
) -> None:
    for transfer in step:
        pair = (cores[transfer.source], cores[transfer.target])
        share = sum(shares[piece // channels] for piece in transfer.pieces) / channels
        moved, reduced = flows.get(pair, (0.0, 0.0))
        flows[pair] = (moved + share, reduced + share if transfer.reduce else reduced)


def _latency_s(flows: _Flows, fabric: Fabric) -> float:
    fitted = constants()
    hops, peers = 0, dict[int, int]()
    for source, target in flows:
        hops = max(hops, _hops(fabric, source, target))
        peers[source] = peers.get(source, 0) + 1
    return fitted.step_s + fitted.hop_s * hops + fitted.peer_s * max(peers.values(), default=0)


def _hops(fabric: Fabric, source: int, target: int) -> int:
    links = len(route(fabric, fabric.device_of(source), fabric.device_of(target)))
    return min(links, 1) if fabric.topology == "switched" else links


def _slope_s(flows: _Flows, fabric: Fabric) -> float:
    links: dict[Link, float] = {}
    sent: dict[int, float] = {}
    received: dict[int, float] = {}
    reduced: dict[int, float] = {}
    for (source, target), (share, adding) in flows.items():
        sent[source] = sent.get(source, 0.0) + share
        received[target] = received.get(target, 0.0) + share
        reduced[target] = reduced.get(target, 0.0) + adding
        for link in route(fabric, fabric.device_of(source), fabric.device_of(target)):
            links[link] = links.get(link, 0.0) + share
    moving = max(_most(sent), _most(received)) / fabric.core_rate
    if links:
        moving = max(moving, _most(links) / fabric.link_rate)
    return moving + _most(reduced) / fabric.reduction_rate


def _most(loads: Mapping[Any, float]) -> float:
    return max(loads.values(), default=0.0)


@dataclass(frozen=True, slots=True)
class CollectiveTime:
    """The modelled time of one collective.

    `latency_s` is the part that does not depend on the size; bandwidths are in bytes/s.
    """

    operation: Operation
    algorithm: Algorithm
    nbytes: int
    ranks: int
    time_s: float
    latency_s: float

    @property
    def algorithm_bandwidth(self) -> float:
        """Size divided by time."""
        return self.nbytes / self.time_s

    @property
    def bus_bandwidth(self) -> float:
        """Algorithm bandwidth times the operation's factor: comparable between numbers of ranks."""
        return self.algorithm_bandwidth * bus_factor(self.operation, self.ranks)


@dataclass(frozen=True, slots=True)
class Workload:
    """What is timed: an operation on groups of cores that run it at the same time.

    `pairs` are those of a permute, by position. `shares` are those of every block in the size where blocks differ;
    None: all are equal. `nodes` instances do the same, joined by their network. With `streams` above 1 as many
    workloads share the links.
    """

    operation: Operation
    groups: Groups
    fabric: Fabric
    pairs: tuple[tuple[int, int], ...] | None = None
    shares: Shares | None = None
    nodes: int = 1
    streams: int = 1

    @property
    def ranks(self) -> int:
        """The ranks of one group, of all nodes."""
        return len(self.groups[0]) * self.nodes


def modelled_time(
    operation: Operation | str,
    nbytes: int,
    ranks: int | tuple[int, ...],
    instance: str | InstanceType,
    *,
    lnc: int | None = None,
    algorithm: Algorithm | str | None = None,
    nodes: int = 1,
) -> CollectiveTime:
    """Return how long a collective takes by the cost model.

    Args:
        operation: the collective, or its name.
        nbytes: its size as nccom-test counts it: what a rank has at the end of an all_gather, at the start of others.
        ranks: how many ranks of one instance take part, from core 0 on, or their cores.
        instance: the instance type or its name.
        lnc: logical NeuronCore configuration, None for the instance's default.
        algorithm: to use; None: the fastest one.
        nodes: how many instances take part, joined by their network.

    Raises:
        UnknownInstanceError: no such type.
        NeuronToolsError: ranks or algorithm are not possible there.
    """
    fabric = find_fabric(instance, lnc)
    cores = tuple(range(ranks)) if isinstance(ranks, int) else ranks
    if len(cores) < 2 or len(set(cores)) < len(cores) or min(cores) < 0 or max(cores) >= fabric.core_count:
        raise UsageError(
            f"{instance if isinstance(instance, str) else instance.name} has no such ranks: {ranks}",
            f"choose 2 to {fabric.core_count} different cores",
        )
    wanted = None if algorithm is None else parse_name(Algorithm, algorithm, "algorithm")
    return timed(Workload(Operation(operation), (cores,), fabric, nodes=nodes), nbytes, wanted)


def timed(work: Workload, nbytes: int, algorithm: Algorithm | None = None) -> CollectiveTime:
    """Return the modelled time of a workload at a size.

    Raises:
        UsageError: the groups cannot use that algorithm, or the operation has no model between instances.
    """
    names = algorithms(work)
    # Rings pass all-to-all blocks on from rank to rank, which never is the fastest; if requested, they are priced.
    fast = [name for name in names if not (work.operation.is_all_to_all and name in _RINGS)]
    if algorithm is not None and algorithm not in names:
        raise UsageError(
            f"algorithm {algorithm.value} is not possible for {work.operation.value} with these ranks",
            f"choose one of {', '.join(names)}",
        )
    prices = {name: _price(work, name) for name in (fast if algorithm is None else (algorithm,))}
    best = min(prices, key=lambda name: prices[name].time_s(nbytes))
    chosen = prices[best]
    return CollectiveTime(work.operation, best, nbytes, work.ranks, chosen.time_s(nbytes), chosen.latency_s)


def algorithms(work: Workload) -> tuple[Algorithm, ...]:
    """Return the algorithms that a workload can use."""
    if work.nodes > 1:
        return (Algorithm.HIERARCHICAL,)
    shared = [available_algorithms(work.operation, group, work.fabric) for group in work.groups]
    return tuple(name for name in shared[0] if all(name in names for names in shared))


@cache
def _price(work: Workload, algorithm: Algorithm) -> Price:
    if work.nodes > 1:
        return _between_nodes(work)
    alone = price(
        [
            (
                make_plan(algorithm, work.operation, group, work.fabric, work.pairs),
                group,
                _shares(work, group),
            )
            for group in work.groups
        ],
        work.fabric,
    )
    return Price(alone.latency_s, alone.per_byte_s * work.streams)


def _shares(work: Workload, group: tuple[int, ...]) -> Shares:
    if work.shares is not None:
        return work.shares
    if work.operation.is_point_to_point:
        return (1.0,) * len(group)
    return (1 / len(group),) * block_count(work.operation, len(group))


def _between_nodes(work: Workload) -> Price:
    # The hierarchy's third level: each rank passes its part round a ring of the nodes; the node's network is shared
    # by its ranks, so in each of the n - 1 steps a node sends 1/n of the size.
    if work.operation not in {Operation.ALL_REDUCE, Operation.ALL_GATHER, Operation.REDUCE_SCATTER}:
        raise UsageError(
            f"{work.operation.value} between instances is not modelled",
            "use all_reduce, all_gather or reduce_scatter with -N, or one instance",
        )
    if not work.fabric.network_rate:
        raise NeuronToolsError(
            f"the network rate of {work.fabric.instance} is not published",
            "use one instance (-N 1), or an instance type with EFA",
        )
    inside = _price_inside(work)
    passes = 2 if work.operation is Operation.ALL_REDUCE else 1
    steps = passes * (work.nodes - 1)
    return Price(
        inside.latency_s + steps * constants().network_s,
        (inside.per_byte_s + steps / work.nodes / work.fabric.network_rate) * work.streams,
    )


def _price_inside(work: Workload) -> Price:
    """Return the price of the part of a workload that stays inside of one instance, by the best algorithm for 1 MiB."""
    inner = Workload(work.operation, work.groups, work.fabric)
    if len(work.groups[0]) == 1:
        return Price(constants().launch_s, 0.0)
    return min((_price(inner, name) for name in algorithms(inner)), key=lambda found: found.time_s(2**20))
