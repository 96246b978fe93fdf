"""What a process did on the host, by kind and time; all of it measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from neurontools.profiler.capture.format import NRT_LOAD, Track
from neurontools.profiler.trace.intervals import BusyIndex
from neurontools.runtime.host_activity import HostEvent

if TYPE_CHECKING:
    from neurontools.profiler.trace.intervals import Int64s
    from neurontools.profiler.trace.rows import EventBlock
    from neurontools.profiler.trace.trace import Trace

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
    """Return the events of some kinds of a process in order of start, None without any."""
    wanted = np.isin(trace.host_kinds, kinds)
    for row in trace.rows_of(Track.HOST):
        if row.process == process:
            events = row.events.block(0, row.events.count)
            chosen = events.take(wanted[events.action])
            return chosen if len(chosen) else None
    return None


def host_intervals(trace: Trace, process: int, *kinds: HostEvent) -> tuple[Int64s, Int64s]:
    """Return starts and durations of the events of some kinds of a process."""
    found = host_events(trace, process, *kinds)
    nothing: Int64s = np.zeros(0, dtype=np.int64)
    return (nothing, nothing) if found is None else (found.start, found.duration)


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
    found: dict[str, Int64s] = {}
    until: Int64s = np.zeros(len(edges) - 1, dtype=np.int64)
    known: list[tuple[Int64s, Int64s]] = []
    for name, intervals in kinds.items():
        if any(len(start) for start, _ in intervals):
            known += intervals
            starts, durations = (np.concatenate([each[at] for each in known]) for at in (0, 1))
            covered = BusyIndex(starts, durations).between(edges)
            found[name], until = covered - until, covered
        else:
            found[name] = np.zeros_like(until)
    return found


def activity(trace: Trace, process: int, edges: Int64s) -> dict[str, Int64s]:
    """Return what the host did between neighbouring edges, nanoseconds by kind; the rest is Python's own.

    Executions count as those of another core: the edges are around a time without any on the core in question.
    """
    executions = [(runs.wall_start, runs.wall_ns) for runs in trace.runs if runs.process == process]
    kinds = {OTHER_CORE: executions, LOAD: [load_intervals(trace, process)]} | {
        kind.name.lower(): [host_intervals(trace, process, kind)] for kind in _SPECIFIC_FIRST
    }
    found = covered_in_turn(kinds, edges)
    return found | {PYTHON: np.diff(edges) - sum(found.values())}
