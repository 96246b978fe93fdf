"""What a process did on the host, by kind, time and line, and between the executions of its cores; all of it measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from neurontools.profiler.capture.format import NRT_LOAD, Track
from neurontools.profiler.trace.intervals import BusyIndex, union
from neurontools.runtime.host_activity import HostEvent

if TYPE_CHECKING:
    from neurontools.profiler.trace.intervals import Int64s
    from neurontools.profiler.trace.rows import EventBlock
    from neurontools.profiler.trace.trace import CoreRuns, Trace, TraceRow


LOAD, PYTHON, OTHER_CORE = "load", "python", "other core"
_SPECIFIC_FIRST = (
    HostEvent.COMPILE,
    HostEvent.CACHE_HIT,
    HostEvent.UPLOAD,
    HostEvent.DOWNLOAD,
    HostEvent.CPU_OPERATOR,
    HostEvent.PEER_WAIT,
    HostEvent.COLLECTIVE,
    HostEvent.GARBAGE,
    HostEvent.INPUT,
    HostEvent.WAIT,
    HostEvent.CUT,
)
"""Events overlap: a cut holds a compile. The same time counts for the first of these only."""


def host_events(trace: Trace, process: int, *kinds: HostEvent) -> EventBlock | None:
    """Return the events of some kinds of a process in order of start, or None."""
    wanted = np.isin(trace.host_kinds, kinds)
    for row in trace.rows_of(Track.HOST):
        if row.process == process:
            events = row.events.block(0, row.events.count)
            chosen = events.take(wanted[events.action])
            return chosen if len(chosen) else None
    return None


def host_intervals(trace: Trace, process: int, *kinds: HostEvent) -> tuple[Int64s, Int64s]:
    """Return starts and durations of the events of some kinds of a process."""
    events = host_events(trace, process, *kinds)
    nothing: Int64s = np.zeros(0, dtype=np.int64)
    return (nothing, nothing) if events is None else (events.start, events.duration)


def load_intervals(trace: Trace, process: int) -> tuple[Int64s, Int64s]:
    """Return starts and durations of the loads of models of a process."""
    parts = [
        part.events.take(part.events.action == NRT_LOAD)
        for row in trace.rows_of(Track.RUNTIME)
        if row.process == process
        for part in row.events.parts()
    ]
    nothing: Int64s = np.zeros(0, dtype=np.int64)
    return (
        np.concatenate([nothing, *(part.start for part in parts)]),
        np.concatenate([nothing, *(part.duration for part in parts)]),
    )


def covered_in_turn(kinds: dict[str, list[tuple[Int64s, Int64s]]], edges: Int64s) -> dict[str, Int64s]:
    """Return by kind how long each stretch between neighbouring edges holds it and none of the kinds before.

    Args:
        kinds: starts and durations of each kind.
        edges: sorted times, n + 1 of them.
    """
    times: dict[str, Int64s] = {}
    until: Int64s = np.zeros(len(edges) - 1, dtype=np.int64)
    counted: list[tuple[Int64s, Int64s]] = []
    for name, intervals in kinds.items():
        if any(len(start) for start, _ in intervals):
            counted += intervals
            starts, durations = (np.concatenate([each[at] for each in counted]) for at in (0, 1))
            covered = BusyIndex(starts, durations).between(edges)
            times[name], until = covered - until, covered
        else:
            times[name] = np.zeros_like(until)
    return times


def activity(trace: Trace, process: int, edges: Int64s) -> dict[str, Int64s]:
    """Return what the host did between neighbouring edges, nanoseconds by kind; the rest is Python's own.

    Executions count as those of another core: the edges are around a time without any on the core in question.
    """
    executions = [(runs.wall_start, runs.wall_ns) for runs in trace.runs if runs.process == process]
    kinds = {OTHER_CORE: executions, LOAD: [load_intervals(trace, process)]} | {
        kind.name.lower(): [host_intervals(trace, process, kind)] for kind in _SPECIFIC_FIRST
    }
    times = covered_in_turn(kinds, edges)
    return times | {PYTHON: np.diff(edges) - sum(times.values())}


WARM_UP = 2
"""Steps in which a program compiles: the first, and the one after it, when optimizers have their state."""


@dataclass(frozen=True, slots=True)
class HostLine:
    """What a line of the program did: its kind, its name, how often, how long in all, and with how many bytes."""

    kind: HostEvent
    name: str
    source: str
    count: int
    total_ns: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class HostWork:
    """What a process did in its steps, without the warm-up.

    Args:
        process: the process, with its rank if it is one of several workers.
        steps: number of steps.
        total_ns: their time.
        lines: what it did, the longest first.
    """

    process: str
    steps: int
    total_ns: int
    lines: tuple[HostLine, ...]

    @property
    def step_ns(self) -> int:
        """Time of a step."""
        return self.total_ns // max(1, self.steps)

    def of(self, kind: HostEvent) -> tuple[HostLine, ...]:
        """Return the lines of one kind."""
        return tuple(line for line in self.lines if line.kind is kind)

    def ns_a_step(self, kind: HostEvent) -> int:
        """Return the time of one kind a step."""
        return sum(line.total_ns for line in self.of(kind)) // max(1, self.steps)


def host_work(trace: Trace) -> tuple[HostWork, ...]:
    """Return what each process did on the host; nothing for those that marked no step after the warm-up."""
    works = (_work_of(trace, row) for row in trace.rows_of(Track.HOST))
    return tuple(work for work in works if work is not None)


def _work_of(trace: Trace, row: TraceRow) -> HostWork | None:
    events = row.events.block(0, row.events.count)
    steps = events.take(events.status == HostEvent.STEP)
    warm_up = min(WARM_UP, len(steps) - 1)
    if warm_up < 1:
        return None
    ends = steps.start + steps.duration
    first_ns, last_ns = int(ends[warm_up - 1]), int(ends[-1])
    inside = (events.start >= first_ns) & (events.start < last_ns) & (events.status != HostEvent.STEP)
    events = events.take(inside)
    actions, first, action_index, counts = np.unique(
        events.action, return_index=True, return_inverse=True, return_counts=True
    )
    times, sizes = (
        np.bincount(action_index.reshape(-1), column, len(actions))
        for column in (events.duration, events.value)
    )
    lines = [
        HostLine(
            HostEvent(int(events.status[at])),
            trace.actions[action].name,
            trace.actions[action].source,
            int(counts[number]),
            int(times[number]),
            int(sizes[number]),
        )
        for number, (action, at) in enumerate(zip(actions.tolist(), first.tolist(), strict=True))
    ]
    lines.sort(key=lambda line: -line.total_ns)
    label = trace.processes[row.process].label
    return HostWork(label, len(steps) - warm_up, last_ns - first_ns, tuple(lines))


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
            cores.append(_CoreGaps(runs, start, end, _host_in(trace, runs.process, start, end)))
    places = [(number, index) for number, core in enumerate(cores) for index in range(len(core.start))]
    if places:
        length = np.concatenate([core.end - core.start for core in cores])
        chosen = np.argsort(-length, kind="stable")[:limit].tolist()
        places = [places[number] for number in chosen]
    sums: dict[str, int] = {}
    for core in cores:
        for kind, column in core.host.items():
            sums[kind] = sums.get(kind, 0) + int(column.sum())
    return Gaps(
        gaps=tuple(_gap(trace, cores[number], index) for number, index in places),
        count=sum(len(core.start) for core in cores),
        total_ns=sum(int((core.end - core.start).sum()) for core in cores),
        span_ns=span_ns,
        host=_sorted(sums),
    )


def _host_in(trace: Trace, process: int, start: Int64s, end: Int64s) -> dict[str, Int64s]:
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
