"""`neuron-cache why` as JSON; docs/reference/neuron-cache.md describes the fields."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neurontools.cache.why.diff_text import operation_text

if TYPE_CHECKING:
    from neurontools.cache.why.cause import Cause
    from neurontools.cache.why.compare import Comparison
    from neurontools.cache.why.diff import GraphDiff, Step
    from neurontools.cache.why.entry_facts import EntryFacts
    from neurontools.cache.why.pair_report import LoneReport, PairReport
    from neurontools.cache.why.run_report import MissReport, RunReport

SCHEMA = 1
_STEPS = 200


def pair_json(report: PairReport, *, full: bool = False) -> dict[str, Any]:
    """Return why two entries are two."""
    return {
        "schema": SCHEMA,
        "entry": _entry(report.comparison.new),
        "nearest": _entry(report.comparison.old),
        "likeness": round(report.likeness, 4),
        "causes": [_cause(cause) for cause in report.causes],
        **_comparison(report.comparison),
        "graph": None if report.comparison.diff is None else _diff(report.comparison.diff, full=full),
    }


def lone_json(report: LoneReport) -> dict[str, Any]:
    """Return that an entry has no neighbour."""
    return {
        "schema": SCHEMA,
        "entry": _entry(report.facts),
        "nearest": None,
        "likeness": None,
        "causes": [],
        "differences": [],
        "unread": list(report.facts.unread),
        "graph": None,
    }


def run_json(report: RunReport, *, full: bool = False) -> dict[str, Any]:
    """Return why a run compiled."""
    return {
        "schema": SCHEMA,
        "root": report.root,
        "run": report.run,
        "started_unix_s": report.started_unix_s,
        "hits": report.hits,
        "compiled_s": report.compiled_s,
        "causes": [_cause(series.cause) | {"modules": list(series.modules)} for series in report.series],
        "misses": [_miss(miss, full=full) for miss in report.misses],
        "left_out": report.left_out,
    }


def _miss(miss: MissReport, *, full: bool) -> dict[str, Any]:
    comparison = miss.comparison
    found: dict[str, Any] = {
        "module": miss.event.module,
        "event": miss.event.kind.value,
        "unix_s": miss.event.unix_s,
        "seconds": miss.event.seconds,
        "entry": None if miss.facts is None else _entry(miss.facts),
        "nearest": None if comparison is None else _entry(comparison.old),
        "likeness": None if comparison is None else round(miss.likeness, 4),
        "causes": [_cause(cause) for cause in miss.causes],
        "differences": [],
        "unread": [],
    }
    if comparison is not None:
        found |= _comparison(comparison)
        found["graph"] = _diff(comparison.diff, full=True) if full and comparison.diff is not None else None
    return found


def _comparison(comparison: Comparison) -> dict[str, Any]:
    return {
        "differences": [
            {
                "subject": item.subject.value,
                "text": item.text,
                "old": item.old or None,
                "new": item.new or None,
                "source": item.source or None,
            }
            for item in comparison.differences
        ],
        "unread": list(comparison.unread),
    }


def _entry(facts: EntryFacts) -> dict[str, Any]:
    entry = facts.entry
    return {
        "path": entry.path,
        "module": entry.module,
        "compiler": entry.compiler,
        "state": entry.state.value,
        "made_unix_s": entry.made_unix_s,
        "flags": None if facts.flags is None else list(facts.flags),
        "operators": None if facts.graph is None else len(facts.graph.operations),
        "program": None if facts.origin is None else facts.origin.program,
        "cut": None if facts.graph is None else facts.graph.cut or None,
    }


def _cause(cause: Cause) -> dict[str, Any]:
    return {
        "name": cause.name.value,
        "confidence": cause.confidence.value,
        "text": cause.text,
        "advice": cause.advice or None,
        "values": list(cause.values),
    }


def _diff(diff: GraphDiff, *, full: bool) -> dict[str, Any]:
    differing = [step for step in diff.steps if not step.is_equal]
    shown = differing if full else differing[:_STEPS]
    return {
        "same": diff.equal_count,
        "changed": len(diff.changed()),
        "added": len(diff.added()),
        "removed": len(diff.removed()),
        "sizes": [list(pair) for pair in diff.sizes],
        "steps": [_step(diff, step) for step in shown],
        "left_out": len(differing) - len(shown),
    }


def _step(diff: GraphDiff, step: Step) -> dict[str, Any]:
    old = diff.old.operations[step.old] if step.old >= 0 else None
    new = diff.new.operations[step.new] if step.new >= 0 else None
    source = (new or old).source if new or old else ""  # type: ignore[union-attr]
    return {
        "old": None if old is None else step.old,
        "new": None if new is None else step.new,
        "aspects": sorted(aspect.value for aspect in step.aspects),
        "by_sizes_alone": step.follows,
        "old_text": None if old is None else operation_text(diff.old, old),
        "new_text": None if new is None else operation_text(diff.new, new),
        "source": source or None,
    }
