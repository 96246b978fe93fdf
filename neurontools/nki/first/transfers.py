"""Instructions of nki.isa that move data, and products (first generation)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neurontools.nki import instructions
from neurontools.nki.constants import dge_mode as dge_modes
from neurontools.nki.constants import engine as engines
from neurontools.nki.constants import oob_mode as bounds
from neurontools.nki.context import running
from neurontools.nki.first.dtypes import name_of
from neurontools.nki.first.execution import (
    PSUM,
    SBUF,
    absent,
    compute,
    destination,
    new_tile,
    part_for,
    tile_of,
)
from neurontools.nki.first.index import Index, selection
from neurontools.nki.first.language import (
    add_to_hbm,
    check_mutable,
    in_sbuf,
    index_tile,
    product,
    transposed,
    write_hbm,
)
from neurontools.nki.first.operands import chip_tile, result_type
from neurontools.nki.first.tile import Tile
from neurontools.nki.first.views import Gathered

if TYPE_CHECKING:
    import numpy as np

_DOUBLE_ROW = frozenset({"double_row", "double_row_gen3"})
_MATRIX_DIMS = 2


def dma_copy(
    *,
    dst: Any,
    src: Any,
    mask: Any = None,
    dst_rmw_op: Any = None,
    oob_mode: Any = bounds.error,
    dge_mode: Any = dge_modes.unknown,
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
            numbers: np.ndarray = dst_view.offset + Index(dst_view.shape, dst_view.strides, 0).values()
            dst_view = Gathered(dst_view, numbers, src_view.selected)
        instructions.dma_copy(dst_view, src_view, dge_mode=dge_mode)
        return
    write_hbm("dma_copy", target, source, selected, dge_mode=dge_mode)


def dma_transpose(
    src: Any, *, axes: Any = None, mask: Any = None, dtype: Any = None, dge_mode: Any = dge_modes.unknown
) -> Tile:
    """Transpose by the DMA engines: the first and the last dimension change places."""
    source = tile_of(src, "dma_transpose")
    if source.ndim == _MATRIX_DIMS:
        made = transposed(
            "dma_transpose",
            source,
            mask,
            lambda dst, data: instructions.dma_transpose(dst, data, axes, dge_mode=dge_mode),
        )
    else:
        shape = (source.shape[-1], *source.shape[1:-1], source.shape[0])
        if selection(mask, source.shape) is False:
            return absent(shape, source.operand.dtype)
        made = new_tile(shape, source.operand.dtype)
        instructions.dma_transpose(made.operand, source.resolved("dma_transpose"), axes, dge_mode=dge_mode)
        made.producer = running().records[-1]
    return made if dtype is None or made.dtype == dtype else made.astype(dtype)


def tensor_copy(src: Any, *, mask: Any = None, dtype: Any = None, engine: Any = engines.unknown) -> Tile:
    """Copy a tile on the chip."""
    source = chip_tile("tensor_copy", src)
    return compute(
        "tensor_copy",
        source.shape,
        result_type(dtype, source),
        mask,
        lambda dst, data: instructions.tensor_copy(dst, data, engine),
        source,
    )


def tensor_copy_dynamic_dst(
    *, dst: Any, src: Any, mask: Any = None, dtype: Any = None, engine: Any = engines.unknown
) -> None:
    """Copy a tile to a place that an index tile chooses."""
    del dtype
    target, source = chip_tile("tensor_copy_dynamic_dst", dst), chip_tile("tensor_copy_dynamic_dst", src)
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
) -> None:
    """Copy elements where a predicate holds."""
    del dtype
    function = "tensor_copy_predicated"
    target, holds = chip_tile(function, dst), chip_tile(function, predicate)
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


def memset(shape: Any, value: Any, dtype: Any, *, mask: Any = None, engine: Any = engines.unknown) -> Tile:
    """Return a tile of one value."""
    return compute("memset", shape, name_of(dtype), mask, lambda dst: instructions.memset(dst, value, engine))


def iota(expr: Any, dtype: Any, *, mask: Any = None) -> Tile:
    """Return a tile of an index expression."""
    index = expr if isinstance(expr, Index) else Index((1, 1), (0, 0), int(expr))
    return index_tile(index, name_of(dtype), mask)


def nc_stream_shuffle(src: Any, dst: Any, shuffle_mask: Any, *, dtype: Any = None, mask: Any = None) -> None:
    """Copy partitions within each quadrant of 32 by a list."""
    del dtype
    target, source = chip_tile("nc_stream_shuffle", dst), chip_tile("nc_stream_shuffle", src)
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
) -> Tile:
    """Return `stationary.T @ moving` in PSUM."""
    # The compiler moves results of other instructions to SBUF; a tensor in PSUM is an error.
    left, right = (
        in_sbuf(tile) if tile.is_result else tile
        for tile in (chip_tile("nc_matmul", stationary), chip_tile("nc_matmul", moving))
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


def nc_transpose(data: Any, *, mask: Any = None, dtype: Any = None, engine: Any = engines.unknown) -> Tile:
    """Transpose a tile; the result is in PSUM unless the Vector engine makes it."""
    source = chip_tile("nc_transpose", data)
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
