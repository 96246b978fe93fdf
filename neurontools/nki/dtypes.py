"""Data types of kernels: their names, how numpy holds them, and how values are cast.

Sources: AWS Neuron documentation 2.32, "nki.language" (names), "NKI migration guide" (float32 to integers rounds to the
nearest even number and saturates), "Data types" (bits).
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from neurontools.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

_NUMPY: dict[str, Any] = {
    "bool": np.bool_,
    "int8": np.int8,
    "int16": np.int16,
    "int32": np.int32,
    "uint8": np.uint8,
    "uint16": np.uint16,
    "uint32": np.uint32,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "tfloat32": np.float32,
    "float32": np.float32,
    "float8_e4m3": ml_dtypes.float8_e4m3,
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2,
    "float8_e8m0fnu": ml_dtypes.float8_e8m0fnu,
    "float8_e4m3fn_x4": np.uint32,
    "float8_e5m2_x4": np.uint32,
    "float4_e2m1fn_x4": np.uint16,
}
NAMES = tuple(_NUMPY)
FLOATS = frozenset(name for name in NAMES if "float" in name)
INTEGERS = frozenset(name for name in NAMES if "int" in name)
PACKED = {
    "float8_e4m3fn_x4": "float8_e4m3fn",
    "float8_e5m2_x4": "float8_e5m2",
    "float4_e2m1fn_x4": "float4_e2m1fn",
}
"""Types of four packed elements, with the type of an element."""
_FLOAT32, _FLOAT16 = np.dtype(np.float32), np.dtype(np.float16)
_FEW = 4096
_FRACTION_BITS = 23 - 10  # more in float32 than in float16
_SIGN_AND_NUMBER = np.int32(-(1 << 31) | ((1 << 15) - 1) << _FRACTION_BITS)
_EXPONENT_SHIFT = np.float32(2.0 ** (127 - 15))
_FLOAT16_END = np.float32(1 << 16)
_FLOAT8 = frozenset(np.dtype(_NUMPY[name]) for name in ("float8_e4m3", "float8_e4m3fn", "float8_e5m2"))
_LOW_PRECISION = frozenset({"float16", "bfloat16", "float8_e4m3", "float8_e4m3fn", "float8_e5m2"})
_CUSTOM = _LOW_PRECISION - {"float16"}
_PRECISION_VARIABLE = "NKI_PRECISE_FP"
_custom_types_are_wide: ContextVar[bool] = ContextVar("custom_types_are_wide", default=False)
_ALIASES = {"bool_": "bool", "float": "float32", "int64": "int32", "float64": "float32", "uint64": "uint32"}
_TF32_DROPPED_BITS = 13
_NEAREST_EVEN = np.uint32(1 << (_TF32_DROPPED_BITS - 1)) - np.uint32(1)


@cache
def dtype_name(dtype: Any) -> str:
    """Return the NKI name of a data type: a name, or a type of numpy, ml_dtypes, torch or jax.

    Raises:
        UsageError: NKI has no such type.
    """
    name = dtype if isinstance(dtype, str) else "None" if dtype is None else _foreign_name(dtype)
    name = _ALIASES.get(name, name)
    if name not in _NUMPY:
        raise UsageError(f"unknown data type of a kernel: {dtype!r}", f"NKI has {', '.join(NAMES)}")
    return name


def packed_dtype(name: str) -> np.dtype[Any]:
    """Return a numpy type of arrays whose elements are four packed numbers: an integer with a field of the type's name."""
    return np.dtype((_NUMPY[name], {name: (_NUMPY[name], 0)}))


def _foreign_name(dtype: Any) -> str:
    names = getattr(dtype, "names", None)
    if names:
        return str(names[0])
    text = str(dtype)
    if text.startswith("torch."):
        return text.removeprefix("torch.")
    try:
        return str(np.dtype(dtype).name)
    except TypeError:
        return text


def is_precise() -> bool:
    """Return whether narrow floating-point types are rounded; `NKI_PRECISE_FP=0` keeps them in float32."""
    return os.environ.get(_PRECISION_VARIABLE, "1") != "0"


@contextmanager
def wide_custom_types() -> Iterator[None]:
    """Keep the types that numpy lacks in float32, as the simulator of the first generation does.

    `NKI_PRECISE_FP=1` rounds them all the same.
    """
    token = _custom_types_are_wide.set(_PRECISION_VARIABLE not in os.environ)
    try:
        yield
    finally:
        _custom_types_are_wide.reset(token)


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return the numpy type that holds elements of an NKI type."""
    precise = name not in _LOW_PRECISION or (
        is_precise() and not (name in _CUSTOM and _custom_types_are_wide.get())
    )
    return _held(name, precise)


@cache
def _held(name: str, precise: bool) -> np.dtype[Any]:
    return np.dtype(_NUMPY[name] if precise else np.float32)


@cache
def item_bytes(name: str) -> int:
    """Return the bytes of an element on the device."""
    return int(np.dtype(_NUMPY[name]).itemsize)


@cache
def packed_element(name: str) -> np.dtype[Any]:
    """Return the numpy type of one of the four elements of a packed type; float4 elements have a byte each."""
    return np.dtype(getattr(ml_dtypes, PACKED[name]))


def to_float32(values: np.ndarray) -> np.ndarray:
    """Return values as float32; arrays of float32 are returned as they are."""
    dtype = values.dtype
    if dtype == _FLOAT32:
        return values
    if dtype in _FLOAT8:
        decoded: np.ndarray = _decoded(dtype)[values.view(np.uint8)]
        return decoded
    if dtype == _FLOAT16 and values.size > _FEW:
        return _widened(values)
    return values.astype(np.float32)


def _widened(values: np.ndarray) -> np.ndarray:
    """Return float16 as float32: moving the bits is faster than numpy's cast."""
    bits = values.view(np.int16).astype(np.int32)
    bits <<= np.int32(_FRACTION_BITS)
    bits &= _SIGN_AND_NUMBER
    wide = bits.view(np.float32)
    wide *= _EXPONENT_SHIFT
    if (np.abs(wide) >= _FLOAT16_END).any():  # infinity and NaN have the largest exponent
        return values.astype(np.float32)
    return wide


@cache
def _decoded(dtype: np.dtype[Any]) -> np.ndarray:
    """Return by code the float32 value of a type of a byte: a look-up is faster than the cast of ml_dtypes."""
    return np.arange(256, dtype=np.uint8).view(dtype).astype(np.float32)


def cast(values: np.ndarray, name: str) -> np.ndarray:
    """Return values as elements of an NKI type, as engines write them."""
    wanted = numpy_dtype(name)
    if name == "tfloat32":
        return round_tf32(to_float32(values))
    if values.dtype == wanted:
        return values
    if wanted.kind in "iu":
        return _to_integer(values, wanted)
    if wanted.kind == "b":
        return values != 0
    return to_float32(values).astype(wanted)


def _to_integer(values: np.ndarray, wanted: np.dtype[Any]) -> np.ndarray:
    if values.dtype.kind in "iub":
        limits = np.iinfo(wanted)
        if values.dtype.kind == "b" or np.can_cast(values.dtype, wanted):
            return values.astype(wanted)
        return np.clip(values.astype(np.int64), limits.min, limits.max).astype(wanted)
    limits = np.iinfo(wanted)
    exact = np.rint(to_float32(values).astype(np.float64))
    return np.nan_to_num(np.clip(exact, limits.min, limits.max), nan=0.0).astype(wanted)


def round_tf32(values: np.ndarray) -> np.ndarray:
    """Return float32 values rounded to the ten bits of mantissa of tfloat32, ties to even."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    odd = (bits >> np.uint32(_TF32_DROPPED_BITS)) & np.uint32(1)
    rounded = (bits + _NEAREST_EVEN + odd) & ~np.uint32((1 << _TF32_DROPPED_BITS) - 1)
    return np.where(np.isfinite(values), rounded.view(np.float32), values)
