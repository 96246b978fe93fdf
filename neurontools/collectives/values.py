"""Test data of every data type, and sums of them that do not depend on the order.

Random floating point values are multiples of 1/8 that the type holds exactly, and sums are kept in float32, in which
all sums of up to 128 such values are exact; they are rounded to the type once, at the end. So any algorithm must give
the same bits as a direct sum. Integers wrap around. fp8 is the E4M3 format without infinities.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from neurontools.collectives.operations import DataType
from neurontools.errors import MissingDependencyError

Array = Any  # a numpy array; numpy is optional

_FP8_MAX = 448.0

RANDOM = "random"
ALL_ONES = "all_ones"

_RAW = {
    DataType.FP8: "uint8",
    DataType.FP8E4: "uint8",
    DataType.BF16: "uint16",
    DataType.FP16: "float16",
    DataType.FP32: "float32",
}
_EIGHTHS = {
    DataType.FP8: 15,
    DataType.FP8E4: 15,
    DataType.BF16: 127,
    DataType.FP16: 1023,
    DataType.FP32: 2**16,
}


def numpy() -> Any:
    """Return the numpy module.

    Raises:
        MissingDependencyError: it is not installed.
    """
    try:
        import numpy as np
    except ImportError as error:
        raise MissingDependencyError(
            "--check moves real data, which needs numpy", "pip install 'neurontools[collectives]'"
        ) from error
    return np


def generate(kind: DataType, count: int, pattern: str, seed: tuple[int, ...]) -> Array:
    """Return test data as the type is stored: raw bits for bf16 and fp8.

    Args:
        kind: the data type.
        count: number of elements.
        pattern: `random` or `all_ones`.
        seed: what the random values depend on.
    """
    np = numpy()
    if pattern == ALL_ONES:
        wide = np.ones(count, np.float32 if kind.is_float else kind.value)
        return encode(kind, wide)
    random = np.random.default_rng(seed)
    if kind.is_float:
        limit = _EIGHTHS[kind]
        return encode(kind, random.integers(-limit, limit + 1, count).astype(np.float32) / np.float32(8))
    limits = np.iinfo(kind.value)
    values: Array = random.integers(limits.min, limits.max, count, dtype=kind.value, endpoint=True)
    return values


def decode(kind: DataType, raw: Array) -> Array:
    """Return values in the type in which they are added up: float32, or the integer type itself."""
    np = numpy()
    if kind is DataType.BF16:
        return (raw.astype(np.uint32) << 16).view(np.float32)
    if kind in {DataType.FP8, DataType.FP8E4}:
        return _fp8_values()[raw]
    return raw.astype(np.float32) if kind.is_float else raw


def encode(kind: DataType, wide: Array) -> Array:
    """Return values as the type is stored, rounded to the nearest, ties to even."""
    np = numpy()
    if kind is DataType.BF16:
        bits = wide.view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    if kind in {DataType.FP8, DataType.FP8E4}:
        return _to_fp8(wide)
    return wide.astype(_RAW.get(kind, kind.value))


def same_bits(left: Array, right: Array) -> bool:
    """Return whether two arrays hold the same bytes."""
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    np = numpy()
    return bool(np.array_equal(left.view(np.uint8), right.view(np.uint8)))


@cache
def _fp8_values() -> Array:
    np = numpy()
    codes = np.arange(256)
    exponent, mantissa = (codes >> 3) & 15, codes & 7
    normal = np.ldexp(1 + mantissa / 8, exponent - 7)
    values = np.where(exponent == 0, np.ldexp(mantissa / 8, -6), normal)
    values[codes & 127 == 127] = np.nan
    return np.where(codes > 127, -values, values).astype(np.float32)


def _to_fp8(wide: Array) -> Array:
    np = numpy()
    size = np.minimum(np.abs(wide), np.float32(_FP8_MAX))
    bits = size.view(np.uint32)
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - (120 << 3)  # exponent bias 127 becomes 7
    small = np.rint(size * np.float32(512)).astype(np.uint32)  # below 2**-6 codes count in steps of 2**-9
    code = np.where(size < np.float32(2**-6), small, normal)
    return (code | np.where(np.signbit(wide), np.uint32(128), np.uint32(0))).astype(np.uint8)
