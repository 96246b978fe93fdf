"""Patterns of indices, selections by them, and the gathers of the GpSimd engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from neurontools.nki.constants import reduce_cmd as commands
from neurontools.nki.context import Record, running
from neurontools.nki.dtypes import FLOATS, to_float32
from neurontools.nki.instructions.accumulators import accumulate
from neurontools.nki.instructions.operands import (
    GENERATION_3,
    SBUF,
    check_elementwise,
    check_not_both_psum,
    check_same_size,
    check_tile,
    need_operator,
    needs_generation,
    reads,
    refuse,
    scalar,
)
from neurontools.nki.operators import OPERATORS

if TYPE_CHECKING:
    from neurontools.nki.tensor import NkiTensor

_GPSIMD_PARTITIONS = 16
_LOWEST = np.float32(np.finfo(np.float32).min)
_COMPARISONS = frozenset({"equal", "less", "less_equal", "greater", "greater_equal", "not_equal"})


def affine_values(
    opcode: str, tile: NkiTensor, pattern: Any, offset: Any, channel_multiplier: Any
) -> np.ndarray:
    """Return `offset + partition * channel_multiplier + pattern` for each element of a tile, as int64."""
    if not isinstance(pattern, list | tuple) or any(np.shape(pair) != (2,) for pair in pattern):
        refuse(opcode, f"pattern {pattern!r} is not a list of pairs", "use [[step, size], ...]")
    dims = [(int(step), int(size)) for step, size in pattern]
    most = running().limits.pattern_dims
    if len(dims) > most:
        refuse(opcode, f"pattern has {len(dims)} dimensions, at most {most}")
    values = np.zeros((1,), dtype=np.int64)
    for step, size in dims:
        values = values[..., None] + np.arange(size, dtype=np.int64) * step
    flat = values.reshape(-1)
    if flat.size != tile.free_size:
        refuse(opcode, f"pattern has {flat.size} elements, dst has {tile.free_size} a partition", "", tile)
    partitions = np.arange(tile.shape[0], dtype=np.int64)[:, None] * int(channel_multiplier)
    return np.asarray(int(offset) + partitions + flat[None, :])


def iota(
    dst: Any, pattern: Any, offset: int = 0, channel_multiplier: int = 0, name: str | None = None
) -> Record:
    """Write an affine pattern of integers."""
    check_tile("iota", "dst", dst, (SBUF,))
    values = affine_values("iota", dst, pattern, offset, channel_multiplier)
    dst.write(values.astype(np.int32) if dst.dtype not in FLOATS else values.astype(np.float32))
    return running().issue("iota", "gpsimd", (), reads(dst), name)


def affine_select(
    dst: Any,
    pattern: Any,
    channel_multiplier: int,
    on_true_tile: Any,
    on_false_value: float,
    cmp_op: Any = OPERATORS["equal"],
    offset: int = 0,
    name: str | None = None,
) -> Record:
    """Keep elements where an affine value compares true with 0, and write a constant elsewhere."""
    opcode = "affine_select"
    for operand, tile in (("dst", dst), ("on_true_tile", on_true_tile)):
        check_tile(opcode, operand, tile, (SBUF,))
    check_same_size(opcode, dst, on_true_tile, "on_true_tile")
    operator = need_operator(opcode, cmp_op, "cmp_op")
    if operator.name not in _COMPARISONS:
        refuse(opcode, f"cmp_op is {operator.name}, must be a comparison")
    affine = affine_values(opcode, dst, pattern, offset, channel_multiplier)
    holds = operator.compute(affine, 0) != 0
    values = on_true_tile.read("on_true_tile").reshape(affine.shape)
    if values.dtype.kind not in "iub":
        values = to_float32(values)
    dst.write(np.where(holds, values, values.dtype.type(on_false_value)))
    return running().issue(opcode, "gpsimd", reads(on_true_tile), reads(dst), name)


def range_select(
    dst: Any,
    on_true_tile: Any,
    comp_op0: Any,
    comp_op1: Any,
    bound0: Any,
    bound1: Any,
    reduce_cmd: Any = commands.reset_reduce,
    reduce_res: Any = None,
    reduce_op: Any = OPERATORS["maximum"],
    range_start: int = 0,
    on_false_value: float = float(_LOWEST),
    name: str | None = None,
) -> Record:
    """Keep the elements whose index compares true with two bounds of each partition, and reduce them."""
    opcode = "range_select"
    needs_generation(opcode, GENERATION_3)
    check_elementwise(opcode, dst, on_true_tile=on_true_tile)
    if np.float32(on_false_value) != _LOWEST:
        refuse(opcode, f"on_false_value is {on_false_value}, must be the smallest float32, -3.4028235e+38")
    joins = need_operator(opcode, reduce_op, "reduce_op")
    if joins.name != "maximum":
        refuse(opcode, f"reduce_op is {joins.name}, only nl.maximum is supported")
    index = np.float32(range_start) + np.arange(on_true_tile.free_size, dtype=np.float32)
    shape = (on_true_tile.shape[0], on_true_tile.free_size)
    holds = np.ones(shape, dtype=np.bool_)
    for argument, op, bound in (("bound0", comp_op0, bound0), ("bound1", comp_op1, bound1)):
        comparison = need_operator(opcode, op, "comp_op" + argument[-1])
        column = scalar(opcode, argument, bound, on_true_tile).reshape(-1, 1)
        holds &= comparison.compute(index[None, :], column) != 0
    values = np.where(holds, on_true_tile.read32("on_true_tile").reshape(shape), _LOWEST)
    dst.write(values)
    column = accumulate(opcode, "vector", reduce_cmd, joins, values)
    if reduce_res is not None and column is not None:
        check_tile(opcode, "reduce_res", reduce_res)
        reduce_res.write(column)
    return running().issue(
        opcode, "vector", reads(on_true_tile, bound0, bound1), reads(dst, reduce_res), name
    )


def select_reduce(
    dst: Any,
    predicate: Any,
    on_true: Any,
    on_false: Any,
    reduce_res: Any = None,
    reduce_cmd: Any = commands.idle,
    reduce_op: Any = OPERATORS["maximum"],
    reverse_pred: bool = False,
    name: str | None = None,
) -> Record:
    """Select elements by a predicate tile, and reduce them."""
    opcode = "select_reduce"
    check_elementwise(opcode, dst, predicate=predicate, on_true=on_true)
    check_not_both_psum(opcode, ("on_true", on_true), ("predicate", predicate))
    holds = (predicate.read("predicate") != 0).reshape(on_true.shape) != reverse_pred
    other = scalar(opcode, "on_false", on_false, on_true)
    values = np.where(holds, on_true.read32("on_true"), other).astype(np.float32)
    dst.write(values)
    column = accumulate(opcode, "vector", reduce_cmd, need_operator(opcode, reduce_op, "reduce_op"), values)
    if reduce_res is not None and column is not None:
        reduce_res.write(column)
    return running().issue(
        opcode, "vector", reads(predicate, on_true, on_false), reads(dst, reduce_res), name
    )


def local_gather(
    dst: Any,
    src_buffer: Any,
    index: Any,
    num_elem_per_idx: int = 1,
    num_valid_indices: int | None = None,
    name: str | None = None,
) -> Record:
    """Gather columns by indices of each group of 16 partitions."""
    opcode = "local_gather"
    for operand, tile in (("dst", dst), ("src_buffer", src_buffer), ("index", index)):
        check_tile(opcode, operand, tile, (SBUF,))
    if src_buffer.shape[0] != index.shape[0] or index.shape[0] % _GPSIMD_PARTITIONS:
        refuse(
            opcode,
            f"src_buffer has {src_buffer.shape[0]} partitions and index {index.shape[0]}, both the same multiple of 16",
            "",
            src_buffer,
            index,
        )
    if index.dtype != "uint16":
        refuse(opcode, f"index is {index.dtype}, must be uint16", "", index)
    if num_elem_per_idx not in {1, 2, 4, 8, 16, 32}:
        refuse(opcode, f"num_elem_per_idx is {num_elem_per_idx}, must be 1, 2, 4, 8, 16 or 32")
    source = src_buffer.read("src_buffer").reshape(src_buffer.shape[0], -1)
    numbers = index.read("index").reshape(index.shape[0], -1)
    count = numbers.shape[1] * _GPSIMD_PARTITIONS if num_valid_indices is None else num_valid_indices
    if count > running().limits.gather_indices:
        refuse(
            opcode, f"{count} indices for a GpSimd core, at most {running().limits.gather_indices}", "", index
        )
    out = dst.array().reshape(dst.shape[0], -1).copy()
    for start in range(0, source.shape[0], _GPSIMD_PARTITIONS):
        group = slice(start, start + _GPSIMD_PARTITIONS)
        wanted = numbers[group].T.reshape(-1)[:count].astype(np.int64)
        columns = (wanted[:, None] + np.arange(num_elem_per_idx)).reshape(-1)
        gathered = source[group][:, np.clip(columns, 0, source.shape[1] - 1)]
        out[group, : gathered.shape[1]] = gathered
    dst.write(out.reshape(dst.shape))
    return running().issue(
        opcode, "gpsimd", reads(src_buffer, index), reads(dst), name, indices=count, width=num_elem_per_idx
    )


def nc_n_gather(dst: Any, data: Any, indices: Any, name: str | None = None) -> Record:
    """Gather elements of each partition by indices of the same partition."""
    opcode = "nc_n_gather"
    for operand, tile in (("dst", dst), ("data", data), ("indices", indices)):
        check_tile(opcode, operand, tile, (SBUF,))
    check_same_size(opcode, dst, indices, "indices")
    values = data.read("data").reshape(data.shape[0], -1)
    numbers = indices.read("indices").reshape(indices.shape[0], -1).astype(np.int64)
    if numbers.size and (numbers.min() < 0 or numbers.max() >= values.shape[1]):
        refuse(
            opcode,
            f"an index is {int(numbers.max())}, data has {values.shape[1]} elements a partition",
            "",
            indices,
            data,
        )
    dst.write(np.take_along_axis(values, numbers, axis=1))
    return running().issue(opcode, "gpsimd", reads(data, indices), reads(dst), name)


def nonzero_with_count(
    dst: Any, src: Any, index_offset: int = 0, padding_val: int = -1, name: str | None = None
) -> Record:
    """Write where elements are not zero, and how many; partitions 0, 16, .. 112 alone are read and written."""
    opcode = "nonzero_with_count"
    needs_generation(opcode, GENERATION_3)
    for operand, tile in (("dst", dst), ("src", src)):
        check_tile(opcode, operand, tile, (SBUF,))
    if dst.free_size != src.free_size + 1:
        refuse(
            opcode,
            f"dst has {dst.free_size} elements a partition, must have one more than src, {src.free_size + 1}",
            "",
            dst,
            src,
        )
    source = src.array().reshape(src.shape[0], -1)
    target = dst.array()
    rows = range(0, src.shape[0], _GPSIMD_PARTITIONS)
    # Each core of GpSimd has a partition of its own; kernels give work to some of the cores.
    busy = [row for row in rows if src[row : row + 1].is_written()] or rows
    for row in rows:
        if row in busy:
            src[row : row + 1].read("src")
        places = np.flatnonzero(source[row]) + index_offset
        line = np.full(source.shape[1] + 1, padding_val, dtype=np.int64)
        line[: places.size] = places
        line[-1] = places.size
        target[row] = line.reshape(target.shape[1:])
        dst[row : row + 1]._mark()  # noqa: SLF001
    return running().issue(opcode, "gpsimd", reads(src), reads(dst), name)


def sequence_bounds(dst: Any, segment_ids: Any, name: str | None = None) -> Record:
    """Write start and end of the segment of each element; segment 0 is padding."""
    opcode = "sequence_bounds"
    ids = segment_ids.read("segment_ids").reshape(segment_ids.shape[0], -1)
    if ids.shape[0] != 1:
        refuse(opcode, f"segment_ids has {ids.shape[0]} partitions, must have 1", "", segment_ids)
    row, count = ids[0], ids.shape[1]
    starts = np.full(count, count, dtype=np.float32)
    ends = np.full(count, -1, dtype=np.float32)
    for value in np.unique(row):
        if value != 0:
            places = np.flatnonzero(row == value)
            starts[places], ends[places] = places[0], places[-1] + 1
    dst.write(np.stack([starts, ends])[None].reshape(dst.shape))
    return running().issue(opcode, "gpsimd", reads(segment_ids), reads(dst), name)


def topk(val_dst: Any, idx_dst: Any, src: Any, n: int, name: str | None = None) -> Record:
    """Find the largest values of each group of 16 partitions, in ascending order, and their numbers."""
    opcode = "topk"
    for operand, tile in (("val_dst", val_dst), ("idx_dst", idx_dst), ("src", src)):
        check_tile(opcode, operand, tile, (SBUF,))
    count = val_dst.free_size
    if src.dtype != "bfloat16" or src.shape[0] % _GPSIMD_PARTITIONS:
        refuse(
            opcode,
            f"src is {src.dtype} of {src.shape[0]} partitions, must be bfloat16 of a multiple of 16",
            "",
            src,
        )
    if not 8 <= n < 65536 or not 1 <= count <= n or src.free_size * _GPSIMD_PARTITIONS < n:
        refuse(opcode, f"n is {n} and k {count}: 8 <= n < 65536, k <= n, and src holds n elements", "", src)
    values = src.read32("src").reshape(src.shape[0], -1)
    best = np.empty((src.shape[0], count), dtype=np.float32)
    numbers = np.empty((src.shape[0], count), dtype=np.uint32)
    for start in range(0, src.shape[0], _GPSIMD_PARTITIONS):
        snake = values[start : start + _GPSIMD_PARTITIONS].T.reshape(-1)[:n]
        order = np.argsort(snake, kind="stable")[-count:]
        best[start : start + _GPSIMD_PARTITIONS] = snake[order]
        numbers[start : start + _GPSIMD_PARTITIONS] = order
    val_dst.write(best)
    idx_dst.write(numbers)
    return running().issue(opcode, "gpsimd", reads(src), reads(val_dst, idx_dst), name, n=n, k=count)
