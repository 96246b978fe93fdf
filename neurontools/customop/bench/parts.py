"""Where the modelled time of one core goes."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from neurontools import gpsimd
from neurontools.customop import cost
from neurontools.customop.bench.arithmetic_rates import included_cycles
from neurontools.customop.bench.bench_report import HotLine, OwnArithmetic, Part
from neurontools.customop.bench.counts import Way

if TYPE_CHECKING:
    from neurontools.customop.bench.counted_runs import CountedRun, CountedRuns

COMPUTE = "arithmetic of tensor functions"
OWN = "own arithmetic"
LAUNCH = "launch"
_LINES_MAX = 20


def parts_of(run: CountedRun, core: int) -> tuple[Part, ...]:
    """Return the parts of a core's time, the launch included, in a fixed order; what took none is left out.

    Args:
        run: the run.
        core: which core.
    """
    launch_ns = gpsimd.rates().launch_ns
    work = run.work[core]
    whole_ns = launch_ns + run.core_ns[core]
    rows: list[tuple[str, int, int, float]] = []
    for way in Way:
        mine = [place for place in run.places if place.core == core and place.way is way]
        taken_ns = sum(place.modelled_ns for place in mine)
        rows.append((way, sum(place.count for place in mine), sum(place.nbytes for place in mine), taken_ns))
    rows.append((COMPUTE, 0, work.computed_bytes, cost.compute_ns(work)))
    cycles = round(run.cycles[core]) if run.cycles else 0
    rows.append((OWN, cycles, 0, run.own_ns[core]))
    rows.append((LAUNCH, 1, 0, launch_ns))
    return tuple(
        Part(str(name), count, nbytes, taken_ns, taken_ns / whole_ns)
        for name, count, nbytes, taken_ns in rows
        if taken_ns > 0 or (name == OWN and count)
    )


def own_arithmetic(runs: CountedRuns, run: CountedRun, core: int) -> OwnArithmetic | None:
    """Return what is known of a core's own arithmetic, None when it was not counted.

    Args:
        runs: what made the run.
        run: the run.
        core: which core.
    """
    if runs.arithmetic is None or not run.cycles:
        return None
    cycles = run.cycles[core]
    counts = run.counts[core]
    lines = (
        HotLine(line.location, line.cycles, line.cycles / cycles, line.function_cycles)
        for line in runs.arithmetic.lines(counts)
    )
    return OwnArithmetic(
        compiler=runs.compiler,
        cycles=cycles,
        included_cycles=min(cycles, included_cycles(run.work[core])),
        modelled_ns=run.own_ns[core],
        lines=tuple(islice(lines, _LINES_MAX)),
        functions=runs.arithmetic.functions(counts),
    )
