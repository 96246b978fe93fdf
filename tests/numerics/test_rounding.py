"""Rounding against a reference that knows only the list of a format's values, as exact fractions."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from neurontools.errors import UsageError
from neurontools.numerics import (
    BF16,
    FORMATS,
    FP8_E3M4,
    FP8_E4M3,
    FP8_E4M3FN,
    FP8_E5M2,
    FP16,
    FP32,
    TF32,
    Format,
    cfp8,
    decode,
    encode,
    round_number,
    round_to,
)
from tests.numerics.reference import nearest, neighbours, positive_values, value_of

NARROW = (TF32, BF16, FP16, FP8_E5M2, FP8_E4M3, FP8_E3M4, FP8_E4M3FN, cfp8(3, 11), cfp8(2, 20))
SMALL = tuple(form for form in NARROW if form.bits <= 16)
BYTES = tuple(form for form in NARROW if form.bits == 8)
DRAWS = 20_000

float32s = st.floats(width=32)


def same(one: float, other: float) -> bool:
    if math.isnan(one) or math.isnan(other):
        return math.isnan(one) and math.isnan(other)
    return one == other and math.copysign(1, one) == math.copysign(1, other)


@pytest.mark.parametrize("form", NARROW, ids=lambda form: form.name)
@given(numbers=st.lists(float32s, min_size=1, max_size=20))
def test_numbers_are_rounded_to_the_nearest_value(form: Format, numbers: list[float]) -> None:
    rounded = round_to(torch.tensor(numbers), form).tolist()
    for number, got in zip(numbers, rounded, strict=True):
        assert same(got, nearest(number, form)), (number, got)


@pytest.mark.parametrize("form", NARROW, ids=lambda form: form.name)
def test_ties_go_to_the_even_value_and_their_float32_neighbours_do_not(form: Format) -> None:
    values = positive_values(form)
    middles = [(one + other) / 2 for one, other in pairwise(values[-40:])]
    middles += [(one + other) / 2 for one, other in pairwise(values[:40])]
    ties = torch.tensor([float(middle) for middle in middles])
    assert ties.double().tolist() == [float(middle) for middle in middles], "float32 has the ties"
    for numbers in (ties, ties.nextafter(torch.tensor(math.inf)), ties.nextafter(torch.tensor(0.0)), -ties):
        for number, got in zip(numbers.tolist(), round_to(numbers, form).tolist(), strict=True):
            assert same(got, nearest(number, form)), (number, got)


@pytest.mark.parametrize(
    ("form", "dtype"), [(FP16, torch.float16), (BF16, torch.bfloat16), (FP8_E5M2, torch.float8_e5m2)]
)
def test_torch_rounds_its_own_types_alike(form: Format, dtype: torch.dtype) -> None:
    bits = torch.randint(-(2**31), 2**31, (200_000,), generator=torch.Generator().manual_seed(1)).int()
    numbers = bits.view(torch.float32)
    assert torch.equal(
        round_to(numbers, form).nan_to_num(12345.0), numbers.to(dtype).float().nan_to_num(12345.0)
    )


@pytest.mark.parametrize("form", SMALL, ids=lambda form: form.name)
def test_patterns_and_values_belong_together(form: Format) -> None:
    codes = torch.arange(1 << form.bits, dtype=torch.int32)
    values = decode(codes, form)
    half = 1 << form.bits - 1
    for sign, part in ((1.0, values[:half]), (-1.0, values[half:])):
        finite = [math.copysign(float(value), sign) for value in positive_values(form)[:-1]]
        assert part[: len(finite)].tolist() == finite
        assert not part[len(finite) :].isfinite().any()
    numbers = ~values.isnan()
    assert torch.equal(encode(values, form)[numbers], codes[numbers])
    assert decode(encode(values[~numbers], form), form).isnan().all()


@pytest.mark.parametrize("form", NARROW, ids=lambda form: form.name)
@given(number=float32s, seed=st.integers(0, 2**32 - 1))
def test_stochastic_rounding_chooses_a_neighbour(form: Format, number: float, seed: int) -> None:
    got = round_to(torch.tensor(number), form, torch.Generator().manual_seed(seed)).item()
    if not math.isfinite(number):
        assert same(got, nearest(number, form))
        return
    below, share = neighbours(abs(Fraction(number)), form)
    allowed = [value_of(below, number, form)] if share < 1 else []
    allowed += [value_of(below + 1, number, form)] if share > 0 else []
    assert any(same(got, value) for value in allowed), (got, allowed)


@pytest.mark.parametrize("form", NARROW, ids=lambda form: form.name)
@pytest.mark.parametrize(("share", "sign"), [(1 / 16, 1), (0.5, 1), (0.8125, -1)])
def test_stochastic_rounding_is_unbiased(form: Format, share: float, sign: int) -> None:
    values = positive_values(form)
    generator = torch.Generator().manual_seed(20)
    for below in (0, 1, len(values) // 2, len(values) - 3):
        exact = sign * float(values[below] + Fraction(share) * (values[below + 1] - values[below]))
        numbers = torch.full((DRAWS,), exact)
        assert numbers[0].item() == exact, "float32 has the number"
        ups = (round_to(numbers, form, generator).abs() > float(values[below])).double().mean().item()
        assert abs(ups - share) < 4.5 * math.sqrt(share * (1 - share) / DRAWS)


@pytest.mark.parametrize("form", NARROW, ids=lambda form: form.name)
def test_stochastic_rounding_depends_on_the_seed_alone(form: Format) -> None:
    numbers = torch.randn(1000, generator=torch.Generator().manual_seed(3))

    def rounded(seed: int) -> torch.Tensor:
        return round_to(numbers, form, torch.Generator().manual_seed(seed))

    torch.manual_seed(1)
    first = rounded(7)
    torch.manual_seed(2)
    assert torch.equal(first, rounded(7))
    assert not torch.equal(first, rounded(8))


@pytest.mark.parametrize("form", NARROW, ids=lambda form: form.name)
@pytest.mark.parametrize("seed", [None, 0])
def test_strides_and_values_of_the_format_stay(form: Format, seed: int | None) -> None:
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    matrix = torch.randn(6, 5).t()
    rounded = round_to(matrix, form, generator)
    assert rounded.stride() == matrix.stride()
    assert torch.equal(round_to(rounded, form, generator), rounded)
    expanded = torch.randn(1, 4).expand(3, 4)
    assert round_to(expanded, form, generator).shape == (3, 4)


def test_documented_limits() -> None:
    largest = {name: form.largest for name, form in FORMATS.items()}
    assert largest["fp16"] == 65504
    assert largest["fp8_e4m3"] == 240
    assert largest["fp8_e4m3fn"] == 448
    assert largest["fp8_e5m2"] == 57344
    assert largest["fp8_e3m4"] == 15.5
    assert largest["bf16"] == torch.finfo(torch.bfloat16).max
    assert largest["fp32"] == torch.finfo(torch.float32).max
    assert FORMATS["tf32"].bits == 19
    for name, form in FORMATS.items():
        assert form.largest == float(positive_values(form)[-2]) if name != "fp32" else True
        assert FP32.smallest <= form.smallest
    assert round_number(1e9, FP8_E4M3) == math.inf
    assert math.isnan(round_number(1e9, FP8_E4M3FN))
    assert round_number(0.1, FP32) == torch.tensor(0.1).item()


def test_cfp8_has_three_layouts_and_an_adjustable_bias() -> None:
    assert cfp8(3).largest == FP8_E4M3.largest
    assert cfp8(4).largest == FP8_E3M4.largest
    assert cfp8(2).largest == FP8_E5M2.largest
    assert cfp8(3, 11).largest == 240 / 16
    with pytest.raises(UsageError, match="mantissa of cFP8: 5 bits"):
        cfp8(5)
    with pytest.raises(UsageError, match="exponent bias of cFP8: 200"):
        cfp8(3, 200)
