"""A reference for rounding that knows only the list of a format's values, as exact fractions."""

from __future__ import annotations

import math
from bisect import bisect_right
from fractions import Fraction
from functools import cache
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from neurontools.numerics import Format


@cache
def positive_values(form: Format) -> list[Fraction]:
    """Every finite value from zero on, in the order of its bit pattern, and the one after the largest."""
    values = []
    for exponent in range(1 << form.exponent_bits):
        for fraction in range(1 << form.mantissa_bits):
            significand = Fraction(fraction, 1 << form.mantissa_bits) + (exponent > 0)
            values.append(significand * Fraction(2) ** (max(exponent, 1) - form.bias))
    reserved = 1 << form.mantissa_bits if form.has_infinities else 1
    return values[: len(values) - reserved + 1]


def neighbours(value: Fraction, form: Format) -> tuple[int, Fraction]:
    """The pattern of the value at or below, and how far on the way to the next one the magnitude is."""
    values = positive_values(form)
    below = min(bisect_right(values, value) - 1, len(values) - 2)
    return below, min((value - values[below]) / (values[below + 1] - values[below]), Fraction(1))


def value_of(pattern: int, sign: float, form: Format) -> float:
    values = positive_values(form)
    if pattern < len(values) - 1:
        return math.copysign(float(values[pattern]), sign)
    return math.copysign(math.inf, sign) if form.has_infinities else math.nan


def nearest(number: float, form: Format) -> float:
    if math.isnan(number):
        return math.nan
    if math.isinf(number):
        return number if form.has_infinities else math.nan
    below, share = neighbours(abs(Fraction(number)), form)
    up = share > Fraction(1, 2) or (share == Fraction(1, 2) and below % 2 == 1)
    return value_of(below + up, number, form)


def nearest_of(numbers: torch.Tensor, form: Format) -> torch.Tensor:
    """Round a float32 tensor."""
    rounded = [nearest(number, form) for number in numbers.flatten().tolist()]
    return torch.tensor(rounded).view(numbers.shape)
