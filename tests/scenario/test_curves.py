"""Curves stay within their bounds, and their integrals are what the values add up to."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neurontools.scenario.curves import Constant, Noise, Pieces, Ramp, Scaled, Sine, Sum

LEVEL = st.floats(0, 100)
LENGTH = st.floats(0.5, 300)
TIME = st.floats(0, 5000)

simple = st.one_of(
    st.builds(Constant, LEVEL),
    st.builds(Ramp, LEVEL, LEVEL, LENGTH),
    st.builds(
        lambda one, other, period, phase: Sine(min(one, other), max(one, other), period, phase),
        LEVEL,
        LEVEL,
        LENGTH,
        st.floats(0, 1),
    ),
    st.builds(lambda mean, share, period: Noise(mean, mean * share, period), LEVEL, st.floats(0, 1), LENGTH),
)
pieces = st.builds(
    lambda parts, repeat: Pieces(parts, 0 if repeat else None),
    st.lists(st.tuples(LENGTH, simple), min_size=1, max_size=4),
    st.booleans(),
)
curves = st.one_of(
    simple,
    pieces,
    st.builds(lambda parts: Sum(tuple(parts)), st.lists(simple, min_size=1, max_size=3)),
    st.builds(Scaled, simple, st.floats(0, 3)),
)


@settings(max_examples=80)
@given(curves, TIME, st.text(max_size=5))
def test_values_stay_within_the_bounds(curve, time_s, seed):
    for one in (curve, curve.seeded(seed)):
        assert one.low - 1e-6 <= one.value(time_s) <= one.high + 1e-6
        assert one.low == pytest.approx(curve.low, abs=1e-6)
        assert one.high == pytest.approx(curve.high, abs=1e-6)


@settings(max_examples=80)
@given(curves, TIME, st.floats(0.001, 100))
def test_integrals_never_fall_and_grow_as_the_value_says(curve, time_s, step_s):
    before, after = curve.integral(time_s), curve.integral(time_s + step_s)
    tolerance = 1e-9 * (1 + after)
    assert before + curve.low * step_s - tolerance <= after <= before + curve.high * step_s + tolerance


@settings(max_examples=15)
@given(curves, st.floats(1, 400))
def test_an_integral_is_the_sum_of_many_values(curve, end_s):
    steps = 4000
    width_s = end_s / steps
    total = sum(curve.value((index + 0.5) * width_s) for index in range(steps)) * width_s
    jumps = 4 * (1 + end_s / 0.5) * width_s * (curve.high - curve.low)  # a step falls into one of the strips
    assert curve.integral(end_s) == pytest.approx(total, abs=jumps + 0.02 * end_s * (1 + curve.high) / 100)


def test_noise_belongs_to_its_seed():
    noise = Noise(50, 10, 20)
    assert noise.seeded("a").value(7) == noise.seeded("a").value(7)
    assert noise.seeded("a").value(7) != noise.seeded("b").value(7)


def test_pieces_repeat_from_one_of_them():
    curve = Pieces([(10, Constant(0)), (20, Constant(90)), (5, Constant(3))], repeat_from=1)
    assert [curve.value(time_s) for time_s in (0, 9.9, 10, 29.9, 30, 34.9, 35, 54.9, 55, 60)] == [
        *(0, 0, 90, 90, 3, 3, 90, 90, 3, 90)
    ]
    assert curve.integral(60) == 2 * (20 * 90 + 5 * 3)
    assert curve.value(57) == 3


def test_the_last_of_pieces_that_do_not_repeat_lasts():
    curve = Pieces([(10, Constant(1)), (10, Ramp(0, 10, 10))])
    assert curve.value(1000) == 10
    assert curve.integral(30) == 10 + 50 + 100
