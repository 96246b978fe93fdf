"""Numbers of a stretch of time: how busy each row was, and which operators took the time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from neurontools.profiler.analysis.operators import OperatorTotal, top_operators
from neurontools.profiler.trace.selection import between

if TYPE_CHECKING:
    from neurontools.profiler.trace.trace import Trace, TraceRow


@dataclass(frozen=True, slots=True)
class RowUse:
    """A row in a stretch: events that start in it, and how long any event runs in it."""

    row: TraceRow
    events: int
    busy_ns: int


@dataclass(frozen=True, slots=True)
class RangeStatistics:
    """A stretch of time. `operators` are those of events that touch it, with their whole length."""

    from_ns: int
    to_ns: int
    rows: tuple[RowUse, ...]
    operators: tuple[OperatorTotal, ...]


def row_uses(trace: Trace, from_ns: int, to_ns: int, *, device_only: bool = False) -> tuple[RowUse, ...]:
    """Return how busy the rows are in a stretch.

    Args:
        trace: the events.
        from_ns: start of the stretch, nanoseconds since the first event.
        to_ns: its end.
        device_only: leave out rows on the wall clock.
    """
    edges = np.array([from_ns, max(to_ns, from_ns + 1)], dtype=np.int64)
    found = []
    for row in trace.rows:
        if not (device_only and row.track.measured):
            first, last = row.events.first_from(edges).tolist()
            found.append(RowUse(row, last - first, int(row.events.busy_between(edges)[0])))
    return tuple(found)


def range_statistics(
    trace: Trace, from_ns: int, to_ns: int, *, device_only: bool = False, limit: int = 10
) -> RangeStatistics:
    """Return the numbers of a stretch, with at most `limit` operators; other arguments as in `row_uses`."""
    return RangeStatistics(
        from_ns,
        to_ns,
        row_uses(trace, from_ns, to_ns, device_only=device_only),
        top_operators(between(trace, from_ns, to_ns), limit),
    )
