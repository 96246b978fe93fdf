"""Limits on a profile, for continuous integration: `step_time>120ms`, `total_time>+5%`, each passed or failed.

Metrics are those of the summary, in the unit that their name documents; with several NeuronCores the core nearest
to the limit counts. `step_time` is the median step, measured; `step_device_time` the modelled time of one, and
`sample_device_time` the time of one of its samples.
"""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias
from xml.sax.saxutils import quoteattr

import numpy as np

from neurontools.base.text import did_you_mean, plural, printable
from neurontools.base.units import parse_duration_ns, parse_size
from neurontools.errors import UsageError
from neurontools.profiler.analysis.batches import compare_inputs, step_inputs
from neurontools.profiler.analysis.compare import StepVerdict, compare
from neurontools.profiler.analysis.metrics import ProfileMetric
from neurontools.profiler.analysis.steps import column_of, find_steps
from neurontools.profiler.analysis.summary import metric_text, summarise

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from neurontools.profiler.analysis.compare import ProfileComparison
    from neurontools.profiler.trace.trace import Trace

STEP_TIME, STEP_DEVICE_TIME, SAMPLE_DEVICE_TIME = "step_time", "step_device_time", "sample_device_time"
_OF_STEPS = (STEP_TIME, STEP_DEVICE_TIME, SAMPLE_DEVICE_TIME)
_EXPRESSION = re.compile(r"\s*([a-z][a-z0-9_]*)\s*(>=|<=|>|<)\s*(\S.*?)\s*")
_NUMBER = re.compile(r"[0-9]{1,18}(\.[0-9]{1,18})?(e[0-9]{1,2})?")
_EXAMPLE = "write for example 'step_time>120ms', 'mfu_estimated_percent<30' or 'total_time>+5%'"
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}


class LimitOutcome(StrEnum):
    """Outcome of a limit."""

    PASSED = "passed"
    FAILED = "failed"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, slots=True)
class Limit:
    """A condition under which a check fails.

    Args:
        text: as the user wrote it.
        metric: name of the metric.
        comparison: `>`, `>=`, `<` or `<=`.
        bound: the number, as it was written.
        is_relative: whether the bound is a change from the baseline in percent.
    """

    text: str
    metric: str
    comparison: str
    bound: str
    is_relative: bool


@dataclass(frozen=True, slots=True)
class LimitResult:
    """A limit held against a profile.

    Args:
        limit: as the user wrote it.
        outcome: passed, failed or inconclusive.
        value: the metric in the profile in base units, None if it has none.
        baseline: the metric in the baseline.
        text: one sentence with the numbers.
    """

    limit: str
    outcome: LimitOutcome
    value: float | None
    baseline: float | None
    text: str


def parse_limit(text: str) -> Limit:
    """Return the limit of an expression such as `step_time>120ms`.

    Raises:
        UsageError: it is none.
    """
    match = _EXPRESSION.fullmatch(text)
    if match is None:
        raise UsageError(f"--fail-if {text!r} is not a condition", _EXAMPLE)
    metric, comparison, bound = match.groups()
    is_relative = bound[0] in "+-"
    if is_relative and not (bound.endswith("%") and _NUMBER.fullmatch(bound[1:-1].strip())):
        raise UsageError(f"--fail-if {text!r}: {bound} is not a change in percent", "write for example +5%")
    return Limit(text, metric, comparison, bound, is_relative)


def tolerance_limits(text: str, trace: Trace, baseline: Trace) -> tuple[Limit, ...]:
    """Return the limits of `--tolerance 5%`: measured time of a step, and modelled time if it is ours.

    Where the batch changed it is the modelled time of a sample.

    Raises:
        UsageError: it is not a percentage.
    """
    number = text.strip().removesuffix("%").strip()
    if not _NUMBER.fullmatch(number):
        raise UsageError(f"--tolerance {text} is not a percentage", "write for example 5%")
    names: tuple[str, ...] = (STEP_TIME,) if trace.measured_by else (STEP_DEVICE_TIME, STEP_TIME)
    if compare_inputs(step_inputs(baseline), step_inputs(trace)).changes_samples:
        names = (SAMPLE_DEVICE_TIME,)
    return tuple(parse_limit(f"{name}>+{number}%") for name in names)


def check(trace: Trace, limits: Sequence[Limit], baseline: Trace | None = None) -> tuple[LimitResult, ...]:
    """Hold limits against a profile.

    Args:
        trace: the profile.
        limits: conditions under which it fails.
        baseline: what relative limits refer to.

    Raises:
        UsageError: a metric or a number is unknown, or a relative limit has no baseline.
    """
    own = _metrics(trace)
    before = None
    if baseline is not None:
        steps = (_step_count(baseline), _step_count(trace))
        before = _Baseline(_metrics(baseline), compare(baseline, trace), steps)
        inputs = before.comparison.inputs
        _add_sample_time(before.metrics, inputs.before.samples)
        _add_sample_time(own, inputs.after.samples)
    elif any(limit.metric == SAMPLE_DEVICE_TIME for limit in limits):
        _add_sample_time(own, step_inputs(trace).samples)
    return tuple(_result(limit, own, before) for limit in limits)


def overall(results: Sequence[LimitResult]) -> LimitOutcome:
    """Return the outcome of all limits: failed if one is, else inconclusive if one is."""
    outcomes = {result.outcome for result in results}
    if LimitOutcome.FAILED in outcomes:
        return LimitOutcome.FAILED
    return (
        LimitOutcome.INCONCLUSIVE
        if LimitOutcome.INCONCLUSIVE in outcomes or not results
        else LimitOutcome.PASSED
    )


def to_junit(results: Sequence[LimitResult], name: str) -> str:
    """Return the results as a JUnit file: failures, and errors for inconclusive limits."""
    kinds = {LimitOutcome.FAILED: "failure", LimitOutcome.INCONCLUSIVE: "error"}
    counts = [sum(result.outcome is outcome for result in results) for outcome in kinds]
    lines = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        f'<testsuite name={_attribute(name)} tests="{len(results)}" failures="{counts[0]}" errors="{counts[1]}">',
    ]
    for result in results:
        case = f'  <testcase classname="neuron-profile check" name={_attribute(result.limit)}'
        kind = kinds.get(result.outcome)
        lines.append(
            f"{case}><{kind} message={_attribute(result.text)}/></testcase>" if kind else f"{case}/>"
        )
    return "\n".join([*lines, "</testsuite>"]) + "\n"


def to_markdown(results: Sequence[LimitResult]) -> str:
    """Return the results as a table for a pull request."""
    lines = [
        f"**neuron-profile check: {overall(results)}**",
        "",
        "| limit | outcome | result |",
        "|---|---|---|",
    ]
    lines += [f"| {code_cell(result.limit)} | {result.outcome} | {cell(result.text)} |" for result in results]
    return "\n".join(lines) + "\n"


def cell(text: str) -> str:
    """Return text for a cell of a Markdown table."""
    return printable(text).replace("|", "\\|").replace("`", "'").replace("<", "&lt;")


def code_cell(text: str) -> str:
    """Return a name for a cell of a Markdown table, as it is: outside of code, `_a_` would be italic."""
    escaped = printable(text).replace("|", "\\|").replace("`", "'")
    return f"`{escaped}`" if escaped else ""


def _attribute(text: str) -> str:
    return quoteattr(printable(text))


_Metrics: TypeAlias = dict[str, list[ProfileMetric]]
"""By name: one a core, or one of the steps."""


@dataclass(frozen=True, slots=True)
class _Baseline:
    """What relative limits refer to: the metrics of the baseline, how the profile differs from it, and the steps of both."""

    metrics: _Metrics
    comparison: ProfileComparison
    steps: tuple[int, int]


def _metrics(trace: Trace) -> _Metrics:
    """Return the metrics of a profile."""
    metrics: _Metrics = {}
    for core in summarise(trace).cores:
        for metric in core.metrics:
            metrics.setdefault(metric.name, []).append(metric)
    steps = find_steps(trace)
    for name, column in ((STEP_TIME, "duration_ns"), (STEP_DEVICE_TIME, "device_ns")):
        times = column_of(steps, column, steady=True)
        if times.any():
            metrics[name] = [ProfileMetric(name, float(np.median(times)) / 1e9, "s")]
    return metrics


def _add_sample_time(metrics: _Metrics, samples: float | None) -> None:
    if samples and STEP_DEVICE_TIME in metrics:
        seconds = metrics[STEP_DEVICE_TIME][0].value / samples
        metrics[SAMPLE_DEVICE_TIME] = [ProfileMetric(SAMPLE_DEVICE_TIME, seconds, "s")]


def _step_count(trace: Trace) -> int:
    return sum(len(steps) for steps in find_steps(trace))


def _adds_up(metric: ProfileMetric) -> bool:
    """Return whether a metric of a longer run is larger."""
    of_one = metric.name in {*_OF_STEPS, "dma_queue_count"} or "_average_" in metric.name
    return metric.unit in {"s", "#", "B", "flops"} and not of_one


def _nearest(metrics: _Metrics, limit: Limit) -> ProfileMetric | None:
    """Return the metric of the core nearest to a limit."""
    nearest = max if limit.comparison.startswith(">") else min
    return nearest(metrics.get(limit.metric, ()), key=lambda metric: metric.value, default=None)


def _result(limit: Limit, own: _Metrics, baseline: _Baseline | None) -> LimitResult:
    metric = _nearest(own, limit)
    if metric is None:
        if own and limit.metric not in _OF_STEPS:
            names = sorted({*own, *_OF_STEPS})
            remedy = did_you_mean(
                limit.metric, names, otherwise="neuron-profile summary --json lists the metrics"
            )
            raise UsageError(f"--fail-if {limit.text!r}: unknown metric {limit.metric}", remedy)
        unknown = "" if limit.metric != SAMPLE_DEVICE_TIME else ": the batch is not known"
        return _inconclusive(limit, f"the profile has no {limit.metric}{unknown}")
    if not limit.is_relative:
        bound = _bound(limit, metric.unit)
        failed = _COMPARE[limit.comparison](metric.value, bound)
        outcome = LimitOutcome.FAILED if failed else LimitOutcome.PASSED
        return LimitResult(
            limit.text, outcome, metric.value, None, f"{limit.metric} is {metric_text(metric)}"
        )
    if baseline is None:
        raise UsageError(f"--fail-if {limit.text!r} needs a baseline", "give --baseline DIR")
    if baseline.comparison.reasons:
        return _inconclusive(limit, f"not comparable: {'; '.join(baseline.comparison.reasons)}", metric.value)
    if limit.metric == SAMPLE_DEVICE_TIME and (reason := baseline.comparison.inputs.reason):
        return _inconclusive(limit, f"samples are not comparable: {reason}", metric.value)
    before = _nearest(baseline.metrics, limit)
    if before is None:
        return _inconclusive(limit, f"the baseline has no {limit.metric}", metric.value)
    if _adds_up(metric) and baseline.steps[0] != baseline.steps[1]:
        counts = f"the baseline has {plural(baseline.steps[0], 'step')}, the profile {baseline.steps[1]}"
        return _inconclusive(limit, f"{counts}: {limit.metric} adds up over steps", metric.value)
    return _relative(limit, metric, before, baseline.comparison)


def _relative(
    limit: Limit, found: ProfileMetric, before: ProfileMetric, comparison: ProfileComparison
) -> LimitResult:
    if not before.value:
        if found.value:
            return _inconclusive(limit, f"{limit.metric} of the baseline is 0", found.value)
        change = 0.0
    else:
        change = 100 * (found.value - before.value) / abs(before.value)
    bound = float(limit.bound[1:-1]) * (-1 if limit.bound[0] == "-" else 1)
    failed = _COMPARE[limit.comparison](change, bound)
    text = f"{limit.metric} {metric_text(before)} -> {metric_text(found)} ({change:+.2f} %)"
    step, sample = comparison.step, comparison.sample
    if comparison.inputs.texts:
        text += f"; {'; '.join(comparison.inputs.texts)}"
        is_other = limit.metric != SAMPLE_DEVICE_TIME and comparison.is_per_sample
        if is_other and sample is not None and sample.ratio is not None:
            text += f": {100 * (sample.ratio - 1):+.2f} % a sample (modelled)"
    outcome = LimitOutcome.FAILED if failed else LimitOutcome.PASSED
    if limit.metric == STEP_TIME and failed and step is not None:
        if step.verdict is StepVerdict.INCONCLUSIVE:
            outcome, text = LimitOutcome.INCONCLUSIVE, f"{text}, but of fewer than 5 steps"
        elif step.verdict is StepVerdict.SAME:
            outcome, text = LimitOutcome.PASSED, f"{text}, which may be chance (p = {step.p_value:.2g})"
    return LimitResult(limit.text, outcome, found.value, before.value, text)


def _inconclusive(limit: Limit, text: str, value: float | None = None) -> LimitResult:
    return LimitResult(limit.text, LimitOutcome.INCONCLUSIVE, value, None, text)


def _bound(limit: Limit, unit: str) -> float:
    """Return the bound of an absolute limit in the unit of its metric."""
    text = limit.bound
    plain = text.removesuffix("%").strip() if unit == "%" else text
    if _NUMBER.fullmatch(plain):
        return float(plain)
    try:
        match unit:
            case "s":
                return parse_duration_ns(text, needs_unit=True) / 1e9
            case "B":
                return float(parse_size(text))
    except UsageError as error:
        raise UsageError(f"--fail-if {limit.text!r}: {error.message}", error.remedy) from error
    raise UsageError(f"--fail-if {limit.text!r}: {text} is not a number", _EXAMPLE)
