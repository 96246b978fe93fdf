"""How far modelled times are from published ones."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from statistics import fmean, geometric_mean
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from benchmarks.engine_model.anchors import Anchor, anchors, read_file
from benchmarks.engine_model.kernels import KERNELS
from benchmarks.engine_model.published import CALIBRATION, REPORT
from neurontools.compiler.engines.estimate import estimate
from neurontools.compiler.engines.modelled_core import ModelledCore
from neurontools.compiler.engines.schedule import schedule
from neurontools.machine.instances.catalogue import instance_type

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.compiler.graph import Graph

TARGETS = {CALIBRATION: (1.25, 2.0), REPORT: (1.35, 2.5)}
"""By half: the largest accepted mean and single factor of error."""


class Published(Protocol):
    """A published time."""

    @property
    def published_ms(self) -> float:
        """The time."""


PublishedT = TypeVar("PublishedT", bound=Published)


@dataclass(frozen=True, slots=True)
class Comparison(Generic[PublishedT]):
    """A published time and the modelled one."""

    anchor: PublishedT
    modelled_ms: float

    @property
    def ratio(self) -> float:
        """Modelled / published."""
        return self.modelled_ms / self.anchor.published_ms

    @property
    def error(self) -> float:
        """The factor between both, at least 1."""
        return max(self.ratio, 1 / self.ratio)


class Verdict(Comparison[Anchor]):
    """The modelled time of a figure of anchors.yaml."""

    __slots__ = ()


def modelled_ms(anchor: Anchor) -> float:
    """Return the modelled time of one execution on one core."""
    device = instance_type(anchor.instance).device
    parameters = dict(anchor.parameters)
    kernel = KERNELS.get(parameters.pop("builder"))
    if kernel is not None:
        core = ModelledCore(device, device.lnc_default)
        return (core.costs.launch_ns + schedule(kernel(core, **parameters), core).end_ns) / 1e6
    spent_ns = 0.0
    for graph, share in anchor.graphs():
        spent_ns += share * estimate(graph, device, matmul_dtype=anchor.matmul_dtype).total_ns
        if anchor.has_transfers:
            spent_ns += transfer_ns(graph)
    return spent_ns / 1e6


def transfer_ns(graph: Graph) -> float:
    """Return how long inputs and results take to and from the host: what is not both, as weights are."""
    rates = read_file()
    inputs, results = set(graph.inputs), set(graph.outputs)
    moved = sum(graph.slots[slot].nbytes for slot in inputs ^ results)
    made = [graph.slots[slot].nbytes for slot in results - inputs]
    mapped = sum(size for size in made if size > rates["mapped_bytes"])
    return (moved / rates["host_bytes_s"] + mapped / rates["first_touch_bytes_s"]) * 1e9


@cache
def verdicts() -> tuple[Verdict, ...]:
    """Return all anchors with their modelled times."""
    return tuple(Verdict(anchor, modelled_ms(anchor)) for anchor in anchors())


def of_half(half: str) -> tuple[Verdict, ...]:
    """Return the verdicts of one half."""
    return tuple(verdict for verdict in verdicts() if verdict.anchor.half == half)


def mean_error(found: Sequence[Verdict]) -> float:
    """Return the arithmetic mean of the factors of error, which is never below their geometric mean."""
    return fmean(verdict.error for verdict in found)


def geometric_error(found: Sequence[Verdict]) -> float:
    """Return the geometric mean of the factors of error."""
    return geometric_mean([verdict.error for verdict in found])


def worst(found: Sequence[Verdict]) -> Verdict:
    """Return the verdict with the largest factor of error."""
    return max(found, key=lambda verdict: verdict.error)
