"""The ranges of `neurontools estimate`: those of the calibration half, in the file as the script prints them."""

from __future__ import annotations

import re

import pytest
import yaml

from benchmarks.engine_model.model_anchors import ModelAnchor, model_anchors
from benchmarks.engine_model.model_times import ModelTime
from benchmarks.engine_model.published import CALIBRATION, REPORT
from benchmarks.engine_model.ranges import FAMILIES, FEW, NARROWEST, range_of, ranges_text
from benchmarks.model_anchors import calibration_times
from neurontools.estimate.steps import ranges

SOURCE = r"90 % of (\d+) published times, (\d{4}-\d\d-\d\d)(, at least 0\.5 to 2\.0)?"


def time_of(anchor: ModelAnchor, factor: float) -> ModelTime:
    """Return a modelled time from which the published one lies a factor."""
    return ModelTime(anchor, anchor.published_ms / factor, 0.0)


def test_nine_of_ten_factors_lie_in_a_range_and_few_ones_have_a_wide_one() -> None:
    for count in (10, 19, 20, 21, 59, 100):
        factors = [1 + number / 1000 for number in range(count)]
        low, high = range_of(factors)
        assert sum(low <= factor <= high for factor in factors) >= 0.9 * count
    outer = [0.1, *[1.0] * 18, 9.0]
    assert range_of(outer) == (1.0, 1.0)
    assert range_of([1.0] * (FEW - 1)) == NARROWEST
    assert range_of([0.3, 1.0, 3.0]) == (0.3, 3.0)


def test_rows_of_the_report_half_change_no_range() -> None:
    shown = next(anchor for anchor in model_anchors() if anchor.half == CALIBRATION)
    hidden = next(anchor for anchor in model_anchors() if anchor.half == REPORT)
    few = [time_of(shown, 1.1)] * FEW
    assert ranges_text([*few, *[time_of(hidden, 50.0)] * FEW], "") == ranges_text(few, "")


def test_the_file_has_each_family_with_the_number_of_its_figures() -> None:
    counts = dict.fromkeys(FAMILIES, 0)
    for family, kinds in FAMILIES.items():
        counts[family] = sum(
            anchor.half == CALIBRATION and (not kinds or anchor.family in kinds) for anchor in model_anchors()
        )
    assert list(ranges()) == list(FAMILIES)
    for family, found in ranges().items():
        match = re.fullmatch(SOURCE, found.source)
        assert match, family
        assert 0 < int(match[1]) <= counts[family]
        assert (match[3] is not None) == (int(match[1]) < FEW)
        assert found.low < 1 < found.high


@pytest.mark.torch
def test_the_range_of_encoders_is_that_of_its_figures() -> None:
    text = ranges_text(calibration_times("encoder"), "today")
    found, file = yaml.safe_load(text)["encoder"], ranges()["encoder"]
    assert found["source"].split(",")[0] == file.source.split(",")[0]
    assert [found["low"], found["high"]] == pytest.approx([file.low, file.high], rel=0.05)
