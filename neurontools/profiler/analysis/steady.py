"""The steady part of a run: what a viewer shows first."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from neurontools.profiler.analysis.steps import find_steps
from neurontools.profiler.capture.format import Track

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


def _steady_step(trace: Trace, axis: Axis) -> Window | None:
    """Return the stretch with the executions of the median steady step of all workers.

    None if a step of the only worker is one execution.
    """
    workers = find_steps(trace)
    if not workers:
        return None
    found, least = workers[0], 2 if len(workers) == 1 else 1
    chosen = np.flatnonzero(found.steady & (found.executions >= least))
    if 2 * len(chosen) <= np.count_nonzero(found.steady):
        return None
    order = chosen[np.argsort(found.duration_ns[chosen], kind="stable")]
    number = found[int(order[(len(order) - 1) // 2])].number
    starts, ends = [], []
    for worker in workers:
        for step in worker.take(number, number):
            for runs in (runs for runs in trace.runs if runs.process == worker.process):
                first = runs.wall_start - step.start_ns
                inside = (first >= 0) & (first < step.duration_ns) & (runs.device_start >= 0)
                starts += runs.device_start[inside].tolist()
                ends += (runs.device_start + runs.device_ns)[inside].tolist()
    if not starts:
        return None
    first, last = axis.positions(np.array([min(starts), max(ends)], dtype=np.int64)).tolist()
    return Window(first, max(last, first + 1), f"step {number}")


def execution_of_step(trace: Trace, pid: int, number: int) -> int | None:
    """Return the number of the longest modelled execution of a process in a step, or None."""
    for worker in (worker for worker in find_steps(trace) if worker.pid == pid):
        for step in worker.take(number, number):
            best: tuple[int, int] | None = None
            for row in (row for row in trace.rows_of(Track.MODEL) if row.process == worker.process):
                last_ns = step.start_ns + step.duration_ns
                first, last = row.events.first_from(np.array([step.start_ns, last_ns])).tolist()
                durations = row.events.block(first, last).duration
                if last > first and (best is None or int(durations.max()) > best[0]):
                    best = int(durations.max()), row.first + first + int(durations.argmax())
            return None if best is None else best[1]
    return None


def steady_window(trace: Trace, axis: Axis) -> Window | None:
    """Return the stretch of an axis with a steady step, or its one execution; None without modelled executions."""
    step = _steady_step(trace, axis)
    if step is not None:
        return step
    execution = steady_execution(trace)
    if execution is None:
        return None
    runs, index = execution
    start = int(runs.device_start[index])
    times = np.array([start, start + int(runs.device_ns[index])], dtype=np.int64)
    first, last = axis.positions(times).tolist()
    return Window(first, max(last, first + 1), f"execution {int(runs.number[index])}")
