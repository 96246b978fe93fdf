"""Data types as kernels of the first generation see them (types of numpy and ml_dtypes), and their promotion.

Source: AWS Neuron documentation 2.26, "NKI Type Promotion", "Weakly Typed Scalar Type Inference".
"""

from __future__ import annotations

from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

from neurontools.nki.dtypes import FLOATS, dtype_name

tfloat32 = np.dtype("V4")
PUBLIC: dict[str, Any] = {
    "bool_": np.bool_,
    "int8": np.int8,
    "int16": np.int16,
    "int32": np.int32,
    "uint8": np.uint8,
    "uint16": np.uint16,
    "uint32": np.uint32,
    "float16": np.float16,
    "float32": np.float32,
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "tfloat32": tfloat32,
    "float8_e4m3": np.dtype(ml_dtypes.float8_e4m3),
    "float8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
}
"""Types by their names in nki.language."""
_FLOAT_ORDER = ("float8_e5m2", "float8_e4m3", "bfloat16", "float16", "tfloat32", "float32")
_WIDENED = {
    frozenset({"float16", "bfloat16"}): "float32",
    frozenset({"float8_e4m3", "float8_e5m2"}): "bfloat16",
}


def name_of(dtype: Any) -> str:
    """Return the NKI name of a type."""
    return "tfloat32" if isinstance(dtype, np.dtype) and dtype == tfloat32 else dtype_name(dtype)


@cache
def public_dtype(name: str) -> np.dtype[Any]:
    """Return the type of numpy or ml_dtypes of an NKI type."""
    if name == "tfloat32":
        return tfloat32
    return np.dtype(getattr(ml_dtypes, name, None) or name)


def scalar_type(value: Any) -> str:
    """Return the type of a number: a scalar of numpy has one, a number of Python takes the widest."""
    if isinstance(value, bool):
        return "uint8"
    if isinstance(value, int):
        return "int32"
    return "float32" if isinstance(value, float) else dtype_name(np.asarray(value).dtype)


@cache
def promoted(first: str, second: str) -> str:
    """Return the type of the result of an operator of two types."""
    if first == second:
        return first
    floats = [name for name in (first, second) if name in FLOATS]
    if len(floats) == 1:
        return floats[0]
    pair = frozenset((first, second))
    if floats:
        ordered = [name for name in _FLOAT_ORDER if name in pair]
        return _WIDENED.get(pair) or (ordered[-1] if ordered else "float32")
    wide = np.promote_types(_integer(first), _integer(second))
    return "float32" if wide.itemsize > 4 or wide.kind == "f" else str(wide.name)


def _integer(name: str) -> np.dtype[Any]:
    return np.dtype("uint8" if name == "bool" else name)
