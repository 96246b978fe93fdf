"""neuron-profile diff and check: comparisons of two profiles, and limits for continuous integration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neurontools.base.text import plural, table
from neurontools.base.units import format_ns
from neurontools.commands import console
from neurontools.commands.parsing import add_json, add_limit, add_verb
from neurontools.commands.profile.options import (
    add_reading_verb,
    fields_of,
    load_baseline,
    load_trace,
    open_profile,
)
from neurontools.errors import UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from neurontools.commands.parsing import Verbs
    from neurontools.profiler.analysis.check import LimitResult
    from neurontools.profiler.analysis.compare import GroupChange, ProfileComparison, TimeChange
    from neurontools.profiler.analysis.operators import By

_WIDTH = 80
_LIMIT = 10
_INCONCLUSIVE = 3
_DIFF = """Only typical steps count, without first executions. Modelled time has no noise: a difference above 1 % counts. For
measured steps a Mann-Whitney test says whether they differ by more than chance (p below 0.01, 5 steps or more).

examples:
  neuron-profile diff before after
  neuron-profile diff before after --markdown >> "$GITHUB_STEP_SUMMARY"

exit codes: 0 compared, 1 no profile, 2 usage error, 3 inconclusive
"""
_CHECK = """Metrics are those of 'neuron-profile summary --json', step_time (the median step, measured), step_device_time
(modelled) and sample_device_time (step_device_time by the samples of a step). A bound with + or - and % is relative to the baseline. --tolerance limits both
step times, or sample_device_time where the batch changed.

examples:
  neuron-profile check prof --fail-if 'step_time>120ms' --fail-if 'mfu_estimated_percent<30'
  neuron-profile check prof --baseline main --fail-if 'total_time>+5%'
  neuron-profile check prof --baseline main --tolerance 5% --junit check.xml

exit codes: 0 passed, 1 a limit is exceeded, 2 usage error, 3 inconclusive: no profile, nothing to measure, or a baseline
that is not comparable
"""


def add(verbs: Verbs) -> None:
    """Add the verbs."""
    diff = add_verb(verbs, "diff", "compare two profiles by operator, layer and engine", _diff)
    diff.epilog = _DIFF
    diff.add_argument("before", metavar="A", help="profile before the change")
    diff.add_argument("after", metavar="B", help="profile after the change")
    add_json(diff, "print JSON (base units)")
    diff.add_argument("--markdown", action="store_true", help="print Markdown, for pull requests")
    add_limit(diff, f"number of changes in each table (default: {_LIMIT})")
    check = add_reading_verb(verbs, "check", "fail if a profile exceeds limits, for CI", _check)
    check.epilog = _CHECK
    check.add_argument(
        "--fail-if",
        action="append",
        default=[],
        metavar="CONDITION",
        help="e.g. 'step_time>120ms'; may be repeated",
    )
    check.add_argument("--baseline", metavar="DIR", help="profile that relative limits refer to")
    check.add_argument(
        "--tolerance",
        metavar="PERCENT",
        help="fail if steps are slower than the baseline's by more than this, e.g. 5%%",
    )
    check.add_argument("--junit", metavar="FILE", help="also write the results as JUnit XML")
    check.add_argument("--markdown", metavar="FILE", help="also write the results as Markdown")
    add_json(check, "print JSON (base units)")


def _diff(arguments: argparse.Namespace) -> int:
    from neurontools.profiler.analysis.compare import StepVerdict, compare

    if arguments.json and arguments.markdown:
        raise UsageError("--json and --markdown exclude each other", "give one of them")
    comparison = compare(open_profile(arguments.before), open_profile(arguments.after))
    limit = arguments.limit or _LIMIT
    console.show(
        arguments.json,
        lambda: _diff_json(comparison),
        lambda: _diff_text(comparison, limit, markdown=arguments.markdown),
    )
    return _INCONCLUSIVE if comparison.verdict is StepVerdict.INCONCLUSIVE else 0


def _diff_json(found: ProfileComparison) -> dict[str, Any]:
    return {
        "verdict": found.verdict,
        "reasons": list(found.reasons),
        "notes": list(found.notes),
        "device": _time_json(found.device),
        "step": _time_json(found.step),
        "sample": _time_json(found.sample),
        "inputs": {
            "before": fields_of(found.inputs.before),
            "after": fields_of(found.inputs.after),
            "differences": list(found.inputs.texts),
        },
        "changes_of": "sample" if found.is_per_sample else "step",
        "changes": {by: [fields_of(change) for change in changes] for by, changes in found.groups.items()},
    }


def _time_json(time: TimeChange | None) -> dict[str, Any] | None:
    return None if time is None else fields_of(time) | {"ratio": time.ratio}


def _diff_text(found: ProfileComparison, limit: int, *, markdown: bool) -> str:
    from neurontools.profiler.analysis.operators import UNKNOWN

    verdict = f"Verdict: {found.verdict}" + (" per sample" if found.is_per_sample else "")
    lines = [f"**{verdict}**" if markdown else verdict]
    lines += [f"not comparable: {reason}" for reason in found.reasons]
    lines += [f"note: {note}" for note in found.notes]
    sample = found.sample if found.is_per_sample else None
    times = [("step, modelled", found.device), ("sample, modelled", sample), ("step, measured", found.step)]
    rows = [_time_row(name, time) for name, time in times if time is not None]
    parts = ["\n\n".join(lines) if markdown else "\n".join(lines)]
    if rows:
        head = ("median", "before", "after", "change", "verdict")
        chance = _chance(found.step)
        parts.append(
            "\n".join(filter(None, (_table(head, rows, "<>>><", markdown=markdown), markdown * " ", chance)))
        )
    for by, changes in () if found.reasons else found.groups.items():
        listed = [change for change in changes if change.kind != "same"][:limit]
        if listed and [change.name for change in changes] != [UNKNOWN]:
            parts.append(
                _changes(by, listed, markdown=markdown, unit=", a sample" if found.is_per_sample else "")
            )
    return "\n\n".join(parts)


def _chance(step: TimeChange | None) -> str:
    """Return what the test of measured steps says."""
    if step is None or step.p_value is None:
        return ""
    from neurontools.profiler.analysis.compare import P_VALUE

    finding = "a significant" if step.p_value < P_VALUE else "no significant"
    counts = f"{step.before_steps} vs {plural(step.after_steps, 'step')}"
    return f"measured steps: {finding} difference (p = {step.p_value:.2g}, {counts})"


def _time_row(name: str, time: TimeChange) -> tuple[str, ...]:
    ratio = "-" if time.ratio is None else f"{time.ratio - 1:+.1%}"
    return name, format_ns(time.before_ns), format_ns(time.after_ns), ratio, str(time.verdict)


def _changes(by: By, changes: list[GroupChange], *, markdown: bool, unit: str) -> str:
    rows = [
        (
            change.name,
            str(change.kind),
            format_ns(change.before_ns),
            format_ns(change.after_ns),
            f"{'+' if change.difference_ns > 0 else '-'}{format_ns(abs(change.difference_ns))}",
            f"{change.before_count:g} -> {change.after_count:g}",
        )
        for change in changes
    ]
    head = (f"{by}{unit}", "change", "before", "after", "difference", "events")
    return _table(head, rows, "<<>>>>", markdown=markdown, is_named=True)


def _table(
    head: tuple[str, ...],
    rows: Sequence[tuple[str, ...]],
    align: str,
    *,
    markdown: bool,
    is_named: bool = False,
) -> str:
    if not markdown:
        return table(head, rows, align, width=_WIDTH)
    from neurontools.profiler.analysis.check import cell, code_cell

    marks = "|".join("---" if side == "<" else "---:" for side in align)
    first = code_cell if is_named else cell
    lines = [f"| {' | '.join((first(name), *map(cell, row)))} |" for name, *row in rows]
    return "\n".join([f"| {' | '.join(map(cell, head))} |", f"|{marks}|", *lines])


def _check(arguments: argparse.Namespace) -> int:
    from neurontools.profiler.capture.format import ProfileError

    try:
        results = _results(arguments)
    except ProfileError as error:
        console.fail(error)
        return _INCONCLUSIVE
    from neurontools.profiler.analysis.check import LimitOutcome, overall, to_junit, to_markdown

    outcome = overall(results)
    if arguments.json:
        console.print_json({"outcome": outcome, "limits": [fields_of(result) for result in results]})
    else:
        rows = [(str(result.outcome), result.limit, result.text) for result in results]
        console.out(table(None, rows, "<<<"))
    for path, text in (
        (arguments.junit, to_junit(results, "neuron-profile check")),
        (arguments.markdown, to_markdown(results)),
    ):
        if path:
            from neurontools.profiler.exchange.export import write_text

            write_text(path, text)
    return {LimitOutcome.PASSED: 0, LimitOutcome.FAILED: 1, LimitOutcome.INCONCLUSIVE: _INCONCLUSIVE}[outcome]


def _results(arguments: argparse.Namespace) -> tuple[LimitResult, ...]:
    if arguments.tolerance and not arguments.baseline:
        raise UsageError("--tolerance needs a baseline", "give --baseline DIR")
    if not arguments.fail_if and not arguments.baseline:
        raise UsageError(
            "no limits given", "give --fail-if 'step_time>120ms', or --baseline DIR --tolerance 5%"
        )
    from neurontools.profiler.capture.format import require_numpy

    require_numpy()
    from neurontools.profiler.analysis.check import check, parse_limit, tolerance_limits

    limits = [parse_limit(text) for text in arguments.fail_if]
    trace = load_trace(arguments)
    baseline = load_baseline(arguments, arguments.baseline) if arguments.baseline else None
    if baseline is not None and (arguments.tolerance or not limits):
        limits += tolerance_limits(arguments.tolerance or "5%", trace, baseline)
    return check(trace, limits, baseline)
