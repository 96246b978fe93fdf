"""The numbers of a running process as text and as JSON values."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from neurontools.base.text import plural, printable, shorten, table, wrap
from neurontools.base.units import format_ns, format_percent
from neurontools.profiler.analysis.steps import PARTS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from neurontools.profiler.analysis.live import LiveNumbers, LiveSteps

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
    found = [
        ("step", f"{step} ({plural(summary.count, 'step')})"),
        ("", _shares(parts, max(summary.mean_ns, 1))),
        ("bound", steps.bound),
    ]
    if steps.device is not None:
        engines = ", ".join(f"{each.engine} {format_percent(each.share)}" for each in steps.device.engines)
        found += [("device", f"{steps.device.text} (modelled)"), ("", engines)]
    host = _shares(steps.gaps.host, max(steps.gaps.total_ns, 1))
    found.append(
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
    return [*found, ("compiles", compiles)]


def to_json(numbers: LiveNumbers) -> dict[str, Any]:
    """Return the numbers in base units."""
    return asdict(numbers)


def _shares(parts: Iterable[tuple[str, int]], whole_ns: int) -> str:
    ordered = sorted(parts, key=lambda part: -part[1])
    return ", ".join(f"{name} {format_percent(ns / whole_ns)}" for name, ns in ordered if ns)
