"""The engine model is as near to published times as it has to be (docs/explanation/cost-model.md)."""

from __future__ import annotations

import pytest

from benchmarks.advice import main as advice
from benchmarks.anchors import main as anchors
from benchmarks.engine_model.judge import TARGETS, mean_error, of_half, verdicts, worst
from benchmarks.report import table
from neurontools.compiler.engines.modelled_core import read_costs


@pytest.mark.parametrize("half", TARGETS)
def test_the_mean_factor_of_error_is_small(half: str) -> None:
    mean, _ = TARGETS[half]
    assert mean_error(of_half(half)) <= mean


@pytest.mark.parametrize("half", TARGETS)
def test_no_figure_is_far_off(half: str) -> None:
    _, largest = TARGETS[half]
    far = worst(of_half(half))
    assert far.error <= largest, (
        f"{far.anchor.name}: {far.modelled_ms:.3f} of {far.anchor.published_ms:.3f} ms"
    )


def test_short_and_long_executions_are_neither_all_too_fast_nor_all_too_slow() -> None:
    ordered = sorted(verdicts(), key=lambda verdict: verdict.anchor.published_ms)
    third = len(ordered) // 3
    for part in (ordered[:third], ordered[third:-third], ordered[-third:]):
        ratios = sorted(verdict.ratio for verdict in part)
        assert 0.8 <= ratios[len(ratios) // 2] <= 1.25


def test_advice_has_the_sign_that_the_hardware_gives_it() -> None:
    rows = advice()
    assert all(row.ok for row in rows), table(rows)


def test_the_benchmark_of_anchors_has_a_row_of_each_figure_and_both_errors_of_each_half() -> None:
    rows = anchors()
    assert len(rows) == len(verdicts()) + 2 * len(TARGETS)
    assert all(row.ok for row in rows), table(rows)


def test_few_constants_are_fitted() -> None:
    fitted = [name for name, row in read_costs().items() if row.get("fitted")]
    assert len(fitted) <= 4
