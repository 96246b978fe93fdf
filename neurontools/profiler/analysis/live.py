"""The last seconds of a running process: steps, what bounds them, engines, operators, gaps, compiles; as text and as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from neurontools.base.text import plural, printable, shorten, table, wrap
from neurontools.base.units import format_ns, format_percent
from neurontools.profiler.analysis.host import find_gaps, host_events
from neurontools.profiler.analysis.operators import top_operators
from neurontools.profiler.analysis.roofline import device_bound, step_bound
from neurontools.profiler.analysis.steps import PARTS, find_steps, of_steps
from neurontools.runtime.host_activity import HostEvent

if TYPE_CHECKING:
    from collections.abc import Iterable

    from neurontools.profiler.analysis.host import Gaps
    from neurontools.profiler.analysis.operators import OperatorTotal
    from neurontools.profiler.analysis.roofline import DeviceBound
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
    steps = next(iter(find_steps(trace)), None)
    if steps is None:
        return None
    last = steps.first_number + len(steps) - 1
    inside = int((steps.start_ns + steps.duration_ns > from_ns).sum())
    first = last + 1 - max(inside, 1)
    chosen = steps.take(first, last)
    part = of_steps(trace, first, last)
    ordered = np.sort(chosen.duration_ns[chosen.steady])
    summary = chosen.summary()
    return LiveSteps(
        how=steps.how,
        last_ns=int(chosen.duration_ns[-1]),
        p95_ns=int(ordered[int(np.ceil(_SLOW * len(ordered))) - 1]),
        summary=summary,
        bound=step_bound(summary),
        device=device_bound(part),
        operators=top_operators(part, _OPERATORS),
        gaps=find_gaps(part, _GAPS),
    )


_SLOW_NS = 2_000_000_000
_LABEL = 10


def to_text(numbers: LiveNumbers, command: str, width: int) -> str:
    """Return the numbers for people; `command` is that of the process."""
    head = f"process {numbers.pid}"
    if numbers.window_ns:
        head += f", last {round(numbers.window_ns / 1e9)} s: {plural(numbers.executions, 'execution')}"
    lines = [f"{head}  {printable(command)}", *state_lines(numbers)]
    if numbers.steps is not None:
        for label, text in step_facts(numbers, numbers.steps):
            lines += wrap(f"{label:<{_LABEL}}{printable(text)}", width, indent=" " * _LABEL)
    text = "\n".join(shorten(line, width) for line in lines)
    if numbers.steps is None or not numbers.steps.operators:
        return text
    rows = [
        (each.name, each.engine, str(each.count), format_ns(each.total_ns), format_percent(each.share))
        for each in numbers.steps.operators
    ]
    head_row = ("OPERATOR", "ENGINE", "COUNT", "TIME (modelled)", "SHARE")
    return f"{text}\n\n{table(head_row, rows, '<<>>>', width=width)}"


def state_lines(numbers: LiveNumbers) -> list[str]:
    """Return what there is to know before there are steps, or when the process rests."""
    if numbers.idle_ns is None:
        return ["nothing executed since the start of the profile; waiting for the next execution"]
    if numbers.idle_ns > _SLOW_NS:
        return [f"no execution for {format_ns(numbers.idle_ns)}"]
    if numbers.steps is None:
        return ["no step has ended yet"]
    return []


def step_facts(numbers: LiveNumbers, steps: LiveSteps) -> list[tuple[str, str]]:
    """Return labels and texts about the steps."""
    summary = steps.summary
    parts = [(part.removesuffix("_ns"), int(getattr(summary, part))) for part in PARTS]
    times = (("last", steps.last_ns), ("median", summary.median_ns), ("p95", steps.p95_ns))
    step = ", ".join(f"{name} {format_ns(ns)}" for name, ns in times)
    facts = [
        ("step", f"{step} ({plural(summary.count, 'step')})"),
        ("", _shares(parts, max(summary.mean_ns, 1))),
        ("bound", steps.bound),
    ]
    if steps.device is not None:
        engines = ", ".join(f"{each.engine} {format_percent(each.share)}" for each in steps.device.engines)
        facts += [("device", f"{steps.device.text} (modelled)"), ("", engines)]
    host = _shares(steps.gaps.host, max(steps.gaps.total_ns, 1))
    facts.append(
        (
            "host gaps",
            f"{format_percent(steps.gaps.share)} of the time, {plural(steps.gaps.count, 'gap')}: {host}"
            if steps.gaps.count
            else "none",
        )
    )
    compiles = "none"
    if numbers.compiles:
        compiles = f"{plural(numbers.compiles, 'compile')}, {format_ns(numbers.compile_ns)}"
    return [*facts, ("compiles", compiles)]


def to_json(numbers: LiveNumbers) -> dict[str, Any]:
    """Return the numbers in base units."""
    return asdict(numbers)


def _shares(parts: Iterable[tuple[str, int]], whole_ns: int) -> str:
    ordered = sorted(parts, key=lambda part: -part[1])
    return ", ".join(f"{name} {format_percent(ns / whole_ns)}" for name, ns in ordered if ns)
