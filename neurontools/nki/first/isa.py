"""The functions of nki.isa (first generation): the instructions of the second, which return their results.

Sources: AWS Neuron documentation 2.26, "nki.isa".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from neurontools.nki import instructions
from neurontools.nki.constants import dge_mode as dge_modes
from neurontools.nki.constants import engine as engines
from neurontools.nki.constants import oob_mode as bounds
from neurontools.nki.constants import reduce_cmd as commands
from neurontools.nki.context import fail, running
from neurontools.nki.dtypes import to_float32
from neurontools.nki.first.dtypes import name_of, promoted
from neurontools.nki.first.errors import refuse_size
from neurontools.nki.first.execution import (
    PSUM,
    SBUF,
    absent,
    broadcast,
    broadcast_shape,
    compute,
    destination,
    need_on_chip,
    new_tile,
    part_for,
    tile_of,
)
from neurontools.nki.first.index import Index, Mask, selection
from neurontools.nki.first.language import (
    add_to_hbm,
    check_mutable,
    fp32,
    in_sbuf,
    index_tile,
    product,
    reduced,
    transposed,
    write_hbm,
)
from neurontools.nki.first.tile import Tile
from neurontools.nki.first.views import Gathered
from neurontools.nki.instructions.operands import need_operator
from neurontools.nki.launch import get_nc_version
from neurontools.nki.operators import OPERATORS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from neurontools.nki.tensor import NkiTensor

_STATISTICS, _LARGEST, _GPSIMD_PARTITIONS = 6, 8, 16
_DOUBLE_ROW = frozenset({"double_row", "double_row_gen3"})
_BIAS_TYPES = frozenset({"float32", "float16", "bfloat16"})


def _type(dtype: Any, *tiles: Tile) -> str:
    if dtype is not None:
        return name_of(dtype)
    kind = tiles[0].operand.dtype
    for tile in tiles[1:]:
        kind = promoted(kind, tile.operand.dtype)
    return kind


def _tile(function: str, value: Any) -> Tile:
    tile = tile_of(value, function)
    need_on_chip(function, tile)
    return tile


def _result(tile: Any, selected: Any, function: str) -> NkiTensor | None:
    """Return the view of an operand that an instruction writes beside its result."""
    if tile is None:
        return None
    return part_for(_tile(function, tile), selected, tile.shape, function)


def _by_row(
    function: str,
    data: Tile,
    mask: Any,
    shape: Sequence[int],
    dtype: str,
    emit: Callable[[NkiTensor, NkiTensor], Any],
) -> Tile:
    """Run an instruction whose result has a row for each partition of its data; the mask is that of the data."""
    selected = selection(mask, data.shape)
    if selected is False:
        return absent(shape, dtype)
    if isinstance(selected, np.ndarray):
        fail(function, "the mask is not a rectangle")
    made = new_tile(shape, dtype, filled=selected is not None)
    if selected is not None:
        made.valid = (selected[0], *[slice(0, size) for size in made.shape[1:]])
    emit(destination(made, made.valid, function), data.resolved(function, selected))
    made.producer = running().records[-1]
    return made


# ---- transfers and copies


def dma_copy(
    *,
    dst: Any,
    src: Any,
    mask: Any = None,
    dst_rmw_op: Any = None,
    oob_mode: Any = bounds.error,
    dge_mode: Any = dge_modes.unknown,
    **_options: Any,
) -> None:
    """Copy between HBM and SBUF."""
    target, source = tile_of(dst, "dma_copy"), tile_of(src, "dma_copy")
    selected = selection(mask, target.shape)
    if selected is False:
        return
    check_mutable("dma_copy", target)
    if dst_rmw_op is not None:
        add_to_hbm("dma_copy", target, source, dst_rmw_op, selected)
        return
    skip = oob_mode is bounds.skip
    if source.lookups or target.lookups:
        dst_view = destination(target, selected, "dma_copy", skip=skip)
        src_view = source.resolved("dma_copy", selected, skip=skip)
        if isinstance(src_view, Gathered) and src_view.selected is not None:
            numbers = dst_view.offset + Index(dst_view.shape, dst_view.strides, 0).values()
            dst_view = Gathered(dst_view, numbers, src_view.selected)
        instructions.dma_copy(dst_view, src_view, dge_mode=dge_mode)
        return
    write_hbm("dma_copy", target, source, selected, dge_mode=dge_mode)


def dma_transpose(
    src: Any, *, axes: Any = None, mask: Any = None, dtype: Any = None, **_options: Any
) -> Tile:
    """Transpose by the DMA engines: the first and the last dimension change places."""
    source = tile_of(src, "dma_transpose")
    if source.ndim == 2:
        made = transposed(
            "dma_transpose", source, mask, lambda dst, data: instructions.dma_transpose(dst, data, axes)
        )
    else:
        shape = (source.shape[-1], *source.shape[1:-1], source.shape[0])
        if selection(mask, source.shape) is False:
            return absent(shape, source.operand.dtype)
        made = new_tile(shape, source.operand.dtype)
        instructions.dma_transpose(made.operand, source.resolved("dma_transpose"), axes)
        made.producer = running().records[-1]
    return made if dtype is None or made.dtype == dtype else made.astype(dtype)


def tensor_copy(
    src: Any, *, mask: Any = None, dtype: Any = None, engine: Any = engines.unknown, **_options: Any
) -> Tile:
    """Copy a tile on the chip."""
    source = _tile("tensor_copy", src)
    return compute(
        "tensor_copy",
        source.shape,
        _type(dtype, source),
        mask,
        lambda dst, data: instructions.tensor_copy(dst, data, engine),
        source,
    )


tensor_copy_dynamic_src = tensor_copy


def tensor_copy_dynamic_dst(
    *, dst: Any, src: Any, mask: Any = None, dtype: Any = None, engine: Any = engines.unknown, **_options: Any
) -> None:
    """Copy a tile to a place that an index tile chooses."""
    del dtype
    target, source = _tile("tensor_copy_dynamic_dst", dst), _tile("tensor_copy_dynamic_dst", src)
    selected = selection(mask, target.shape)
    if selected is not False:
        view = destination(target, selected, "tensor_copy_dynamic_dst")
        instructions.tensor_copy(
            view, part_for(source, selected, target.shape, "tensor_copy_dynamic_dst"), engine
        )


def tensor_copy_predicated(
    *,
    src: Any,
    dst: Any,
    predicate: Any,
    reverse_pred: bool = False,
    mask: Any = None,
    dtype: Any = None,
    **_options: Any,
) -> None:
    """Copy elements where a predicate holds."""
    del dtype
    function = "tensor_copy_predicated"
    target, holds = _tile(function, dst), _tile(function, predicate)
    selected = selection(mask, target.shape)
    if selected is False:
        return
    condition = part_for(holds, selected, target.shape, function)
    if condition.dtype in {"bool", "int8"}:
        condition = condition.view("uint8")
    value = part_for(src, selected, target.shape, function) if isinstance(src, Tile) else src
    instructions.tensor_copy_predicated(
        destination(target, selected, function), value, condition, reverse_pred
    )


def memset(
    shape: Any, value: Any, dtype: Any, *, mask: Any = None, engine: Any = engines.unknown, **_options: Any
) -> Tile:
    """Return a tile of one value."""
    return compute("memset", shape, name_of(dtype), mask, lambda dst: instructions.memset(dst, value, engine))


def iota(expr: Any, dtype: Any, *, mask: Any = None, **_options: Any) -> Tile:
    """Return a tile of an index expression."""
    index = expr if isinstance(expr, Index) else Index((1, 1), (0, 0), int(expr))
    return index_tile(index, name_of(dtype), mask)


def nc_stream_shuffle(
    src: Any, dst: Any, shuffle_mask: Any, *, dtype: Any = None, mask: Any = None, **_options: Any
) -> None:
    """Copy partitions within each quadrant of 32 by a list."""
    del dtype
    target, source = _tile("nc_stream_shuffle", dst), _tile("nc_stream_shuffle", src)
    selected = selection(mask, target.shape)
    if selected is not False:
        instructions.nc_stream_shuffle(
            destination(target, selected, "nc_stream_shuffle"),
            source.resolved("nc_stream_shuffle"),
            shuffle_mask,
        )


# ---- the Tensor engine


def nc_matmul(
    stationary: Any,
    moving: Any,
    *,
    is_stationary_onezero: bool = False,
    is_moving_onezero: bool = False,
    is_transpose: bool = False,
    tile_position: Any = (),
    tile_size: Any = (),
    mask: Any = None,
    perf_mode: Any = "none",
    **_options: Any,
) -> Tile:
    """Return `stationary.T @ moving` in PSUM."""
    # The compiler moves results of other instructions to SBUF; a tensor in PSUM is an error.
    left, right = (
        in_sbuf(tile) if tile.is_result else tile
        for tile in (_tile("nc_matmul", stationary), _tile("nc_matmul", moving))
    )
    double = str(getattr(perf_mode, "value", perf_mode)) in _DOUBLE_ROW
    return product(
        left,
        right,
        mask,
        dtype=left.operand.dtype if is_transpose else "float32",
        pairs=2 if double else 1,
        is_stationary_onezero=is_stationary_onezero,
        is_moving_onezero=is_moving_onezero,
        is_transpose=is_transpose,
        tile_position=tile_position,
        tile_size=tile_size,
        perf_mode="double_row" if double else "none",
    )


def nc_transpose(
    data: Any, *, mask: Any = None, dtype: Any = None, engine: Any = engines.unknown, **_options: Any
) -> Tile:
    """Transpose a tile; the result is in PSUM unless the Vector engine makes it."""
    source = _tile("nc_transpose", data)
    small = running().limits.transpose_vector
    on_vector = engine is engines.vector or (
        engine is not engines.tensor
        and source.operand.buffer is PSUM
        and source.shape[0] <= small
        and source.operand.free_size <= small
    )
    chosen = engines.vector if on_vector else engines.tensor
    made = transposed(
        "nc_transpose",
        source,
        mask,
        lambda dst, view: instructions.nc_transpose(dst, view, chosen),
        SBUF if on_vector else PSUM,
    )
    return made if dtype is None or made.operand.dtype == name_of(dtype) else made.astype(dtype)


# ---- elementwise


def activation(
    op: Any,
    data: Any,
    *,
    bias: Any = None,
    scale: Any = 1.0,
    reduce_op: Any = None,
    reduce_res: Any = None,
    reduce_cmd: Any = commands.idle,
    mask: Any = None,
    dtype: Any = None,
    **_options: Any,
) -> Tile:
    """Compute `op(data * scale + bias)` on the Scalar engine."""
    source = _tile("activation", data)
    if bias is not None:
        _check_bias(bias)
    if isinstance(scale, Tile) and scale.operand.dtype != "float32":
        fail(
            "activation",
            f"Scale parameter of activation must be a scalar or vector of type float32, not {scale.operand.dtype}.",
        )
    selected = selection(mask, source.shape)

    def emit(dst: NkiTensor, view: NkiTensor, offset: Any, factor: Any) -> None:
        rows = (selected[0], slice(0, 1)) if isinstance(selected, tuple) else None
        result = _result(reduce_res, rows, "activation")
        instructions.activation(dst, op, view, offset, factor, reduce_op, result, reduce_cmd)

    return compute("activation", source.shape, _type(dtype, source), mask, emit, source, bias, scale)


def _check_bias(bias: Any) -> None:
    kind = bias.operand.dtype if isinstance(bias, Tile) else type(bias).__name__
    if kind not in _BIAS_TYPES:
        fail(
            "activation",
            f"Bias parameter of activation or activation_reduce must be a vector of type float32, float16, or bfloat16, not {kind}.",
            "make one with nisa.memset((128, 1), value, dtype=nl.float32)",
        )


def activation_reduce(op: Any, data: Any, *, reduce_op: Any, reduce_res: Any, **options: Any) -> Tile:
    """Compute `op(data * scale + bias)` and the sum of each partition."""
    return activation(
        op, data, reduce_op=reduce_op, reduce_res=reduce_res, reduce_cmd=commands.reset_reduce, **options
    )


def reciprocal(data: Any, *, dtype: Any = None, mask: Any = None, **_options: Any) -> Tile:
    """Compute 1 / data on the Vector engine."""
    source = _tile("reciprocal", data)
    return compute("reciprocal", source.shape, _type(dtype, source), mask, instructions.reciprocal, source)


def tensor_tensor(
    data1: Any,
    data2: Any,
    op: Any,
    *,
    dtype: Any = None,
    mask: Any = None,
    engine: Any = engines.unknown,
    **_options: Any,
) -> Tile:
    """Compute `data1 op data2` element by element."""
    first, second = _tile("tensor_tensor", data1), _tile("tensor_tensor", data2)
    if first.shape[0] != second.shape[0]:
        refuse_size(
            "tensor_tensor",
            "number of partitions (dimension 0 size of a tile) mismatch in parameters"
            f" (data1{list(first.shape)}, data2{list(second.shape)}) of 'tensor_tensor'",
            "repeat partitions with broadcast_to",
        )
    shape = broadcast_shape("tensor_tensor", first.shape, second.shape)

    def emit(dst: NkiTensor, left: NkiTensor, right: NkiTensor) -> None:
        left, right = (
            view if view.size == dst.size else broadcast(view, dst.shape) for view in (left, right)
        )
        instructions.tensor_tensor(dst, left, right, op, engine)

    return compute("tensor_tensor", shape, _type(dtype, first, second), mask, emit, first, second)


def tensor_scalar(
    data: Any,
    op0: Any,
    operand0: Any,
    reverse0: bool = False,
    op1: Any = None,
    operand1: Any = None,
    reverse1: bool = False,
    *,
    dtype: Any = None,
    mask: Any = None,
    engine: Any = engines.unknown,
    **_options: Any,
) -> Tile:
    """Compute `(data op0 operand0) op1 operand1`."""
    source = _tile("tensor_scalar", data)

    def emit(dst: NkiTensor, view: NkiTensor, first: Any, second: Any) -> None:
        instructions.tensor_scalar(dst, view, op0, first, reverse0, op1, second, reverse1, engine)

    return compute(
        "tensor_scalar", source.shape, _type(dtype, source), mask, emit, source, operand0, operand1
    )


def scalar_tensor_tensor(
    *,
    data: Any,
    op0: Any,
    operand0: Any,
    op1: Any,
    operand1: Any,
    reverse0: bool = False,
    reverse1: bool = False,
    dtype: Any = None,
    mask: Any = None,
    **_options: Any,
) -> Tile:
    """Compute `(data op0 operand0) op1 operand1`; operand1 is a tile."""
    source = _tile("scalar_tensor_tensor", data)

    def emit(dst: NkiTensor, view: NkiTensor, first: Any, second: Any) -> None:
        instructions.scalar_tensor_tensor(dst, view, op0, first, op1, second, reverse0, reverse1)

    return compute(
        "scalar_tensor_tensor", source.shape, _type(dtype, source), mask, emit, source, operand0, operand1
    )


def tensor_scalar_reduce(
    *,
    data: Any,
    op0: Any,
    operand0: Any,
    reduce_op: Any,
    reduce_res: Any,
    reverse0: bool = False,
    dtype: Any = None,
    mask: Any = None,
    **_options: Any,
) -> Tile:
    """Compute `data op0 operand0` and its reduction over each partition."""
    source = _tile("tensor_scalar_reduce", data)
    selected = selection(mask, source.shape)

    def emit(dst: NkiTensor, view: NkiTensor, first: Any) -> None:
        rows = (selected[0], slice(0, 1)) if isinstance(selected, tuple) else None
        result = _result(reduce_res, rows, "tensor_scalar_reduce")
        instructions.tensor_scalar_reduce(dst, view, op0, first, reduce_op, result, reverse0)

    return compute("tensor_scalar_reduce", source.shape, _type(dtype, source), mask, emit, source, operand0)


def tensor_tensor_scan(
    data0: Any,
    data1: Any,
    initial: Any,
    op0: Any,
    op1: Any,
    reverse0: bool = False,
    reverse1: bool = False,
    *,
    dtype: Any = None,
    mask: Any = None,
    **_options: Any,
) -> Tile:
    """Compute the scan `r[i] = (data0[i] op0 r[i-1]) op1 data1[i]` of each partition."""
    first, second = _tile("tensor_tensor_scan", data0), _tile("tensor_tensor_scan", data1)
    shape = broadcast_shape("tensor_tensor_scan", first.shape, second.shape)

    def emit(dst: NkiTensor, left: NkiTensor, right: NkiTensor, start: Any) -> None:
        left, right = (
            view if view.size == dst.size else broadcast(view, dst.shape) for view in (left, right)
        )
        instructions.tensor_tensor_scan(dst, left, right, start, op0, op1, reverse0, reverse1)

    return compute(
        "tensor_tensor_scan", shape, _type(dtype, first, second), mask, emit, first, second, initial
    )


def dropout(data: Any, prob: Any, *, mask: Any = None, dtype: Any = None, **_options: Any) -> Tile:
    """Replace elements with zeros at random."""
    from neurontools.nki.first.language import dropout as of_language

    return of_language(data, prob, dtype=dtype, mask=mask)


# ---- reductions and selections


def tensor_reduce(
    op: Any,
    data: Any,
    axis: Any,
    *,
    mask: Any = None,
    dtype: Any = None,
    negate: bool = False,
    keepdims: bool = False,
    **_options: Any,
) -> Tile:
    """Reduce free dimensions of a tile."""
    operator = need_operator("tensor_reduce", op)
    return reduced("tensor_reduce", operator, data, axis, dtype, mask, keepdims=keepdims, negate=negate)


def tensor_partition_reduce(
    op: Any, data: Any, *, mask: Any = None, dtype: Any = None, **_options: Any
) -> Tile:
    """Reduce over the partitions."""
    source = _tile("tensor_partition_reduce", data)
    shape = (1, *source.shape[1:])
    selected = selection(mask, source.shape)
    if selected is False:
        return absent(shape, _type(dtype, source))
    made = new_tile(shape, _type(dtype, source), filled=selected is not None)
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
    pred: Any, on_true_tile: Any, on_false_value: Any, *, mask: Any = None, dtype: Any = None, **_options: Any
) -> Tile:
    """Keep elements where an affine comparison holds, and write a constant elsewhere."""
    source = _tile("affine_select", on_true_tile)
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

    return compute("affine_select", source.shape, _type(dtype, source), mask, emit, source)


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
    **_options: Any,
) -> Tile:
    """Keep the elements whose index compares true with two bounds, and reduce them."""
    source = _tile("range_select", on_true_tile)
    result = _result(reduce_res, None, "range_select")

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

    return compute("range_select", source.shape, _type(dtype, source), mask, emit, source, bound0, bound1)


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
    **_options: Any,
) -> None:
    """Select elements by a predicate tile, and reduce them."""
    del dtype
    function = "select_reduce"
    target = _tile(function, dst)
    selected = selection(mask, target.shape)
    if selected is False:
        return
    holds, true = (
        part_for(_tile(function, item), selected, target.shape, function) for item in (predicate, on_true)
    )
    other = part_for(on_false, selected, target.shape, function) if isinstance(on_false, Tile) else on_false
    result = _result(reduce_res, None, function)
    view = destination(target, selected, function)
    instructions.select_reduce(view, holds, true, other, result, reduce_cmd, reduce_op, reverse_pred)


def bn_stats(data: Any, *, mask: Any = None, dtype: Any = None, **_options: Any) -> Tile:
    """Compute count, mean and variance times count of the even and the odd elements of each partition."""
    source = _tile("bn_stats", data)
    return _by_row(
        "bn_stats", source, mask, (source.shape[0], _STATISTICS), _type(dtype, source), instructions.bn_stats
    )


def bn_aggr(data: Any, *, mask: Any = None, dtype: Any = None, **_options: Any) -> Tile:
    """Join statistics of bn_stats to mean and variance of each partition."""
    source = _tile("bn_aggr", data)
    return _by_row("bn_aggr", source, mask, (source.shape[0], 2), _type(dtype, source), instructions.bn_aggr)


def max8(*, src: Any, mask: Any = None, dtype: Any = None, **_options: Any) -> Tile:
    """Find the eight largest values of each partition."""
    source = _tile("max8", src)
    return _by_row("max8", source, mask, (source.shape[0], _LARGEST), _type(dtype, source), instructions.max8)


def nc_find_index8(*, data: Any, vals: Any, mask: Any = None, dtype: Any = None, **_options: Any) -> Tile:
    """Find where each of eight values of each partition occurs first."""
    source, values = _tile("nc_find_index8", data), _tile("nc_find_index8", vals)
    kind = name_of(dtype) if dtype is not None else "uint32"

    def emit(dst: NkiTensor, view: NkiTensor) -> None:
        instructions.nc_find_index8(dst, view, _rows_of(values, view, "nc_find_index8"))

    return _by_row("nc_find_index8", source, mask, (source.shape[0], _LARGEST), kind, emit)


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
    **_options: Any,
) -> Tile:
    """Replace the first occurrence of each of eight values of each partition."""
    function = "nc_match_replace8"
    source, values = _tile(function, data), _tile(function, vals)

    def emit(dst: NkiTensor, view: NkiTensor) -> None:
        found = None if dst_idx is None else _rows_of(_tile(function, dst_idx), view, function)
        instructions.nc_match_replace8(dst, view, _rows_of(values, view, function), float(imm), found)

    return compute(function, source.shape, _type(dtype, source), mask, emit, source)


def local_gather(
    src_buffer: Any,
    index: Any,
    num_elem_per_idx: int = 1,
    num_valid_indices: int | None = None,
    *,
    mask: Any = None,
    **_options: Any,
) -> Tile:
    """Gather columns by indices of each group of 16 partitions."""
    source, numbers = _tile("local_gather", src_buffer), _tile("local_gather", index)
    shape = (source.shape[0], *numbers.shape[1:], _GPSIMD_PARTITIONS, num_elem_per_idx)

    def emit(dst: NkiTensor) -> None:
        views = source.resolved("local_gather"), numbers.resolved("local_gather")
        instructions.local_gather(dst, *views, num_elem_per_idx, num_valid_indices)

    return compute("local_gather", shape, source.operand.dtype, mask, emit)


def sequence_bounds(*, segment_ids: Any, dtype: Any = None, **_options: Any) -> Tile:
    """Return start and end of the segment of each element."""
    source = _tile("sequence_bounds", segment_ids)
    shape = (source.shape[0], 2, source.operand.free_size)
    return compute(
        "sequence_bounds",
        shape,
        _type(dtype, source),
        None,
        lambda dst: instructions.sequence_bounds(dst, source.resolved("sequence_bounds")),
    )


FUNCTIONS: dict[str, Any] = {
    function.__name__: function
    for function in (
        activation, activation_reduce, affine_select, bn_aggr, bn_stats, dma_copy, dma_transpose, dropout, get_nc_version, iota,
        local_gather, max8, memset, nc_find_index8, nc_match_replace8, nc_matmul, nc_stream_shuffle, nc_transpose, range_select,
        reciprocal, scalar_tensor_tensor, select_reduce, sequence_bounds, tensor_copy, tensor_copy_dynamic_dst,
        tensor_copy_predicated, tensor_partition_reduce, tensor_reduce, tensor_scalar, tensor_scalar_reduce, tensor_tensor,
        tensor_tensor_scan,
    )
}  # fmt: skip
FUNCTIONS["tensor_copy_dynamic_src"] = tensor_copy_dynamic_src
"""What `neuronxcc.nki.isa` offers, by name."""
