"""Numbers of a stretch of time: how busy each row was, and which operators took the time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from neurontools.profiler.analysis.operators import OperatorTotal, top_operators
from neurontools.profiler.capture.format import IDLE_TRACKS
from neurontools.profiler.trace.selection import between

if TYPE_CHECKING:
    from collections.abc import Iterable

    from neurontools.profiler.trace.trace import Trace, TraceRow


@dataclass(frozen=True, slots=True)
class RowUse:
    """A row in a stretch: events that start in it, and how long it works in it.

    As in the summary, an engine that waits between the tiles of an operator does not work.
    """

    row: TraceRow
    events: int
    busy_ns: int


def row_uses(trace: Trace, rows: Iterable[TraceRow], from_ns: int, to_ns: int) -> tuple[RowUse, ...]:
    """Return how busy rows are in a stretch; samples of the computer and annotations are left out.

    Args:
        trace: the events.
        rows: of the trace.
        from_ns: start of the stretch, nanoseconds since the first event.
        to_ns: its end.
    """
    edges = np.array([from_ns, max(to_ns, from_ns + 1)], dtype=np.int64)
    found = []
    for row in rows:
        if row.track in IDLE_TRACKS:
            continue
        first, last = row.events.first_from(edges).tolist()
        busy = int(row.events.busy_between(edges)[0])
        if not row.track.measured:
            busy -= _waited_ns(trace, row, int(edges[0]), int(edges[1]))
        found.append(RowUse(row, last - first, max(busy, 0)))
    return tuple(found)


def _waited_ns(trace: Trace, row: TraceRow, from_ns: int, to_ns: int) -> int:
    """Return how long the events of a row wait within a stretch; waits are spread evenly over an event."""
    total = 0.0
    for part in row.events.between(from_ns, to_ns).parts():
        start, duration = part.events.start, part.events.duration
        waits = duration - trace.columns.worked_ns(part.events.action, duration)
        inside = np.minimum(start + duration, to_ns) - np.maximum(start, from_ns)
        total += part.weight * float((waits * (np.maximum(inside, 0) / np.maximum(duration, 1))).sum())
    return round(total)


def range_operators(trace: Trace, from_ns: int, to_ns: int, limit: int) -> tuple[OperatorTotal, ...]:
    """Return the operators of events that touch a stretch, with their whole length, the longest first."""
    return top_operators(between(trace, from_ns, to_ns), limit)
