"""Transfers by the DMA engines, and what moves data between partitions and cores."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

from neurontools.nki.constants import dge_mode as modes
from neurontools.nki.constants import dma_engine as dma_engines
from neurontools.nki.constants import engine as engines
from neurontools.nki.constants import oob_mode as bounds
from neurontools.nki.context import Record, running
from neurontools.nki.dtypes import to_float32
from neurontools.nki.instructions.operands import (
    GENERATION_3,
    PSUM,
    SBUF,
    check_conversion,
    check_same_size,
    check_start,
    check_tile,
    checked,
    need_operator,
    needs_generation,
    reads,
    refuse,
)
from neurontools.nki.memory import ON_CHIP, MemoryRegion
from neurontools.nki.tensor import NkiTensor

_OFF_PSUM = tuple(region for region in MemoryRegion if region is not PSUM)
_AXES = {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}
_DESCRIPTOR_ENGINES = (engines.unknown, engines.sync, engines.scalar)
_QUADRANT = 32
_LEAVE = 255
_GPSIMD_DMA_BYTES = {4: 1024, 2: 512, 1: 256}


def dma_copy(
    dst: Any,
    src: Any,
    priority: int | None = None,
    oob_mode: Any = bounds.error,
    dge_mode: Any = modes.unknown,
    engine: Any = engines.unknown,
    name: str | None = None,
) -> Record:
    """Copy between HBM and SBUF; shapes may differ, the number of elements may not."""
    opcode = "dma_copy"
    core = running()
    mode, queue = checked(_check_copy, (dst, src), opcode, dge_mode, engine)
    if core.exchange is not None and dst.buffer is MemoryRegion.shared_hbm:
        core.exchange.let_others(core)
    skip = oob_mode is bounds.skip
    if skip and src.dynamic is not None:
        values, inside = src.gather("src")
        if not inside.all():
            before = dst.array().reshape(values.shape)
            inside = inside.reshape(inside.shape + (1,) * (values.ndim - inside.ndim))
            if src.dtype != dst.dtype:
                values, before = to_float32(values), to_float32(before)
            values = np.where(inside, values, before)
        dst.write(values)
    else:
        dst.write(src.read("src"), oob_skip=skip)
    _check_scatter(opcode, dst)
    return core.issue(
        opcode,
        "dma",
        (src.access(),)
        if src.dynamic is dst.dynamic is None
        else (src.access(), *reads(*_indices(src, dst))),
        (dst.access(),),
        name,
        dge=mode,
        queue=queue,
        priority=priority,
        digest=_digest(dst),
    )


def _check_copy(dst: Any, src: Any, opcode: str, dge_mode: Any, engine: Any) -> tuple[str, str]:
    """Check a copy and return the names of its mode and engine."""
    mode = modes(dge_mode)  # public kernels pass its number too
    for operand, tensor in (("dst", dst), ("src", src)):
        check_tile(opcode, operand, tensor, _OFF_PSUM)
    if dst.size != src.size:
        refuse(
            opcode,
            f"src has {src.size} elements {src.shape}, dst has {dst.size} {dst.shape}",
            "slice both to the same number of elements",
            src,
            dst,
        )
    check_conversion(opcode, dst, src)
    _check_descriptors(opcode, dst, src, mode, engine)
    return mode.name, engine.name


def _indices(*tensors: NkiTensor) -> list[Any]:
    return [tensor.dynamic.index for tensor in tensors if tensor.dynamic is not None]


def _digest(dst: NkiTensor) -> int | None:
    """Return a checksum of what was written where two cores may write the same elements, for the check of races."""
    if len(running().launch.cores) == 1 or dst.buffer in ON_CHIP or dst.dynamic is not None:
        return None
    return zlib.crc32(np.ascontiguousarray(dst.array()).view(np.uint8).reshape(-1))


def _check_descriptors(opcode: str, dst: NkiTensor, src: NkiTensor, mode: Any, engine: Any) -> None:
    if mode is modes.hwdge:
        needs_generation(opcode, GENERATION_3, "hardware descriptor generation")
        if dst.dtype != src.dtype:
            refuse(
                opcode,
                f"hardware descriptors keep the type, src is {src.dtype} and dst {dst.dtype}",
                "choose swdge",
                src,
                dst,
            )
    if engine is engines.gpsimd and mode is not modes.hwdge:
        return
    if engine not in _DESCRIPTOR_ENGINES:
        refuse(
            opcode,
            f"engine {engine.name} makes no hardware descriptors",
            "choose nisa.engine.sync or scalar",
        )


def _check_scatter(opcode: str, dst: NkiTensor) -> None:
    twice = dst.repetition() if running().launch.checks else ""
    if twice:
        running().launch.warn("scatter", f"{opcode}: {twice}, the last write is not defined")


def dma_transpose(
    dst: Any,
    src: Any,
    axes: Any = None,
    priority: int | None = None,
    dge_mode: Any = modes.unknown,
    oob_mode: Any = bounds.error,
    name: str | None = None,
) -> Record:
    """Transpose by the DMA engines: the first and the last dimension change places."""
    opcode, dge_mode = "dma_transpose", modes(dge_mode)
    for operand, tensor in (("dst", dst), ("src", src)):
        check_tile(opcode, operand, tensor, _OFF_PSUM)
    order = _AXES.get(src.ndim)
    if order is None or dst.ndim != src.ndim:
        refuse(
            opcode,
            f"src has {src.ndim} dimensions and dst {dst.ndim}, both must have 2, 3 or 4",
            "",
            src,
            dst,
        )
    if axes is not None and tuple(axes) != order:
        refuse(opcode, f"axes {tuple(axes)} of {src.ndim} dimensions, must be {order}")
    wanted = tuple(src.shape[axis] for axis in order)
    if dst.shape != wanted:
        refuse(opcode, f"dst has shape {dst.shape}, the transpose of {src.shape} has {wanted}", "", dst, src)
    if dst.dtype != src.dtype:
        refuse(opcode, f"dst is {dst.dtype}, must be {src.dtype} as src", "", dst, src)
    if dge_mode is modes.hwdge and src.itemsize != 2:
        refuse(
            opcode,
            f"hardware descriptors transpose types of 2 bytes, not {src.dtype}",
            "choose dge_mode.unknown",
            src,
        )
    if src.dynamic is not None and oob_mode is bounds.skip:
        values, inside = src.gather("src")
        before = np.transpose(dst.array(), order)
        values = np.where(inside.reshape(-1, *[1] * (values.ndim - 1)), values, before)
    else:
        values = src.read("src")
    dst.write(np.transpose(values, order))
    return running().issue(
        opcode,
        "dma",
        reads(src, *_indices(src)),
        reads(dst),
        name,
        dge=dge_mode.name,
        priority=priority,
        digest=_digest(dst),
    )


def dma_compute(
    dst: Any,
    srcs: Any,
    reduce_op: Any,
    scales: Any = None,
    unique_indices: bool = True,
    oob_mode: Any = bounds.error,
    name: str | None = None,
) -> Record:
    """Add up tensors in the DMA engines, in float32; scatter and gather read, modify and write."""
    opcode = "dma_compute"
    operator = need_operator(opcode, reduce_op, "reduce_op")
    if operator.name != "add":
        refuse(opcode, f"reduce_op is {operator.name}, only nl.add is supported")
    most = running().limits.dma_sources
    if not 1 <= len(srcs) <= most:
        refuse(opcode, f"{len(srcs)} sources, at most {most}")
    if scales is not None and any(float(scale) != 1 for scale in scales):
        refuse(opcode, f"scales {list(scales)}, all must be 1")
    if not unique_indices:
        refuse(opcode, "unique_indices=False is not supported", "sum rows of equal indices before")
    for number, source in enumerate(srcs):
        check_tile(opcode, f"srcs[{number}]", source, _OFF_PSUM)
        if source.size != dst.size:
            refuse(opcode, f"srcs[{number}] has {source.size} elements, dst has {dst.size}", "", source, dst)
    skip = oob_mode is bounds.skip
    total = np.zeros(dst.shape, dtype=np.float32)
    for number, source in enumerate(srcs):
        if skip and source.dynamic is not None:
            values, inside = source.gather(f"srcs[{number}]")
            keep = inside.reshape(inside.shape + (1,) * (values.ndim - inside.ndim))
            values = np.where(keep, to_float32(values), np.float32(0))
        else:
            values = source.read32(f"srcs[{number}]")
        total += values.reshape(dst.shape)
    dst.write(total, oob_skip=skip)
    _check_scatter(opcode, dst)
    return running().issue(
        opcode,
        "dma",
        reads(*srcs, *_indices(dst, *srcs)),
        reads(dst),
        name,
        accumulates=True,
        digest=_digest(dst),
    )


def nc_stream_shuffle(dst: Any, src: Any, shuffle_mask: Any, name: str | None = None) -> Record:
    """Copy partitions within each quadrant of 32 by a mask; 255 leaves a partition as it is."""
    opcode = "nc_stream_shuffle"
    for operand, tile in (("dst", dst), ("src", src)):
        check_tile(opcode, operand, tile)
        check_start(opcode, operand, tile)
    mask = [int(item) for item in shuffle_mask]
    if len(mask) != _QUADRANT or any(not 0 <= item < _QUADRANT and item != _LEAVE for item in mask):
        refuse(opcode, f"shuffle_mask has {len(mask)} entries, must be {_QUADRANT} of 0 to 31, or 255", "")
    if dst.dtype != src.dtype:
        refuse(opcode, f"dst is {dst.dtype}, must be {src.dtype} as src", "", dst, src)
    if dst.free_size != src.free_size:
        check_same_size(opcode, dst, src, "src")
    values = src.array() if src.dynamic is None else src.read("src")
    out = dst.array()
    values = values.reshape(values.shape[0], *out.shape[1:]).copy()
    used: list[int] = []
    for partition in range(out.shape[0]):
        quadrant, lane = divmod(partition, _QUADRANT)
        source = quadrant * _QUADRANT + mask[lane]
        if mask[lane] == _LEAVE or source >= values.shape[0]:
            continue
        used.append(source)
        out[partition] = values[source]
    if used:
        src[min(used) : max(used) + 1].read("src") if len(set(used)) == max(used) - min(used) + 1 else None
    dst._mark()  # noqa: SLF001
    return running().issue(opcode, "vector", reads(src), reads(dst), name)


# ---- two cores


def core_barrier(data: Any, cores: Any, engine: Any = engines.gpsimd, name: str | None = None) -> Record:
    """Wait until all cores are here."""
    opcode = "core_barrier"
    needs_generation(opcode, GENERATION_3)
    core = running()
    if tuple(cores) != (0, 1):
        refuse(opcode, f"cores={tuple(cores)}, only (0, 1) is supported")
    if isinstance(data, NkiTensor) and data.buffer in ON_CHIP:
        label = data.storage.allocation.label
        core.launch.warn("barrier", f"{opcode}: {label} is on the chip, which other cores cannot read")
    record = core.issue(opcode, engine.name, (), (), name, barrier=True)
    if core.exchange is not None:
        core.exchange.meet(core, opcode)
    return record


def sendrecv(
    src: Any,
    dst: Any,
    send_to_rank: Any,
    recv_from_rank: Any,
    pipe_id: Any,
    dma_engine: Any = dma_engines.dma,
    name: str | None = None,
) -> Record:
    """Exchange tiles of SBUF with the other core."""
    opcode = "sendrecv"
    needs_generation(opcode, GENERATION_3)
    core = running()
    for operand, tile in (("src", src), ("dst", dst)):
        check_tile(opcode, operand, tile, (SBUF,))
    if src.dtype != dst.dtype or src.size != dst.size:
        refuse(opcode, f"src {src.shape} {src.dtype} and dst {dst.shape} {dst.dtype} differ", "", src, dst)
    for argument, rank in (("send_to_rank", send_to_rank), ("recv_from_rank", recv_from_rank)):
        if rank not in {0, 1}:
            refuse(opcode, f"{argument} is {rank}, must be 0 or 1")
    if dma_engine is dma_engines.gpsimd_dma:
        most = _GPSIMD_DMA_BYTES[src.itemsize]
        if src.free_size * src.itemsize > most:
            refuse(
                opcode,
                f"{src.free_size * src.itemsize} bytes a partition, at most {most} of {src.dtype} by the gpsimd DMA",
                "use dma_engine.dma",
                src,
            )
    record = core.issue(opcode, "dma", reads(src), reads(dst), name, barrier=True)
    if core.exchange is None:
        refuse(opcode, "the kernel runs on one core", "launch it with kernel[2](...)")
    values, unwritten = src.read_partly("src")
    sent = (values.copy(), unwritten)
    received, missing = core.exchange.swap(core, opcode, pipe_id, send_to_rank, recv_from_rank, sent)
    dst.write(received)
    dst.mark_partly(missing)
    return record
