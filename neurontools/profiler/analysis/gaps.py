"""Stretches in which a NeuronCore executes nothing, and what the host did meanwhile. All times are measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from neurontools.profiler.analysis.host import activity
from neurontools.profiler.trace.intervals import union

if TYPE_CHECKING:
    from neurontools.profiler.trace.intervals import Int64s
    from neurontools.profiler.trace.trace import CoreRuns, Trace


@dataclass(frozen=True, slots=True)
class Gap:
    """One stretch between two executions of a core. Times are measured nanoseconds.

    Args:
        process: number of the process in the trace.
        pid: its pid.
        rank: None if it is the only worker.
        nc: process-local NeuronCore.
        start_ns: end of the execution before, since the first event of the trace.
        duration_ns: until the next execution.
        before: model that was executed before.
        after: model that is executed next.
        host: what the host did, longest first; adds up to the duration. `python` is all that is not recorded.
    """

    process: int
    pid: int
    rank: int | None
    nc: int
    start_ns: int
    duration_ns: int
    before: str
    after: str
    host: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Gaps:
    """The gaps of a trace.

    Args:
        gaps: the longest first.
        count: all gaps, those that are not listed among them.
        total_ns: their time over all cores.
        span_ns: time from the first to the last execution over all cores.
        host: what the host did in all of them, longest first.
    """

    gaps: tuple[Gap, ...]
    count: int
    total_ns: int
    span_ns: int
    host: tuple[tuple[str, int], ...]

    @property
    def share(self) -> float:
        """Part of the time in which a core executes nothing, 0 to 1."""
        return self.total_ns / self.span_ns if self.span_ns else 0.0


@dataclass(frozen=True, slots=True)
class _CoreGaps:
    runs: CoreRuns
    start: Int64s
    end: Int64s
    host: dict[str, Int64s]


def find_gaps(trace: Trace, limit: int | None = None, at_least_ns: int = 1) -> Gaps:
    """Return the gaps between the executions of each core.

    Args:
        trace: the profile or a part of it.
        limit: most gaps to list; None for all.
        at_least_ns: shorter ones are left out, of the totals too.
    """
    cores, span_ns = [], 0
    for runs in trace.runs:
        starts, ends = union(runs.wall_start, np.maximum(runs.wall_ns, 1))
        if len(starts):
            span_ns += int(ends[-1] - starts[0])
        long = starts[1:] - ends[:-1] >= at_least_ns
        start, end = ends[:-1][long], starts[1:][long]
        if len(start):
            cores.append(_CoreGaps(runs, start, end, _host(trace, runs.process, start, end)))
    places = [(number, place) for number, core in enumerate(cores) for place in range(len(core.start))]
    if places:
        length = np.concatenate([core.end - core.start for core in cores])
        chosen = np.argsort(-length, kind="stable")[:limit].tolist()
        places = [places[number] for number in chosen]
    sums: dict[str, int] = {}
    for core in cores:
        for kind, column in core.host.items():
            sums[kind] = sums.get(kind, 0) + int(column.sum())
    return Gaps(
        gaps=tuple(_gap(trace, cores[number], place) for number, place in places),
        count=sum(len(core.start) for core in cores),
        total_ns=sum(int((core.end - core.start).sum()) for core in cores),
        span_ns=span_ns,
        host=_sorted(sums),
    )


def _host(trace: Trace, process: int, start: Int64s, end: Int64s) -> dict[str, Int64s]:
    """Return what the host did in stretches that do not overlap."""
    edges = np.stack((start, end), axis=1).reshape(-1)
    return {kind: column[::2] for kind, column in activity(trace, process, edges).items()}


def _gap(trace: Trace, core: _CoreGaps, place: int) -> Gap:
    runs, start, end = core.runs, int(core.start[place]), int(core.end[place])
    after = int(np.searchsorted(runs.wall_start, end, side="left"))
    names = [trace.models[runs.model[number]].name for number in (after - 1, min(after, len(runs.model) - 1))]
    return Gap(
        process=runs.process,
        pid=trace.processes[runs.process].pid,
        rank=runs.rank,
        nc=runs.nc,
        start_ns=start,
        duration_ns=end - start,
        before=names[0],
        after=names[1],
        host=_sorted({kind: int(column[place]) for kind, column in core.host.items()}),
    )


def _sorted(sums: dict[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple(
        sorted(((kind, ns) for kind, ns in sums.items() if ns), key=lambda pair: (-pair[1], pair[0]))
    )
