"""The steps that torch.profiler writes into a trace: `ProfilerStep#N`, from one `step()` of the profiler to the next."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from neurontools.profiler.capture.format import Track
from neurontools.profiler.trace.intervals import BusyIndex

if TYPE_CHECKING:
    from neurontools.profiler.trace.intervals import Int64s
    from neurontools.profiler.trace.trace import Trace, TraceRow

STEP_NAME = "ProfilerStep"
HOW_TO_MARK = "give torch.profiler a schedule and call its step() after each step: it marks them then"
"""The remedy for traces without steps."""

_STEP = re.compile(rf"{STEP_NAME}#(\d{{1,9}})")


class AnnotatedSteps(NamedTuple):
    """The steps of a process in order; times are measured nanoseconds.

    Args:
        first_number: number of the first one, as the profiler counts.
        start_ns: since the first event of the trace.
        duration_ns: of each.
        device_busy_ns: how long the device worked within each.
    """

    first_number: int
    start_ns: Int64s
    duration_ns: Int64s
    device_busy_ns: Int64s


def annotated_steps(trace: Trace, process: int) -> AnnotatedSteps | None:
    """Return the steps that a process of another program's trace marks, or None."""
    spans: dict[int, tuple[int, int]] = {}
    numbers = _numbers(trace)
    if not (numbers >= 0).any():
        return None
    for row in trace.rows_of(Track.HOST):
        if row.process == process:
            events = row.events.at(row.events.of_actions(numbers >= 0))
            times = zip(events.start.tolist(), events.duration.tolist(), strict=True)
            spans |= dict(zip(numbers[events.action].tolist(), times, strict=True))
    if not spans:
        return None
    ordered = np.array([spans[number] for number in sorted(spans)], dtype=np.int64)
    # Edges must not go back, whatever the trace says.
    edges = np.maximum.accumulate(np.stack((ordered[:, 0], ordered.sum(axis=1)), axis=1).reshape(-1))
    return AnnotatedSteps(
        first_number=min(spans),
        start_ns=edges[::2],
        duration_ns=edges[1::2] - edges[::2],
        device_busy_ns=BusyIndex(*device_events(trace, process)).between(edges)[::2],
    )


def _numbers(trace: Trace) -> Int64s:
    """Return the step number of each action, -1 where it marks no step."""
    matches = (_STEP.fullmatch(action.name) for action in trace.actions)
    return np.array([int(match[1]) if match else -1 for match in matches], dtype=np.int64)


def device_events(trace: Trace, process: int) -> tuple[Int64s, Int64s]:
    """Return starts and durations of what the device of a process does."""
    blocks = [
        row.events.block(0, row.events.count)
        for row in trace.rows_of(Track.DEVICE)
        if serves(trace, row, process)
    ]
    nothing: Int64s = np.zeros(0, dtype=np.int64)
    return (
        np.concatenate([nothing, *(block.start for block in blocks)]),
        np.concatenate([nothing, *(block.duration for block in blocks)]),
    )


def serves(trace: Trace, row: TraceRow, process: int) -> bool:
    """Return whether a row belongs to a process, or to a device that a trace shows as a process without a host."""
    return row.process == process or all(host.process != row.process for host in trace.rows_of(Track.HOST))
