"""What rules say: an advice with its evidence and gain, or why a rule is silent; as text and as JSON."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeAlias

from neurontools.base.text import plural, printable, wrap
from neurontools.base.units import format_ns, format_percent

if TYPE_CHECKING:
    from collections.abc import Iterator


WORTH = 0.01
"""Smallest share of a step that is worth an advice."""
_HIGH, _MEDIUM = 0.1, 0.03


class Severity(StrEnum):
    """How much of a step an advice concerns: a tenth or more, 3 % or more, less."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class Clock(StrEnum):
    """Where a time comes from: the engine model, or the clock of the computer that ran the program."""

    MODELLED = "modelled"
    MEASURED = "measured"


@dataclass(frozen=True, slots=True)
class Evidence:
    """Where a fault is.

    Args:
        text: what is there, e.g. `softmax between two products`.
        source: the line of the program, empty if unknown.
        count: how many operators.
        share: part of the step during which they work, 0 to 1; None where it has no meaning.
        layer: the modules that they belong to, e.g. `GPT.blocks.*.attn`; empty if unknown or without a common path.
        layers: how many modules.
    """

    text: str
    source: str = ""
    count: int = 1
    share: float | None = None
    layer: str = ""
    layers: int = 0


@dataclass(frozen=True, slots=True)
class Gain:
    """Time that a step would take less.

    Args:
        ns: the time.
        step_ns: time of a step now, by the same clock.
        clock: where both come from.
        is_bound: whether the gain is what the change brings at most.
        samples: of a step, where the change alters the batch, so that only times of a sample can be compared; else 0.
    """

    ns: int
    step_ns: int
    clock: Clock = Clock.MODELLED
    is_bound: bool = False
    samples: float = 0

    @property
    def share(self) -> float:
        """Part of the step, 0 to 1."""
        return self.ns / self.step_ns if self.step_ns else 0.0


@dataclass(frozen=True, slots=True)
class Advice:
    """A change that makes a step faster.

    Args:
        rule: name of the rule.
        title: the change in one imperative sentence.
        change: which line to change, and what to write.
        gain: what it brings.
        method: how the gain was computed.
        evidence: what the rule saw, the largest part first.
        program: name of the graph that it is about, empty if about all.
    """

    rule: str
    title: str
    change: str
    gain: Gain
    method: str
    evidence: tuple[Evidence, ...] = ()
    program: str = ""

    @property
    def severity(self) -> Severity:
        """How much of the step it is about."""
        if self.gain.share >= _HIGH:
            return Severity.HIGH
        return Severity.MEDIUM if self.gain.share >= _MEDIUM else Severity.LOW


@dataclass(frozen=True, slots=True)
class Silent:
    """A rule that looked and found nothing to change, and why."""

    rule: str
    reason: str
    program: str = ""


Finding: TypeAlias = Advice | Silent


_FIELD, _NARROWEST = 11, 30


@dataclass(frozen=True, slots=True)
class Report:
    """What the rules say of a run.

    Args:
        step_ns: time of a step.
        steps: number of steps.
        advice: the largest gain first.
        silent: rules that looked and found nothing to change.
        clock: where `step_ns` comes from.
    """

    step_ns: int
    steps: int
    advice: tuple[Advice, ...]
    silent: tuple[Silent, ...]
    clock: Clock = Clock.MODELLED


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
    located = next((line for line in advice.evidence if line.source), None)
    where = f": {_place(located)}" if located else ""
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
    lines = [f"   change  {advice.change}"]
    lines += [
        f"   {'seen' if number == 0 else '':<6}  {_seen(line)}" for number, line in enumerate(advice.evidence)
    ]
    lines.append(f"   gain    {advice.method}")
    if advice.program:
        lines.append(f"   graph   {advice.program}")
    return list(map(printable, lines))


def _place(line: Evidence) -> str:
    place = os.path.basename(line.source)
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
            (program, reasons), *others = programs.items()
            more = f"; nothing in {plural(len(others), 'other graph')}" if others else ""
            where = f" ({program}{more})" if program else ""
            for silent in reasons:
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
