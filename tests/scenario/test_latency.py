"""Latency counts: they add up, never fall, and follow the distribution."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neurontools.scenario.model import Latency, bucket_of

distributions = st.builds(
    lambda p50_s, ratio, share, factor: Latency(p50_s, p50_s * ratio, share, factor),
    st.floats(1e-5, 10),
    st.floats(1, 20),
    st.floats(0, 0.5),
    st.floats(1, 100),
)


@settings(max_examples=60)
@given(distributions, st.integers(0, 10**7), st.integers(0, 5000), st.integers(0, 2**20))
def test_counts_add_up_and_never_fall(latency, executions, more, offset):
    before = latency.counts(executions, offset)
    after = latency.counts(executions + more, offset)
    assert sum(before) == executions
    assert sum(after) == executions + more
    assert all(one <= other for one, other in zip(before, after, strict=True))


def test_half_of_the_executions_take_the_median_or_less():
    counts = Latency(0.016, 0.048).counts(100_000)
    below = sum(counts[: bucket_of(0.016)])
    within = sum(counts[: bucket_of(0.016) + 1])
    assert below <= 50_000 <= within


def test_the_tail_is_where_it_should_be():
    counts = Latency(0.010, 0.010, tail_share=0.02, tail_factor=10).counts(100_000)
    assert counts[bucket_of(0.010)] == pytest.approx(98_000, rel=0.005)
    assert counts[bucket_of(0.100)] == pytest.approx(2_000, rel=0.05)


def test_the_mean_includes_the_tail():
    assert Latency(0.010, 0.010, 0.5, 3.0).mean_s == pytest.approx(0.020, rel=0.01)
