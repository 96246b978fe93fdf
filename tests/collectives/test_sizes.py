"""Sizes and sweeps; times of iterations and their statistics."""

from __future__ import annotations

from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neurontools.collectives.benchmark import check_statistics, statistic
from neurontools.collectives.operations import MAX_BYTES, parse_size, round_sizes, sweep
from neurontools.collectives.running import iteration_times
from neurontools.errors import UsageError


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("1", 1), ("4096", 4096), ("1kb", 1024), ("1KB", 1024), ("512k", 524288), ("32M", 2**25), ("32MB", 2**25),
        ("32mb", 2**25), ("1GB", 2**30), ("1gib", 2**30), ("0.5kb", 512), ("1.5MB", 3 * 2**19), ("100b", 100),
        (" 8 kb ", 8192), ("1TB", MAX_BYTES),
    ],
)  # fmt: skip
def test_a_size(text, nbytes):
    assert parse_size(text) == nbytes


@pytest.mark.parametrize(
    "text", ["", "kb", "-1", "0", "1.3", "3x", "1e6", "1kbb", "2TB", "٣", "0x10", "1,000", "9" * 30]
)
def test_what_is_not_a_size(text):
    with pytest.raises(UsageError):
        parse_size(text)


@pytest.mark.parametrize(
    ("arguments", "sizes"),
    [
        ((1024, 1024, None, None), (1024,)),
        ((1000, 2000, None, None), (1000, 1100, 1200, 1300, 1400, 1500, 1600, 1700, 1800, 1900, 2000)),
        ((1, 5, None, None), (1,)),
        ((1024, 4096, 1024, None), (1024, 2048, 3072, 4096)),
        ((1024, 4096, 2000, None), (1024, 3024)),
        ((1024, 524288, None, 8), (1024, 8192, 65536, 524288)),
        ((1, 4, None, 1.5), (1, 2, 3)),
    ],
)
def test_a_sweep(arguments, sizes):
    minimum, maximum, step, factor = arguments
    assert sweep(minimum, maximum, step=step, factor=factor) == sizes


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((2, 1, None, None), "smallest size 2 is above the largest 1"),
        ((1, 2, 1, 2.0), "exclude each other"),
        ((1, 2, None, 1.0), "is not a finite number above 1"),
        ((1, 2, None, -2.0), "is not a finite number above 1"),
        ((1, 2, None, float("nan")), "is not a finite number above 1"),
        ((1, 2, None, float("inf")), "is not a finite number above 1"),
        ((1, 2**30, 1, None), "more than 4096 sizes"),
        ((1, 2**40, None, 1.0000001), "more than 4096 sizes"),
    ],
)
def test_an_invalid_sweep(arguments, words):
    minimum, maximum, step, factor = arguments
    with pytest.raises(UsageError, match=words):
        sweep(minimum, maximum, step=step, factor=factor)


@given(st.lists(st.integers(1, 10**9), min_size=1), st.integers(1, 4096))
def test_rounded_sizes_are_multiples_and_not_larger(sizes, multiple):
    found = round_sizes(tuple(sizes), multiple)
    assert all(size % multiple == 0 and size > 0 for size in found)
    assert len(set(found)) == len(found) <= len(sizes)
    assert max(found) <= max(*sizes, multiple)


@given(st.floats(1e-7, 1), st.integers(1, 300), st.text())
def test_iterations_spread_around_the_mean(mean_s, count, seed):
    times = iteration_times(mean_s, count, seed)
    assert len(times) == count
    assert fmean(times) == pytest.approx(mean_s)
    assert all(0.5 * mean_s < time < 2 * mean_s for time in times)
    assert times == iteration_times(mean_s, count, seed)


def test_percentiles_differ_from_the_average():
    times = iteration_times(1e-5, 200, "seed")
    values = [statistic(name, times) for name in ("p0", "p50", "p99", "p100")]
    assert values == sorted(set(values))
    assert statistic("avg", times) == pytest.approx(1e-5)
    assert times != iteration_times(1e-5, 200, "another")


@pytest.mark.parametrize(
    ("name", "value"), [("p0", 1), ("p25", 1), ("p50", 2), ("p51", 3), ("p75", 3), ("p99.9", 4), ("p100", 4)]
)
def test_a_percentile_is_that_of_the_nearest_rank(name, value):
    assert statistic(name, (4, 2, 1, 3)) == value


def test_statistics_are_checked_and_come_once():
    assert check_statistics(["avg", "p50", "avg"]) == ("avg", "p50")
    for name in ("max", "p101", "p", "P50", "p1000"):
        with pytest.raises(UsageError, match="unknown statistic"):
            check_statistics([name])
