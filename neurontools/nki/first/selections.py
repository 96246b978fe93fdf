"""Reductions and selections of nki.isa (first generation)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from neurontools.nki import instructions
from neurontools.nki.constants import reduce_cmd as commands
from neurontools.nki.context import fail, running
from neurontools.nki.dtypes import to_float32
from neurontools.nki.first.dtypes import name_of
from neurontools.nki.first.execution import PSUM, absent, compute, destination, new_tile, part_for
from neurontools.nki.first.index import Mask, selection
from neurontools.nki.first.language import fp32
from neurontools.nki.first.operands import by_row, chip_tile, result_type, second_result
from neurontools.nki.first.reductions import reduced
from neurontools.nki.first.tile import Tile
from neurontools.nki.instructions.operands import need_operator
from neurontools.nki.operators import OPERATORS

if TYPE_CHECKING:
    from neurontools.nki.tensor import NkiTensor

_STATISTICS, _LARGEST, _GPSIMD_PARTITIONS = 6, 8, 16


def tensor_reduce(
    op: Any,
    data: Any,
    axis: Any,
    *,
    mask: Any = None,
    dtype: Any = None,
    negate: bool = False,
    keepdims: bool = False,
) -> Tile:
    """Reduce free dimensions of a tile."""
    operator = need_operator("tensor_reduce", op)
    return reduced("tensor_reduce", operator, data, axis, dtype, mask, keepdims=keepdims, negate=negate)


def tensor_partition_reduce(op: Any, data: Any, *, mask: Any = None, dtype: Any = None) -> Tile:
    """Reduce over the partitions."""
    source = chip_tile("tensor_partition_reduce", data)
    shape = (1, *source.shape[1:])
    selected = selection(mask, source.shape)
    if selected is False:
        return absent(shape, result_type(dtype, source))
    made = new_tile(shape, result_type(dtype, source), filled=selected is not None)
    if isinstance(selected, tuple):
        made.valid = (slice(0, 1), *selected[1:])
    view = source.resolved("tensor_partition_reduce", selected)
    if view.buffer is PSUM:
        copied = new_tile(view.shape, view.dtype).operand
        instructions.tensor_copy(copied, view)
        view = copied
    instructions.tensor_partition_reduce(destination(made, made.valid, "tensor_partition_reduce"), op, view)
    made.producer = running().records[-1]
    return made


def affine_select(
    pred: Any, on_true_tile: Any, on_false_value: Any, *, mask: Any = None, dtype: Any = None
) -> Tile:
    """Keep elements where an affine comparison holds, and write a constant elsewhere."""
    source = chip_tile("affine_select", on_true_tile)
    if not isinstance(pred, Mask | bool):
        fail("affine_select", f"pred is a {type(pred).__name__}, not a comparison of index expressions")
    holds = selection(pred, source.shape)
    selected = selection(mask, source.shape)

    def emit(dst: NkiTensor, view: NkiTensor) -> None:
        values = to_float32(view.read("on_true_tile"))
        if holds is False:
            values = np.full(values.shape, on_false_value, dtype=np.float32)
        elif holds is not None:
            true = holds
            if isinstance(holds, tuple):
                true = np.zeros(source.shape, dtype=np.bool_)
                true[holds] = True
            true = true[selected] if isinstance(selected, tuple) else true
            values = np.where(true, values, np.float32(on_false_value))
        dst.write(values)
        running().issue("affine_select", "gpsimd", (view.access(),), (dst.access(),))

    return compute("affine_select", source.shape, result_type(dtype, source), mask, emit, source)


def range_select(
    *,
    on_true_tile: Any,
    comp_op0: Any,
    comp_op1: Any,
    bound0: Any,
    bound1: Any,
    reduce_cmd: Any = commands.idle,
    reduce_res: Any = None,
    reduce_op: Any = OPERATORS["maximum"],
    range_start: int = 0,
    on_false_value: float = fp32.min,
    mask: Any = None,
    dtype: Any = None,
) -> Tile:
    """Keep the elements whose index compares true with two bounds, and reduce them."""
    source = chip_tile("range_select", on_true_tile)
    result = second_result(reduce_res, None, "range_select")

    def emit(dst: NkiTensor, view: NkiTensor, low: Any, high: Any) -> None:
        instructions.range_select(
            dst,
            view,
            comp_op0,
            comp_op1,
            low,
            high,
            reduce_cmd,
            result,
            reduce_op,
            range_start,
            on_false_value,
        )

    return compute(
        "range_select", source.shape, result_type(dtype, source), mask, emit, source, bound0, bound1
    )


def select_reduce(
    *,
    dst: Any,
    predicate: Any,
    on_true: Any,
    on_false: Any,
    reduce_res: Any = None,
    reduce_cmd: Any = commands.idle,
    reduce_op: Any = OPERATORS["maximum"],
    reverse_pred: bool = False,
    mask: Any = None,
    dtype: Any = None,
) -> None:
    """Select elements by a predicate tile, and reduce them."""
    del dtype
    function = "select_reduce"
    target = chip_tile(function, dst)
    selected = selection(mask, target.shape)
    if selected is False:
        return
    holds, true = (
        part_for(chip_tile(function, item), selected, target.shape, function) for item in (predicate, on_true)
    )
    other = part_for(on_false, selected, target.shape, function) if isinstance(on_false, Tile) else on_false
    result = second_result(reduce_res, None, function)
    view = destination(target, selected, function)
    instructions.select_reduce(view, holds, true, other, result, reduce_cmd, reduce_op, reverse_pred)


def bn_stats(data: Any, *, mask: Any = None, dtype: Any = None) -> Tile:
    """Compute count, mean and variance times count of the even and the odd elements of each partition."""
    source = chip_tile("bn_stats", data)
    return by_row(
        "bn_stats",
        source,
        mask,
        (source.shape[0], _STATISTICS),
        result_type(dtype, source),
        instructions.bn_stats,
    )


def bn_aggr(data: Any, *, mask: Any = None, dtype: Any = None) -> Tile:
    """Join statistics of bn_stats to mean and variance of each partition."""
    source = chip_tile("bn_aggr", data)
    return by_row(
        "bn_aggr", source, mask, (source.shape[0], 2), result_type(dtype, source), instructions.bn_aggr
    )


def max8(*, src: Any, mask: Any = None, dtype: Any = None) -> Tile:
    """Find the eight largest values of each partition."""
    source = chip_tile("max8", src)
    return by_row(
        "max8", source, mask, (source.shape[0], _LARGEST), result_type(dtype, source), instructions.max8
    )


def nc_find_index8(*, data: Any, vals: Any, mask: Any = None, dtype: Any = None) -> Tile:
    """Find where each of eight values of each partition occurs first."""
    source, values = chip_tile("nc_find_index8", data), chip_tile("nc_find_index8", vals)
    kind = name_of(dtype) if dtype is not None else "uint32"

    def emit(dst: NkiTensor, view: NkiTensor) -> None:
        instructions.nc_find_index8(dst, view, _rows_of(values, view, "nc_find_index8"))

    return by_row("nc_find_index8", source, mask, (source.shape[0], _LARGEST), kind, emit)


def _rows_of(tile: Tile, view: NkiTensor, function: str) -> NkiTensor:
    """Return the first rows of a tile, as many as a view has."""
    return tile.resolved(function, (slice(0, view.shape[0]), *[slice(0, size) for size in tile.shape[1:]]))


def nc_match_replace8(
    *,
    data: Any,
    vals: Any,
    imm: float,
    dst_idx: Any = None,
    mask: Any = None,
    dtype: Any = None,
) -> Tile:
    """Replace the first occurrence of each of eight values of each partition."""
    function = "nc_match_replace8"
    source, values = chip_tile(function, data), chip_tile(function, vals)

    def emit(dst: NkiTensor, view: NkiTensor) -> None:
        places = None if dst_idx is None else _rows_of(chip_tile(function, dst_idx), view, function)
        instructions.nc_match_replace8(dst, view, _rows_of(values, view, function), float(imm), places)

    return compute(function, source.shape, result_type(dtype, source), mask, emit, source)


def local_gather(
    src_buffer: Any,
    index: Any,
    num_elem_per_idx: int = 1,
    num_valid_indices: int | None = None,
    *,
    mask: Any = None,
) -> Tile:
    """Gather columns by indices of each group of 16 partitions."""
    source, numbers = chip_tile("local_gather", src_buffer), chip_tile("local_gather", index)
    shape = (source.shape[0], *numbers.shape[1:], _GPSIMD_PARTITIONS, num_elem_per_idx)

    def emit(dst: NkiTensor) -> None:
        views = source.resolved("local_gather"), numbers.resolved("local_gather")
        instructions.local_gather(dst, *views, num_elem_per_idx, num_valid_indices)

    return compute("local_gather", shape, source.operand.dtype, mask, emit)


def sequence_bounds(*, segment_ids: Any, dtype: Any = None) -> Tile:
    """Return start and end of the segment of each element."""
    source = chip_tile("sequence_bounds", segment_ids)
    shape = (source.shape[0], 2, source.operand.free_size)
    return compute(
        "sequence_bounds",
        shape,
        result_type(dtype, source),
        None,
        lambda dst: instructions.sequence_bounds(dst, source.resolved("sequence_bounds")),
    )
