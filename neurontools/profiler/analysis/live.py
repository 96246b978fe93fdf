"""The numbers of the last seconds of a run that goes on: steps, what bounds them, engines, operators, gaps, compiles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from neurontools.profiler.analysis.bounds import device_bound, step_bound
from neurontools.profiler.analysis.gaps import find_gaps
from neurontools.profiler.analysis.host import host_events
from neurontools.profiler.analysis.operators import top_operators
from neurontools.profiler.analysis.steps import find_steps, of_steps
from neurontools.runtime.host_activity import HostEvent

if TYPE_CHECKING:
    from neurontools.profiler.analysis.bounds import DeviceBound
    from neurontools.profiler.analysis.gaps import Gaps
    from neurontools.profiler.analysis.operators import OperatorTotal
    from neurontools.profiler.analysis.steps import StepSummary
    from neurontools.profiler.trace.trace import Trace

_OPERATORS = 10
_GAPS = 3
_SLOW = 0.95


@dataclass(frozen=True, slots=True)
class LiveSteps:
    """The steps that ended in the window, or the last one before it. Times are measured, except those of the device.

    Args:
        how: how the steps were found, a phrase.
        last_ns: the newest step.
        p95_ns: 95 % of them are at most this long.
        summary: what is typical of them.
        bound: what takes most of the average step, in a few words.
        device: what bounds the executions, modelled; None without modelled ones.
        operators: those with most modelled time.
        gaps: stretches without an execution, measured.
    """

    how: str
    last_ns: int
    p95_ns: int
    summary: StepSummary
    bound: str
    device: DeviceBound | None
    operators: tuple[OperatorTotal, ...]
    gaps: Gaps


@dataclass(frozen=True, slots=True)
class LiveNumbers:
    """What a process did in the last seconds.

    Args:
        pid: the process.
        window_ns: how long the window is, less at the start.
        idle_ns: since its last execution ended; None before the first.
        executions: number of those that ended in the window.
        compiles: graphs that were compiled in the window: none in a steady run.
        compile_ns: time of these compiles, measured.
        steps: None before the first step has ended.
    """

    pid: int
    window_ns: int = 0
    idle_ns: int | None = None
    executions: int = 0
    compiles: int = 0
    compile_ns: int = 0
    steps: LiveSteps | None = None


def live_numbers(trace: Trace, now_unix_ns: int, window_ns: int) -> LiveNumbers:
    """Return the numbers of the window that ends now, for a trace of one process."""
    if trace.event_count == 0:
        return LiveNumbers(trace.processes[0].pid)
    now_ns = now_unix_ns - trace.origin_unix_ns
    from_ns = now_ns - window_ns
    ends = np.concatenate(
        [np.zeros(0, dtype=np.int64), *(runs.wall_start + runs.wall_ns for runs in trace.runs)]
    )
    compiles = host_events(trace, 0, HostEvent.COMPILE)
    if compiles is not None:
        compiles = compiles.take(compiles.start + compiles.duration > from_ns)
    return LiveNumbers(
        pid=trace.processes[0].pid,
        window_ns=min(window_ns, max(now_ns, 0)),
        idle_ns=max(now_ns - int(ends.max()), 0) if len(ends) else None,
        executions=int((ends > from_ns).sum()),
        compiles=0 if compiles is None else len(compiles),
        compile_ns=0 if compiles is None else int(compiles.duration.sum()),
        steps=_steps(trace, from_ns),
    )


def _steps(trace: Trace, from_ns: int) -> LiveSteps | None:
    found = next(iter(find_steps(trace)), None)
    if found is None:
        return None
    last = found.first_number + len(found) - 1
    inside = int((found.start_ns + found.duration_ns > from_ns).sum())
    first = last + 1 - max(inside, 1)
    chosen = found.take(first, last)
    part = of_steps(trace, first, last)
    ordered = np.sort(chosen.duration_ns[chosen.steady])
    summary = chosen.summary()
    return LiveSteps(
        how=found.how,
        last_ns=int(chosen.duration_ns[-1]),
        p95_ns=int(ordered[int(np.ceil(_SLOW * len(ordered))) - 1]),
        summary=summary,
        bound=step_bound(summary),
        device=device_bound(part),
        operators=top_operators(part, _OPERATORS),
        gaps=find_gaps(part, _GAPS),
    )
