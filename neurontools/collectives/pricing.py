"""What a plan costs on a fabric: a fixed time and a time for every byte.

A step lasts as long as its slowest part: the busiest link, the core that sends or receives most, and then the core
that adds up most. Latency of a step: the step itself, its longest route, and the peers that one rank sends to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools.collectives.constants import constants
from neurontools.collectives.fabric import route

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from neurontools.collectives.fabric import Fabric, Link
    from neurontools.collectives.plans import Plan, Step

    _Flows = dict[tuple[int, int], tuple[float, float]]  # between cores: share moved, share added up


@dataclass(frozen=True, slots=True)
class Price:
    """Seconds of a collective: `latency_s + nbytes * per_byte_s`."""

    latency_s: float
    per_byte_s: float

    def time_s(self, nbytes: int) -> float:
        """Return the time of a size."""
        return self.latency_s + nbytes * self.per_byte_s


def price(groups: Sequence[tuple[Plan, tuple[int, ...], Sequence[float]]], over: Fabric) -> Price:
    """Return the price of plans that run side by side.

    Args:
        groups: for each group its plan, the cores of its positions, and the share of every block in the size.
        over: the instance.
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
            seen[key] = (_latency_s(flows, over), _slope_s(flows, over))
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


def _latency_s(flows: _Flows, over: Fabric) -> float:
    fitted = constants()
    hops, peers = 0, dict[int, int]()
    for source, target in flows:
        hops = max(hops, _hops(over, source, target))
        peers[source] = peers.get(source, 0) + 1
    return fitted.step_s + fitted.hop_s * hops + fitted.peer_s * max(peers.values(), default=0)


def _hops(over: Fabric, source: int, target: int) -> int:
    links = len(route(over, over.device_of(source), over.device_of(target)))
    return min(links, 1) if over.topology == "switched" else links


def _slope_s(flows: _Flows, over: Fabric) -> float:
    links: dict[Link, float] = {}
    sent: dict[int, float] = {}
    received: dict[int, float] = {}
    reduced: dict[int, float] = {}
    for (source, target), (share, adding) in flows.items():
        sent[source] = sent.get(source, 0.0) + share
        received[target] = received.get(target, 0.0) + share
        reduced[target] = reduced.get(target, 0.0) + adding
        for link in route(over, over.device_of(source), over.device_of(target)):
            links[link] = links.get(link, 0.0) + share
    moving = max(_most(sent), _most(received)) / over.core_rate
    if links:
        moving = max(moving, _most(links) / over.link_rate)
    return moving + _most(reduced) / over.reduction_rate


def _most(loads: Mapping[Any, float]) -> float:
    return max(loads.values(), default=0.0)
