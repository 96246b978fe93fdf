"""How operators are computed: in float32, on bits, or exactly on 32-bit integers; and reductions over axes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from neurontools.nki.dtypes import to_float32
from neurontools.nki.instructions.operands import (
    need_operator,
    scalar,
)

if TYPE_CHECKING:
    from neurontools.nki.operators import MathOperator
    from neurontools.nki.tensor import NkiTensor


def binary(operator: MathOperator, first: Any, second: Any, *, is_exact: bool = False) -> np.ndarray:
    """Compute an operator: on bits, exactly on 32-bit integers, or else in float32."""
    if operator.is_bitwise:
        if operator.arity == 1:
            return np.asarray(operator.compute(first))
        if isinstance(second, np.ndarray) and second.dtype != first.dtype:
            second = second.astype(first.dtype)
        return np.asarray(operator.compute(first, second))
    if is_exact:
        return np.asarray(operator.compute(first.astype(np.int64), second.astype(np.int64)))
    first = to_float32(first) if isinstance(first, np.ndarray) else first
    if operator.arity == 1:
        return np.asarray(operator.compute(first))
    second = to_float32(second) if isinstance(second, np.ndarray) else second
    return np.asarray(operator.compute(first, second))


def apply_scalar(
    opcode: str, values: np.ndarray, op: Any, operand: Any, data: NkiTensor, *, reverse: bool, argument: str
) -> np.ndarray:
    """Compute an operator of a tile and a scalar operand."""
    operator = need_operator(opcode, op, argument.replace("operand", "op"))
    if operator.arity == 1 and not operator.is_bitwise:
        return binary(operator, values, None)
    if operator.is_bitwise:
        column = scalar(opcode, argument, operand, data, values.dtype)
        if not isinstance(column, np.ndarray):
            column = np.full((1,) * values.ndim, column, dtype=values.dtype)
        if reverse:
            return binary(operator, np.broadcast_to(column, values.shape).copy(), values)
        return binary(operator, values, column)
    column = scalar(opcode, argument, operand, data)
    values = to_float32(values)
    return binary(operator, column, values) if reverse else binary(operator, values, column)


def reduce_axis(operator: MathOperator, values: np.ndarray, axis: Any) -> np.ndarray:
    """Reduce float32 values over axes by an operator."""
    match operator.name:
        case "add" | "average":
            return np.asarray(np.add.reduce(values, axis=axis))
        case "maximum":
            return np.asarray(np.maximum.reduce(values, axis=axis))
        case "minimum":
            return np.asarray(np.minimum.reduce(values, axis=axis))
        case "multiply":
            return np.asarray(np.multiply.reduce(values, axis=axis))
        case "abs_max":
            return np.asarray(np.maximum.reduce(np.abs(values), axis=axis))
        case "abs_min":
            return np.asarray(np.minimum.reduce(np.abs(values), axis=axis))
    axes = axis if isinstance(axis, tuple) else (axis,)
    moved = np.moveaxis(values, axes, range(-len(axes), 0)).reshape(
        *[s for n, s in enumerate(values.shape) if n not in axes], -1
    )
    result = moved[..., 0]
    for column in range(1, moved.shape[-1]):
        result = operator.compute(result, moved[..., column])
    return np.asarray(result)
