"""What the host did in the steps of a run, by process, kind and line, measured; the warm-up left out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from neurontools.profiler.capture.format import Track
from neurontools.runtime.host_activity import HostEvent

if TYPE_CHECKING:
    from neurontools.profiler.trace.trace import Trace, TraceRow

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
    found = (_work_of(trace, row) for row in trace.rows_of(Track.HOST))
    return tuple(work for work in found if work is not None)


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
    actions, first, place, counts = np.unique(
        events.action, return_index=True, return_inverse=True, return_counts=True
    )
    times, sizes = (
        np.bincount(place.reshape(-1), column, len(actions)) for column in (events.duration, events.value)
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
