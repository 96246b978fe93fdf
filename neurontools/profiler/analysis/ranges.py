"""Numbers of a stretch of time: how busy each row was, and which operators took the time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from neurontools.profiler.analysis.operators import OperatorTotal, top_operators
from neurontools.profiler.capture.format import SAMPLED_TRACKS
from neurontools.profiler.trace.selection import between

if TYPE_CHECKING:
    from collections.abc import Iterable

    from neurontools.profiler.trace.trace import Trace, TraceRow


@dataclass(frozen=True, slots=True)
class RowUse:
    """A row in a stretch: events that start in it, and how long any event runs in it."""

    row: TraceRow
    events: int
    busy_ns: int


def row_uses(rows: Iterable[TraceRow], from_ns: int, to_ns: int) -> tuple[RowUse, ...]:
    """Return how busy rows are in a stretch; samples of the computer are left out.

    Args:
        rows: of the trace.
        from_ns: start of the stretch, nanoseconds since the first event.
        to_ns: its end.
    """
    edges = np.array([from_ns, max(to_ns, from_ns + 1)], dtype=np.int64)
    found = []
    for row in rows:
        if row.track in SAMPLED_TRACKS:
            continue
        first, last = row.events.first_from(edges).tolist()
        found.append(RowUse(row, last - first, int(row.events.busy_between(edges)[0])))
    return tuple(found)


def range_operators(trace: Trace, from_ns: int, to_ns: int, limit: int) -> tuple[OperatorTotal, ...]:
    """Return the operators of events that touch a stretch, with their whole length, the longest first."""
    return top_operators(between(trace, from_ns, to_ns), limit)
