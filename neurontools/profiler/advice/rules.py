"""All rules, and what they say of a run: advice with the largest gain first, and rules that found nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from neurontools.base.text import plural
from neurontools.profiler.advice.findings import WORTH, Advice, Clock, Finding, Report, Silent
from neurontools.profiler.advice.rules_graph import (
    BATCH,
    DTYPE,
    attention,
    batch,
    data_types,
    kernels,
    layouts,
    overlap,
    small_copies,
    spills,
    widths,
)
from neurontools.profiler.advice.rules_kernel import kernel_findings
from neurontools.profiler.advice.rules_measured import (
    foreign_findings,
    foreign_steps,
    graph_cuts,
    host_bound,
    input_stalls,
    recompiles,
    stragglers,
)
from neurontools.profiler.advice.subject import ProfiledProgram, ProfiledRun, open_subject

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.profiler.trace.trace import Trace

ProgramRule: TypeAlias = Callable[[ProfiledProgram], list[Finding]]
RunRule: TypeAlias = Callable[[ProfiledRun], list[Finding]]

PROGRAM_RULES: tuple[ProgramRule, ...] = (
    attention,
    data_types,
    widths,
    batch,
    spills,
    overlap,
    small_copies,
    layouts,
    kernels,
    kernel_findings,
)
RUN_RULES: tuple[RunRule, ...] = (host_bound, graph_cuts, recompiles, input_stalls, stragglers)
_SMALLEST_SHARE = 0.05
"""Programs that take less of a step are left out: no change of them is worth an advice."""


def advise_trace(trace: Trace) -> Report:
    """Return what the rules say of a profile, or of another program's trace.

    Raises:
        ProfileError: the profile has no execution or no readable copy of a NEFF; the other trace has no steps.
    """
    if not trace.measured_by:
        return advise(open_subject(trace))
    steps = foreign_steps(trace)
    return _report(foreign_findings(steps, trace.measured_by), steps.step_ns, steps.count, Clock.MEASURED)


def advise(subject: ProfiledRun) -> Report:
    """Return what the rules say of a run."""
    findings: list[Finding] = [finding for rule in RUN_RULES for finding in rule(subject)]
    programs = [
        program
        for program in subject.programs
        if program.total_ns * program.per_step >= _SMALLEST_SHARE * subject.step_ns
    ]
    trains = any(program.trains for program in subject.programs)
    for program in programs:
        program.trains = trains
        name = program.name if len(programs) > 1 else ""
        for rule in (kernel_findings,) if program.is_kernel else PROGRAM_RULES:
            if rule is not batch or len(programs) == 1:
                findings += (_of_a_step(finding, program, subject, name) for finding in rule(program))
    if len(programs) > 1 and not all(program.is_kernel for program in programs):
        findings.append(
            Silent(BATCH, f"the steps have {len(programs)} graphs, which need not have one batch")
        )
    return _report(findings, subject.step_ns, subject.steps.count if subject.steps else 0, Clock.MODELLED)


def _report(found: Sequence[Finding], step_ns: int, steps: int, clock: Clock) -> Report:
    advice = _merged([finding for finding in found if isinstance(finding, Advice)])
    silent = [finding for finding in found if isinstance(finding, Silent)]
    silent += [
        Silent(each.rule, f"{each.title}: less than {WORTH:.0%} of the step", each.program)
        for each in advice
        if each.gain.share < WORTH
    ]
    worth = sorted((each for each in advice if each.gain.share >= WORTH), key=lambda each: -each.gain.share)
    return Report(step_ns, steps, tuple(worth), tuple(silent), clock)


def _of_a_step(finding: Finding, program: ProfiledProgram, subject: ProfiledRun, name: str) -> Finding:
    """Return what a rule says of an execution of a program as what it means for a step."""
    if isinstance(finding, Silent):
        return replace(finding, program=name)
    gain, per_step = finding.gain, program.per_step
    gain = replace(
        gain, ns=round(gain.ns * per_step), step_ns=subject.step_ns, samples=gain.samples * per_step
    )
    return replace(finding, gain=gain, program=name)


def _merged(advice: Sequence[Advice]) -> list[Advice]:
    """Return one advice for each change, with the gain of all graphs that it concerns."""
    groups: dict[tuple[str, str, str], list[Advice]] = {}
    for each in advice:
        # Two remedies of one cause are one advice; other rules name the lines of each graph.
        change = "" if each.rule == DTYPE else each.change
        groups.setdefault((each.rule, each.title, change), []).append(each)
    return [group[0] if len(group) == 1 else _of_graphs(group) for group in groups.values()]


def _of_graphs(group: Sequence[Advice]) -> Advice:
    first = max(group, key=lambda each: each.gain.ns)
    gain = replace(first.gain, ns=sum(each.gain.ns for each in group))
    return replace(first, gain=gain, program=f"{first.program}, and {plural(len(group) - 1, 'other')}")
