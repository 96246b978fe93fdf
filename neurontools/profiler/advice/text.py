"""Advice as text and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from neurontools.base.text import plural, printable, wrap
from neurontools.base.units import format_ns, format_percent
from neurontools.profiler.advice.findings import Clock
from neurontools.profiler.advice.subject import short_source

if TYPE_CHECKING:
    from collections.abc import Iterator

    from neurontools.profiler.advice.findings import Advice, Evidence, Silent
    from neurontools.profiler.advice.rules import Report

_FIELD, _NARROWEST = 11, 30


def to_text(report: Report, limit: int | None = None, width: int | None = None) -> str:
    """Return a report for people: advice with change, evidence and method, then the rules that found nothing.

    Args:
        report: the findings of all rules.
        limit: number of changes to show, None for all.
        width: columns of the terminal, None to leave lines whole.
    """
    shown = report.advice[:limit]
    lines = [f"Step: {format_ns(report.step_ns)} ({report.clock}), seen {plural(report.steps, 'time')}", ""]
    if not report.advice:
        lines += ["No change that a rule knows would gain 1 % of a step.", ""]
    for number, advice in enumerate(shown, 1):
        lines += [_wrapped(f"{number}. {one_line(advice)}", width, 3)]
        lines += [*(_wrapped(line, width, _FIELD) for line in _details(advice)), ""]
    if len(shown) < len(report.advice):
        lines += [f"{len(report.advice) - len(shown)} more with a smaller gain.", ""]
    silent = list(_silent_lines(report))
    if silent:
        lines += ["Looked at, nothing to change:", *(_wrapped(line, width, 20) for line in silent)]
    return "\n".join(lines).rstrip()


def _wrapped(line: str, width: int | None, indent: int) -> str:
    if width is None:
        return line
    return "\n".join(wrap(line, max(width, indent + _NARROWEST), indent=" " * indent))


def one_line(advice: Advice) -> str:
    """Return an advice in one line: what to change, where, and what it gains."""
    place = next((line for line in advice.evidence if line.source), None)
    where = f": {_place(place)}" if place else ""
    return printable(f"{advice.title}{where}, {gain_text(advice)}")


def gain_text(advice: Advice) -> str:
    """Return the gain: `-3.100 ms of 18.40 ms a step (modelled)`, `4.600 ms -> 3.825 ms a sample (modelled)`."""
    gain = advice.gain
    if gain.samples:
        before, after = (format_ns(ns / gain.samples) for ns in (gain.step_ns, gain.step_ns - gain.ns))
        return f"{before} -> {after} a sample ({gain.clock})"
    bound = "at most " if gain.is_bound else ""
    return f"{bound}-{format_ns(gain.ns)} of {format_ns(gain.step_ns)} a step ({gain.clock})"


def _details(advice: Advice) -> list[str]:
    found = [f"   change  {advice.change}"]
    found += [
        f"   {'seen' if number == 0 else '':<6}  {_seen(line)}" for number, line in enumerate(advice.evidence)
    ]
    found.append(f"   gain    {advice.method}")
    if advice.program:
        found.append(f"   graph   {advice.program}")
    return list(map(printable, found))


def _place(line: Evidence) -> str:
    place = short_source(line.source)
    if line.count < 2:
        return place
    return f"{place}, {line.layers} layers" if line.layers == line.count else f"{place}, {line.count} times"


def _seen(line: Evidence) -> str:
    share = "" if line.share is None else f", {format_percent(line.share)} of the step"
    layer = f" in {line.layer}" if line.layer else ""
    return f"{_place(line)}, {line.text}{layer}{share}" if line.source else f"{line.text}{share}"


def _silent_lines(report: Report) -> Iterator[str]:
    """Yield why rules without an advice have none: of several graphs for that with most time."""
    rules: dict[str, dict[str, list[Silent]]] = {}
    for silent in report.silent:
        rules.setdefault(silent.rule, {}).setdefault(silent.program, []).append(silent)
    advised = {advice.rule for advice in report.advice}
    for rule, programs in rules.items():
        if rule not in advised:
            (program, found), *others = programs.items()
            more = f"; nothing in {plural(len(others), 'other graph')}" if others else ""
            where = f" ({program}{more})" if program else ""
            for silent in found:
                yield printable(f"  {rule:<16}  {silent.reason}{where}")


def to_json(report: Report, limit: int | None = None) -> dict[str, Any]:
    """Return a report for programs, times in nanoseconds."""
    return {
        "is_simulation": report.clock is Clock.MODELLED,
        "step_ns": report.step_ns,
        "steps": report.steps,
        "advice": [
            {**asdict(advice), "severity": advice.severity.value, "gain_share": advice.gain.share}
            for advice in report.advice[:limit]
        ],
        "silent": [asdict(silent) for silent in report.silent],
    }
