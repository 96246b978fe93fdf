"""Functions of nki.language that reduce: over free dimensions, and over loops (first generation)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from neurontools.nki import instructions
from neurontools.nki.context import fail, running
from neurontools.nki.dtypes import to_float32
from neurontools.nki.first.dtypes import name_of
from neurontools.nki.first.execution import (
    absent,
    apply,
    compute,
    destination,
    identity_of,
    need_on_chip,
    new_tile,
    on_chip_shape,
    sum_into,
    tile_of,
)
from neurontools.nki.first.index import selection
from neurontools.nki.first.loops import running_total
from neurontools.nki.operators import OPERATORS, MathOperator, as_operator

if TYPE_CHECKING:
    from neurontools.nki.first.tile import Tile
    from neurontools.nki.tensor import NkiTensor


def reduced(
    function: str,
    operator: MathOperator,
    x: Any,
    axis: Any,
    dtype: Any,
    mask: Any,
    *,
    keepdims: bool,
    negate: bool = False,
) -> Tile:
    """Reduce free dimensions of a tile by an operator; elements that the mask excludes do not count."""
    source = tile_of(x, function)
    need_on_chip(function, source)
    axes = {int(item) % source.ndim for item in ((axis,) if isinstance(axis, int | np.integer) else axis)}
    if 0 in axes:
        fail(
            function,
            f"axis {axis}: the partition dimension is not reduced",
            "use nisa.tensor_partition_reduce, or transpose the tile",
        )
    kind = name_of(dtype) if dtype is not None else source.operand.dtype
    kept = [1 if dim in axes else size for dim, size in enumerate(source.shape)]
    shape = on_chip_shape(
        kept if keepdims else [size for dim, size in enumerate(source.shape) if dim not in axes]
    )
    selected = selection(mask, source.shape)
    if selected is False:
        return absent(shape, kind)
    view = source.resolved(function, selected)
    order = [dim for dim in range(source.ndim) if dim not in axes] + sorted(axes)
    if order != sorted(order):
        view = view.permute(order)
    last = tuple(range(source.ndim - len(axes), source.ndim))
    if isinstance(selected, np.ndarray):
        view = _neutral(view, np.transpose(selected, order), operator)
    made = new_tile(shape, kind, filled=selected is not None)
    dst = made.operand
    if isinstance(selected, tuple):
        rest = tuple(
            slice(0, 1) if dim in axes else item
            for dim, item in enumerate(selected)
            if keepdims or dim not in axes
        )
        made.valid = rest + tuple(slice(0, size) for size in shape[len(rest) :])
        dst = destination(made, made.valid, function)
    instructions.tensor_reduce(dst, operator, view, last, negate=negate)
    made.producer = running().records[-1]
    return made


def _neutral(view: NkiTensor, selected: np.ndarray, operator: MathOperator) -> NkiTensor:
    """Return a copy of a view with the neutral element where nothing is selected."""
    made = new_tile(view.shape, view.dtype).operand
    values = view.read("data")
    made.write(np.where(selected, to_float32(values), np.float32(identity_of(operator.name))))
    running().issue("tensor_copy", "vector", (view.access(),), (made.access(),))
    return made


def max(  # noqa: A001
    x: Any, axis: Any, *, dtype: Any = None, mask: Any = None, keepdims: bool = False
) -> Tile:
    """Return the largest values over free dimensions."""
    return reduced("max", OPERATORS["maximum"], x, axis, dtype, mask, keepdims=keepdims)


def min(  # noqa: A001
    x: Any, axis: Any, *, dtype: Any = None, mask: Any = None, keepdims: bool = False
) -> Tile:
    """Return the smallest values over free dimensions."""
    return reduced("min", OPERATORS["minimum"], x, axis, dtype, mask, keepdims=keepdims)


def sum(  # noqa: A001
    x: Any, axis: Any, *, dtype: Any = None, mask: Any = None, keepdims: bool = False
) -> Tile:
    """Add up free dimensions."""
    return reduced("sum", OPERATORS["add"], x, axis, dtype, mask, keepdims=keepdims)


def prod(x: Any, axis: Any, *, dtype: Any = None, mask: Any = None, keepdims: bool = False) -> Tile:
    """Multiply free dimensions."""
    return reduced("prod", OPERATORS["multiply"], x, axis, dtype, mask, keepdims=keepdims)


def all(x: Any, axis: Any, *, dtype: Any = bool, mask: Any = None) -> Tile:  # noqa: A001
    """Return whether all elements of free dimensions are not 0."""
    return reduced("all", OPERATORS["logical_and"], x, axis, dtype, mask, keepdims=False)


def mean(x: Any, axis: Any, *, dtype: Any = None, mask: Any = None, keepdims: bool = False) -> Tile:
    """Return the mean over free dimensions."""
    total = sum(x, axis, dtype=np.float32, mask=mask, keepdims=keepdims)
    selected = selection(mask, x.shape)
    if isinstance(selected, np.ndarray):
        fail("mean", "the mask is not a rectangle")
    axes = {int(item) % x.ndim for item in ((axis,) if isinstance(axis, int | np.integer) else axis)}
    sizes = x.shape if not selected else [item.stop - item.start for item in selected]
    share = 1 / math.prod(sizes[item] for item in axes)
    return _operator("multiply", (total, share), dtype if dtype is not None else x.dtype, total.valid)


def _operator(name: str, operands: tuple[Any, ...], dtype: Any, mask: Any) -> Tile:
    made: Tile = apply(OPERATORS[name], operands, dtype, {"mask": mask})
    return made


def var(x: Any, axis: Any, *, dtype: Any = None, mask: Any = None) -> Tile:
    """Return the variance over free dimensions."""
    average = mean(x, axis, dtype=np.float32, mask=mask, keepdims=True)
    centred = _operator("subtract", (x, average), np.float32, mask)
    squares = _operator("square", (centred,), np.float32, mask)
    return mean(squares, axis, dtype=dtype if dtype is not None else x.dtype, mask=mask)


def softmax(x: Any, axis: Any, *, dtype: Any = None, compute_dtype: Any = None, mask: Any = None) -> Tile:
    """Return the softmax over the last dimensions."""
    del compute_dtype
    largest = max(x, axis, dtype=np.float32, mask=mask, keepdims=True)
    shifted = _operator("subtract", (x, largest), np.float32, mask)
    exponentials = _operator("exp", (shifted,), np.float32, mask)
    total = sum(exponentials, axis, dtype=np.float32, mask=mask, keepdims=True)
    inverse = _operator("reciprocal", (total,), None, total.valid)
    return _operator("multiply", (exponentials, inverse), dtype if dtype is not None else x.dtype, mask)


def rms_norm(
    x: Any,
    w: Any,
    axis: Any,
    n: int,
    epsilon: float = 1e-6,
    *,
    dtype: Any = None,
    compute_dtype: Any = None,
    mask: Any = None,
) -> Tile:
    """Return `x / RMS(x) * w`, the mean over `n` elements."""
    kind = next((item for item in (dtype, compute_dtype) if item is not None), x.dtype)
    squares = _operator("square", (x,), np.float32, mask)
    total = sum(squares, axis, dtype=np.float32, mask=mask, keepdims=True)
    average = _operator("multiply", (total, 1 / n), np.float32, total.valid)
    raised = _operator("add", (average, epsilon), np.float32, total.valid)
    root = _operator("rsqrt", (raised,), None, total.valid)
    normal = _operator("multiply", (x, root), np.float32, mask)
    return _operator("multiply", (normal, w), kind, mask)


def loop_reduce(x: Any, op: Any, loop_indices: Any, *, dtype: Any = None, mask: Any = None) -> Tile:
    """Return the reduction of a tile over the iterations of loops, up to this one."""
    source, operator = tile_of(x, "loop_reduce"), as_operator(op)
    if operator is None:
        fail("loop_reduce", f"op is {op!r}, not an operator", "use an operator such as np.add")
    kind = name_of(dtype) if dtype is not None else source.operand.dtype
    selected = selection(mask, source.shape)

    def add(total: Tile | None) -> Tile:
        if selected is False:
            return total or absent(source.shape, kind)
        if total is None and selected is None:
            return compute("loop_reduce", source.shape, kind, None, instructions.tensor_copy, source)
        if total is None:
            total = new_tile(source.shape, kind)
            total.operand.write(np.full(source.shape, identity_of(operator.name), dtype=np.float32))
            total.valid = selected
        sum_into(total, operator, source, selected)
        return total

    total = running_total(loop_indices, add)
    if selected is False:
        return absent(source.shape, kind)
    return total
