"""Data types: sizes, rounding, and sums that do not depend on the order."""

from __future__ import annotations

import builtins

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neurontools.collectives.checking import ALL_ONES, RANDOM, decode, encode, generate, numpy, same_bits
from neurontools.collectives.operations import DataType, parse_name
from neurontools.errors import MissingDependencyError, UsageError

FLOATS = [kind for kind in DataType if kind.is_float]
SIZES = {
    "uint8": 1, "int8": 1, "fp8": 1, "fp8e4": 1, "uint16": 2, "int16": 2, "fp16": 2, "bf16": 2,
    "uint32": 4, "int32": 4, "fp32": 4,
}  # fmt: skip


@pytest.mark.parametrize("kind", list(DataType))
def test_an_element_has_its_size(kind):
    assert kind.nbytes == SIZES[kind.value]
    assert generate(kind, 8, RANDOM, (1,)).nbytes == 8 * kind.nbytes


def test_there_are_the_types_of_the_documents():
    assert {kind.value for kind in DataType} == set(SIZES)
    with pytest.raises(UsageError, match="unknown data type 'fp64'"):
        parse_name(DataType, "fp64", "data type")


@pytest.mark.parametrize("kind", FLOATS)
def test_what_is_stored_survives_decoding_and_encoding(kind):
    raw = generate(kind, 4096, RANDOM, (3,))
    assert same_bits(encode(kind, decode(kind, raw)), raw)
    assert len(np.unique(decode(kind, raw))) > 20


@pytest.mark.parametrize("kind", list(DataType))
def test_all_ones_are_ones(kind):
    assert set(decode(kind, generate(kind, 16, ALL_ONES, ())).tolist()) == {1}


@settings(max_examples=200)
@given(st.floats(-500, 500, width=32))
def test_fp8_rounds_to_the_nearest_and_ties_to_even(value):
    codes = np.array([code for code in range(256) if code & 127 != 127], np.uint8)
    known = decode(DataType.FP8, codes).astype(np.float64)
    code = encode(DataType.FP8, np.array([value], np.float32))[0]
    clipped = min(max(value, -448.0), 448.0)
    distance = np.abs(known - clipped)
    nearest = codes[distance == distance.min()]
    assert code in nearest
    if len({float(known[list(codes).index(one)]) for one in nearest}) > 1:
        assert code % 2 == 0


@settings(max_examples=100)
@given(st.floats(-(2.0**100), 2.0**100, width=32))
def test_bf16_rounds_to_the_nearest(value):
    code = int(encode(DataType.BF16, np.array([value], np.float32))[0])
    around = decode(DataType.BF16, np.array([max(code - 1, 0), code, code + 1], np.uint16)).astype(np.float64)
    errors = np.abs(around - np.float64(np.float32(value)))
    assert errors[1] <= min(errors[0], errors[2]) or code & 0x7FFF == 0


@pytest.mark.parametrize("kind", list(DataType))
def test_a_sum_does_not_depend_on_the_order(kind):
    parts = [decode(kind, generate(kind, 256, RANDOM, (rank,))) for rank in range(128)]
    forward, backward = parts[0], parts[-1]
    for one, other in zip(parts[1:], reversed(parts[:-1]), strict=True):
        forward, backward = forward + one, backward + other
    assert same_bits(encode(kind, forward), encode(kind, backward))


def test_different_seeds_give_different_data():
    one, other = (generate(DataType.UINT8, 64, RANDOM, (seed,)) for seed in (1, 2))
    assert not same_bits(one, other)
    assert not same_bits(one, one[:32])


def test_without_numpy_the_extra_is_named(monkeypatch):
    real = builtins.__import__

    def without(name, *rest):
        if name == "numpy":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingDependencyError, match="needs numpy") as caught:
        numpy()
    assert caught.value.remedy == "pip install 'neurontools[collectives]'"
