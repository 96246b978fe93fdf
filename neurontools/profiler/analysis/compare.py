"""Two profiles held against each other: what is new, gone, slower or faster, and whether that is more than chance.

Where the batch changed, times of a sample are compared: those of a step show how much more a step does.

Only typical steps count, without first executions. Modelled time has no noise: a change of over 1 % is a change. Steps
are measured, so a rank test (Mann-Whitney, two-sided, normal approximation with tie correction) says whether their times
differ by more than chance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from neurontools.base.text import plural
from neurontools.profiler.analysis.batches import compare_inputs, step_inputs
from neurontools.profiler.analysis.operators import UNKNOWN, By, group_totals, layer_pattern
from neurontools.profiler.analysis.steps import column_of, find_steps, of_steady_steps

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from neurontools.profiler.analysis.batches import StepInputChange
    from neurontools.profiler.trace.intervals import Int64s
    from neurontools.profiler.trace.trace import Trace

COMPARED = (By.ENGINE, By.LAYER, By.OPERATOR)
_NOTICED = 0.01
P_VALUE = 0.01
_FEWEST_STEPS = 5
_COMMON = 0.5


class StepVerdict(StrEnum):
    """Verdict of a comparison."""

    SAME = "same"
    FASTER = "faster"
    SLOWER = "slower"
    INCONCLUSIVE = "inconclusive"


class ChangeKind(StrEnum):
    """How an operator, layer or engine changed."""

    NEW = "new"
    GONE = "gone"
    SLOWER = "slower"
    FASTER = "faster"
    SAME = "same"


@dataclass(frozen=True, slots=True)
class GroupChange:
    """One operator, layer or engine in a typical step of both profiles; times are modelled.

    Args:
        name: which one; equal layers are one, such as `GPT.blocks.*.attention`.
        kind: how it changed.
        before_ns: time in a step before, or of a sample where the batch changed; 0 if it is new.
        after_ns: the same after, 0 if it is gone.
        before_count: events in a step before.
        after_count: events in a step after.
        members: the names of all layers that it stands for.
    """

    name: str
    kind: ChangeKind
    before_ns: float
    after_ns: float
    before_count: float
    after_count: float
    members: tuple[str, ...] = ()

    @property
    def difference_ns(self) -> float:
        """Time after less time before."""
        return self.after_ns - self.before_ns


@dataclass(frozen=True, slots=True)
class TimeChange:
    """A time of a typical step in both profiles.

    Args:
        before_ns: median before.
        after_ns: median after.
        before_steps: number of typical steps before.
        after_steps: number of them after.
        p_value: probability of such a difference by chance; None for modelled time, which has no noise.
        verdict: the direction of the change.
    """

    before_ns: float
    after_ns: float
    before_steps: int
    after_steps: int
    p_value: float | None
    verdict: StepVerdict

    @property
    def ratio(self) -> float | None:
        """After by before."""
        return self.after_ns / self.before_ns if self.before_ns else None


@dataclass(frozen=True, slots=True)
class ProfileComparison:
    """Everything about two profiles.

    Args:
        verdict: of a sample where the batch changed, else of the modelled time of a step if both have it, else of the
            measured steps.
        reasons: why the profiles cannot be compared; empty if they can.
        notes: what else differs.
        device: modelled time of the device in a step; None without device records.
        step: measured time of a step; None without steps.
        groups: changes by engine, layer and operator, the largest difference first.
        inputs: how the inputs of steps differ.
        sample: modelled time of a sample; None where its number in a step is not known.
    """

    verdict: StepVerdict
    reasons: tuple[str, ...]
    notes: tuple[str, ...]
    device: TimeChange | None
    step: TimeChange | None
    groups: dict[By, tuple[GroupChange, ...]]
    inputs: StepInputChange
    sample: TimeChange | None

    @property
    def is_per_sample(self) -> bool:
        """Whether verdict and changes are those of a sample."""
        return self.sample is not None and self.inputs.changes_samples


@dataclass(frozen=True, slots=True)
class _Side:
    """One profile: its typical steps, and its totals by step."""

    trace: Trace
    steady: Trace
    step_ns: Int64s
    device_ns: Int64s

    @property
    def steps(self) -> int:
        return len(self.step_ns)

    def per_step(self, by: By, samples: float, names: Mapping[str, str]) -> dict[str, tuple[float, float]]:
        """Return time of a step, or of one of its samples, and number of events in a step, by group.

        `names` are those of groups that count as one.
        """
        steps = max(1, self.steps)
        totals: dict[str, tuple[float, float]] = {}
        for each in group_totals(self.steady, by):
            name = names.get(each.name, each.name)
            ns, count = totals.get(name, (0.0, 0.0))
            totals[name] = ns + each.total_ns / steps / samples, count + each.count / steps
        return totals


def compare(before: Trace, after: Trace) -> ProfileComparison:
    """Return how the second profile differs from the first."""
    one, other = _side(before), _side(after)
    inputs = compare_inputs(step_inputs(before), step_inputs(after))
    samples = inputs.samples if inputs.samples and inputs.changes_samples else (1.0, 1.0)
    names = _equal_layers(one, other)
    groups = {
        by: _changes(one.per_step(by, samples[0], names), other.per_step(by, samples[1], names), names)
        for by in COMPARED
    }
    reasons = _reasons(one, other, groups[By.OPERATOR])
    device = _device_change(one, other)
    step = _step_change(one.step_ns, other.step_ns) if one.steps and other.steps else None
    sample = None if device is None or inputs.samples is None else _sample_change(device, inputs.samples)
    decisive = (sample if inputs.changes_samples else None) or device or step
    verdict = StepVerdict.INCONCLUSIVE if reasons or decisive is None else decisive.verdict
    notes = (*inputs.texts, *_notes(before, after), *_layer_notes(groups[By.LAYER]))
    return ProfileComparison(verdict, tuple(reasons), notes, device, step, groups, inputs, sample)


def _sample_change(step: TimeChange, samples: tuple[float, float]) -> TimeChange:
    """Return how the time of a sample changed."""
    before, after = step.before_ns / samples[0], step.after_ns / samples[1]
    return replace(step, before_ns=before, after_ns=after, verdict=_verdict(before, after))


def _equal_layers(*sides: _Side) -> dict[str, str]:
    """Return the pattern of each layer that has equals, such as `GPT.blocks.*.attention`."""
    names = {each.name for side in sides for each in group_totals(side.steady, By.LAYER)}
    patterns: dict[str, list[str]] = {}
    for name in sorted(names):
        parts = name.split(".")
        patterns.setdefault(".".join("*" if part.isdecimal() else part for part in parts), []).append(name)
    return {name: layer_pattern(group) for group in patterns.values() if len(group) > 1 for name in group}


def _step_change(before: Int64s, after: Int64s) -> TimeChange:
    """Return how measured times of steps changed; there is at least one on each side."""
    one, other = float(np.median(before)), float(np.median(after))
    p_value = mann_whitney(before, after)
    if min(len(before), len(after)) < _FEWEST_STEPS:
        verdict = StepVerdict.INCONCLUSIVE
    elif p_value >= P_VALUE:
        verdict = StepVerdict.SAME
    else:
        verdict = _verdict(one, other)
    return TimeChange(one, other, len(before), len(after), p_value, verdict)


def mann_whitney(before: Int64s, after: Int64s) -> float:
    """Return the probability (two-sided) that samples of one distribution differ as much as these do in rank."""
    together = np.concatenate((before, after))
    _, place, counts = np.unique(together, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks = (last - (counts - 1) / 2)[place.reshape(-1)]
    one, other, size = len(before), len(after), len(together)
    expected = one * other / 2
    u = float(ranks[:one].sum()) - one * (one + 1) / 2
    ties = float((counts.astype(float) ** 3 - counts).sum())
    variance = one * other / 12 * (size + 1 - ties / (size * max(1, size - 1)))
    if variance <= 0:
        return 1.0
    # The continuity correction of half a rank.
    z = max(0.0, abs(u - expected) - 0.5) / math.sqrt(variance)
    return math.erfc(z / math.sqrt(2))


def _side(trace: Trace) -> _Side:
    steps = find_steps(trace)
    return _Side(
        trace=trace,
        steady=of_steady_steps(trace, steps),
        step_ns=column_of(steps, "duration_ns", steady=True),
        device_ns=column_of(steps, "device_ns", steady=True),
    )


def _verdict(before: float, after: float) -> StepVerdict:
    if abs(after - before) <= _NOTICED * before:
        return StepVerdict.SAME
    return StepVerdict.SLOWER if after > before else StepVerdict.FASTER


def _device_change(one: _Side, other: _Side) -> TimeChange | None:
    if not one.device_ns.any() or not other.device_ns.any():
        return None
    before, after = float(np.median(one.device_ns)), float(np.median(other.device_ns))
    return TimeChange(before, after, one.steps, other.steps, None, _verdict(before, after))


def _changes(
    before: dict[str, tuple[float, float]], after: dict[str, tuple[float, float]], names: Mapping[str, str]
) -> tuple[GroupChange, ...]:
    members: dict[str, list[str]] = {}
    for member, name in names.items():
        members.setdefault(name, []).append(member)
    changes = []
    for name in before | after:
        (old_ns, old_count), (new_ns, new_count) = before.get(name, (0.0, 0.0)), after.get(name, (0.0, 0.0))
        if name not in before:
            kind = ChangeKind.NEW
        elif name not in after:
            kind = ChangeKind.GONE
        else:
            kind = ChangeKind(_verdict(old_ns, new_ns).value)
        changes.append(
            GroupChange(name, kind, old_ns, new_ns, old_count, new_count, tuple(members.get(name, (name,))))
        )
    changes.sort(key=lambda change: (-abs(change.difference_ns), change.name))
    return tuple(changes)


def _reasons(one: _Side, other: _Side, operators: Sequence[GroupChange]) -> list[str]:
    """Return why two profiles cannot be compared."""
    for side, name in ((one, "first"), (other, "second")):
        if not side.steps:
            return [f"the {name} profile has no {'steps' if side.trace.measured_by else 'executions'}"]
    reasons = []
    for what, old, new in (
        ("instance type", _instances(one.trace), _instances(other.trace)),
        ("logical core size", *(_words(meta.lnc for meta in side.trace.processes) for side in (one, other))),
        ("number of workers", *(str(len(side.trace.processes)) for side in (one, other))),
        ("number of NeuronCores", *(str(len(side.trace.runs)) for side in (one, other))),
    ):
        if old != new:
            reasons.append(f"other {what}: {old} and {new}")
    everything = sum(change.before_ns + change.after_ns for change in operators)
    common = sum(
        change.before_ns + change.after_ns
        for change in operators
        if change.kind not in {ChangeKind.NEW, ChangeKind.GONE}
    )
    if everything and not common:
        reasons.append("the profiles have no operator in common")
    elif everything and common < _COMMON * everything:
        reasons.append(f"other model: operators of both have {common / everything:.0%} of the time")
    return reasons


def _layer_notes(layers: Sequence[GroupChange]) -> list[str]:
    """Say that the models may differ: most models have matrix products, adds and an optimizer in common."""
    kinds = [change.kind for change in layers if change.name != UNKNOWN]
    if {ChangeKind.NEW, ChangeKind.GONE} == set(kinds):
        return ["the profiles have no layer in common; they may be of different models"]
    return []


def _instances(trace: Trace) -> str:
    return _words(meta.instance_type for meta in trace.processes)


def _words(values: Iterable[object]) -> str:
    return ", ".join(sorted({str(value) for value in values}))


def _notes(before: Trace, after: Trace) -> list[str]:
    notes = []
    versions = [_words(meta.version for meta in trace.processes) for trace in (before, after)]
    if all(versions) and versions[0] != versions[1]:
        notes.append(f"captured by neurontools {versions[0]} and {versions[1]}: the engine model may differ")
    for name, trace in (("first", before), ("second", after)):
        if trace.problems:
            notes.append(f"{name} profile: {plural(len(trace.problems), 'problem')}, {trace.problems[0]}")
    return notes
