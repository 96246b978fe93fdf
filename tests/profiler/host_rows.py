"""Rows of the host, added to traces by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from neurontools.profiler.capture.format import NO_CORE, Track
from neurontools.profiler.trace.rows import EventBlock, FlatEvents
from neurontools.profiler.trace.trace import Trace, TraceAction, TraceRow
from neurontools.runtime.host_activity import HostEvent

if TYPE_CHECKING:
    from collections.abc import Sequence

HostRecord = tuple[HostEvent, int, int]


def with_host(trace: Trace, records: Sequence[HostRecord], process: int = 0) -> Trace:
    """Return a trace with events of the host: kind, start and end, nanoseconds since the first event.

    Steps are numbered in order.
    """
    ordered = sorted(records, key=lambda record: record[1])
    kinds = [kind for kind, _, _ in ordered]
    steps = np.cumsum([kind is HostEvent.STEP for kind in kinds])
    base, size = len(trace.actions), len(ordered)
    block = EventBlock(
        start=np.array([start for _, start, _ in ordered], dtype=np.int64),
        duration=np.array([end - start for _, start, end in ordered], dtype=np.int64),
        action=np.arange(base, base + size, dtype=np.uint32),
        model=np.zeros(size, dtype=np.uint32),
        execution=np.where([kind is HostEvent.STEP for kind in kinds], steps, 0).astype(np.uint32),
        status=np.array(kinds, dtype=np.uint32),
        value=np.zeros(size, dtype=np.int64),
    )
    actions = tuple(TraceAction(kind.name.lower(), kind.name, Track.HOST) for kind in kinds)
    meta = trace.processes[process]
    row = TraceRow(process, meta.pid, NO_CORE, NO_CORE, Track.HOST, 0, 0, FlatEvents(block), meta.rank)
    found = replace(trace, actions=(*trace.actions, *actions))
    return found.with_rows((row, *trace.rows), trace.runs)
