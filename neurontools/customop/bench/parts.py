"""Where the modelled time of one core goes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools import gpsimd
from neurontools.customop import cost
from neurontools.customop.bench.bench_report import Part
from neurontools.customop.bench.counts import Way

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.customop.bench.counts import Place
    from neurontools.customop.calls import CoreWork

COMPUTE = "arithmetic of tensor functions"
LAUNCH = "launch"


def parts_of(work: CoreWork, core: int, places: Sequence[Place]) -> tuple[Part, ...]:
    """Return the parts of a core's time, the launch included, in a fixed order; what took none is left out.

    Args:
        work: what the core did.
        core: which core.
        places: what was counted by place.
    """
    launch_ns = gpsimd.rates().launch_ns
    whole_ns = launch_ns + cost.core_ns(work)
    rows: list[tuple[str, int, int, float]] = []
    for way in Way:
        mine = [place for place in places if place.core == core and place.way is way]
        taken_ns = sum(place.modelled_ns for place in mine)
        rows.append((way, sum(place.count for place in mine), sum(place.nbytes for place in mine), taken_ns))
    rows.append((COMPUTE, 0, work.computed_bytes, cost.compute_ns(work)))
    rows.append((LAUNCH, 1, 0, launch_ns))
    return tuple(
        Part(str(name), count, nbytes, taken_ns, taken_ns / whole_ns)
        for name, count, nbytes, taken_ns in rows
        if taken_ns > 0
    )
