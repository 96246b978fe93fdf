"""Reductions over the free dimensions or the partitions, statistics, and the largest values."""

from __future__ import annotations

from typing import Any

import numpy as np

from neurontools.nki.context import Record, running
from neurontools.nki.dtypes import to_float32
from neurontools.nki.instructions.arithmetic import reduce_axis
from neurontools.nki.instructions.operands import (
    SBUF,
    check_bits,
    check_reduction,
    check_start,
    check_tile,
    need_operator,
    reads,
    refuse,
)

_LARGEST = 8
_STATISTICS = 6
_TRIPLE = 3


def tensor_reduce(
    dst: Any,
    op: Any,
    data: Any,
    axis: Any,
    negate: bool = False,
    keepdims: bool = False,
    name: str | None = None,
) -> Record:
    """Reduce the last free dimensions of a tile."""
    opcode = "tensor_reduce"
    del keepdims  # dst has the shape that the kernel gave it
    operator = need_operator(opcode, op)
    for operand, tile in (("dst", dst), ("data", data)):
        check_tile(opcode, operand, tile)
        check_start(opcode, operand, tile)
    check_reduction(opcode, operator)
    check_bits(opcode, operator, dst, data)
    given = (axis,) if isinstance(axis, int) else tuple(axis)
    axes = tuple(sorted(item % data.ndim for item in given))
    if axes != tuple(range(data.ndim - len(axes), data.ndim)) or 0 in axes:
        refuse(
            opcode,
            f"axis {axis} of {data.ndim} dimensions, must be the last free dimensions",
            "permute the view first",
            data,
        )
    rest = data.size
    for item in axes:
        rest //= data.shape[item]
    if dst.size != rest or dst.shape[0] != data.shape[0]:
        refuse(
            opcode,
            f"dst has {dst.shape}, the reduction of {data.shape} over {axes} has {rest} elements",
            "",
            dst,
            data,
        )
    values = data.read("data")
    if not operator.is_bitwise:
        values = to_float32(values)
    result = reduce_axis(operator, values, axes)
    dst.write(-result if negate else result)
    return running().issue(opcode, "vector", reads(data), reads(dst), name, op=operator.name)


def tensor_partition_reduce(dst: Any, op: Any, data: Any, name: str | None = None) -> Record:
    """Reduce over the partitions, on the GpSimd engine."""
    opcode = "tensor_partition_reduce"
    operator = need_operator(opcode, op)
    for operand, tile in (("dst", dst), ("data", data)):
        check_tile(opcode, operand, tile, (SBUF,))
    if operator.name not in {"add", "average", "maximum", "bitwise_or", "bitwise_and"}:
        refuse(opcode, f"op is {operator.name}, must be add, average, maximum, bitwise_or or bitwise_and")
    values = data.read("data")
    if operator.is_bitwise:
        result = values[0]
        for row in values[1:]:
            result = operator.compute(result, row)
    else:
        result = reduce_axis(operator, to_float32(values), 0)
        if operator.name == "average":
            result = result / np.float32(data.shape[0])
    dst.write(np.asarray(result)[None])
    return running().issue(opcode, "gpsimd", reads(data), reads(dst), name, op=operator.name)


def bn_stats(dst: Any, data: Any, name: str | None = None) -> Record:
    """Compute count, mean and variance times count of the even and the odd elements of each partition."""
    opcode = "bn_stats"
    for operand, tile in (("dst", dst), ("data", data)):
        check_tile(opcode, operand, tile)
    most = running().limits.bn_stats_columns
    if data.free_size > most:
        refuse(
            opcode,
            f"data has {data.free_size} elements a partition, at most {most}",
            "call it for each 512 and join with nisa.bn_aggr",
            data,
        )
    if dst.free_size != _STATISTICS:
        refuse(opcode, f"dst has {dst.free_size} elements a partition, must have {_STATISTICS}", "", dst)
    values = data.read32("data").reshape(data.shape[0], -1)
    columns = []
    for part in (values[:, ::2], values[:, 1::2]):
        count = np.full(part.shape[0], part.shape[1], dtype=np.float32)
        mean = part.mean(axis=1) if part.shape[1] else count
        spread = ((part - mean[:, None]) ** 2).sum(axis=1)
        columns += [count, mean, spread]
    dst.write(np.stack(columns, axis=1).astype(np.float32))
    return running().issue(opcode, "vector", reads(data), reads(dst), name)


def bn_aggr(dst: Any, data: Any, name: str | None = None) -> Record:
    """Join statistics of bn_stats to mean and variance of each partition."""
    opcode = "bn_aggr"
    for operand, tile in (("dst", dst), ("data", data)):
        check_tile(opcode, operand, tile)
    if data.free_size % _TRIPLE:
        refuse(opcode, f"data has {data.free_size} elements a partition, must be a multiple of 3", "", data)
    triples = data.read32("data").reshape(data.shape[0], -1, _TRIPLE).astype(np.float64)
    count = triples[:, :, 0].sum(axis=1)
    mean = (triples[:, :, 0] * triples[:, :, 1]).sum(axis=1) / count
    spread = (triples[:, :, 2] + triples[:, :, 0] * (triples[:, :, 1] - mean[:, None]) ** 2).sum(axis=1)
    dst.write(np.stack([mean, spread / count], axis=1).astype(np.float32))
    return running().issue(opcode, "vector", reads(data), reads(dst), name)


def _check_eight(opcode: str, source: Any, operand: str) -> np.ndarray:
    check_tile(opcode, operand, source)
    most = running().limits.match_elements
    if not _LARGEST <= source.free_size <= most:
        refuse(
            opcode,
            f"{operand} has {source.free_size} elements a partition, must have 8 to {most}",
            "",
            source,
        )
    return np.asarray(source.read32(operand).reshape(source.shape[0], -1))


def max8(dst: Any, src: Any, name: str | None = None) -> Record:
    """Find the eight largest values of each partition, in descending order."""
    values = _check_eight("max8", src, "src")
    check_tile("max8", "dst", dst)
    if dst.free_size != _LARGEST:
        refuse("max8", f"dst has {dst.free_size} elements a partition, must have 8", "", dst)
    top = np.partition(values, -_LARGEST, axis=1)[:, -_LARGEST:]
    dst.write(np.ascontiguousarray(np.sort(top, axis=1)[:, ::-1]))
    return running().issue("max8", "vector", reads(src), reads(dst), name)


def _check_values(opcode: str, vals: Any) -> np.ndarray:
    check_tile(opcode, "vals", vals)
    if vals.free_size != _LARGEST:
        refuse(opcode, f"vals has {vals.free_size} elements a partition, must have 8", "", vals)
    return np.asarray(vals.read32("vals").reshape(vals.shape[0], -1))


def nc_find_index8(dst: Any, data: Any, vals: Any, name: str | None = None) -> Record:
    """Find where each of eight values occurs first; equal values name their occurrences in order."""
    opcode = "nc_find_index8"
    values, wanted = _check_eight(opcode, data, "data"), _check_values(opcode, vals)
    if dst.dtype not in {"uint16", "uint32"}:
        refuse(opcode, f"dst is {dst.dtype}, must be uint16 or uint32", "", dst)
    missing = 0xFFFF if dst.dtype == "uint16" else 0xFFFFFFFF
    out = np.full(wanted.shape, missing, dtype=np.uint32)
    for row in range(wanted.shape[0]):
        seen: dict[float, int] = {}
        for column, value in enumerate(wanted[row].tolist()):
            places = np.flatnonzero(values[row] == value)
            number = seen.get(value, 0)
            if number < places.size:
                out[row, column] = places[number]
            seen[value] = number + 1
    dst.write(out.astype(dst.dtype))
    return running().issue(opcode, "vector", reads(data, vals), reads(dst), name)


def nc_match_replace8(
    dst: Any, data: Any, vals: Any, imm: float, dst_idx: Any = None, name: str | None = None
) -> Record:
    """Replace the first occurrence of each of eight values; equal values are served from the last to the first."""
    opcode = "nc_match_replace8"
    values, wanted = _check_eight(opcode, data, "data").copy(), _check_values(opcode, vals)
    check_tile(opcode, "dst", dst)
    places = np.full(wanted.shape, 0xFFFFFFFF, dtype=np.uint32)
    for row in range(wanted.shape[0]):
        free = np.ones(values.shape[1], dtype=np.bool_)
        for column in reversed(range(_LARGEST)):
            hits = np.flatnonzero((values[row] == wanted[row, column]) & free)
            if hits.size:
                places[row, column] = hits[0]
                free[hits[0]] = False
        values[row, ~free] = imm
    dst.write(values)
    if dst_idx is not None:
        dst_idx.write(places.astype(dst_idx.dtype))
    return running().issue(opcode, "vector", reads(data, vals), reads(dst, dst_idx), name)
