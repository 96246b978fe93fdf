"""The steady part of a run: what a viewer shows first."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from neurontools.profiler.trace.axis import Axis
    from neurontools.profiler.trace.trace import CoreRuns, Trace


class Window(NamedTuple):
    """A stretch of an axis, `first` to `last` in positions; `name` is what it shows."""

    first: int
    last: int
    name: str


def steady_execution(trace: Trace) -> tuple[CoreRuns, int] | None:
    """Return runs of a core and the index of a steady one: the median one of the program with most device time, no warm-up.

    The median is that of the measured time. None for a trace without modelled executions.
    """
    best: tuple[int, CoreRuns, int] | None = None
    for runs in trace.runs:
        for model in np.unique(runs.model).tolist():
            spent = int(runs.device_ns[runs.model == model].sum())
            if spent > 0 and (best is None or spent > best[0]):
                best = spent, runs, model
    if best is None:
        return None
    _, runs, model = best
    chosen = np.flatnonzero((runs.model == model) & (runs.device_start >= 0))
    later = chosen[runs.number[chosen] != runs.number[chosen].min()]
    chosen = later if len(later) else chosen
    order = chosen[np.argsort(runs.wall_ns[chosen], kind="stable")]
    return runs, int(order[(len(order) - 1) // 2])


def steady_window(trace: Trace, axis: Axis) -> Window | None:
    """Return the stretch of an axis with the steady execution, None where there is none."""
    found = steady_execution(trace)
    if found is None:
        return None
    runs, index = found
    start = int(runs.device_start[index])
    times = np.array([start, start + int(runs.device_ns[index])], dtype=np.int64)
    first, last = axis.positions(times).tolist()
    return Window(first, max(last, first + 1), f"execution {int(runs.number[index])}")
