"""Declarations of tensors in kernels, and the checks of their shapes and addresses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from neurontools.base.units import format_binary_size
from neurontools.nki import instructions
from neurontools.nki.context import fail, running, whole
from neurontools.nki.dtypes import dtype_name
from neurontools.nki.instructions.operands import checked
from neurontools.nki.locations import user_declaration
from neurontools.nki.memory import ON_CHIP, Allocation, MemoryRegion, Storage
from neurontools.nki.tensor import NkiTensor

if TYPE_CHECKING:
    from collections.abc import Sequence

sbuf, psum, hbm = MemoryRegion.sbuf, MemoryRegion.psum, MemoryRegion.hbm
private_hbm, shared_hbm = MemoryRegion.private_hbm, MemoryRegion.shared_hbm


def ndarray(
    shape: Sequence[int],
    dtype: Any,
    buffer: Any = sbuf,
    name: str = "",
    address: tuple[int, int] | None = None,
) -> NkiTensor:
    """Declare a tensor; on the chip the first dimension is the partitions."""
    core = running()
    sizes = sizes_of(shape)
    region, kind = checked(_check_size, (), sizes, dtype, buffer)
    number = -1 if region is shared_hbm else core.number
    allocation = Allocation(region, sizes, kind, user_declaration(), name, address, number)
    if address is not None:
        check_declaration(allocation)
    if region is shared_hbm and len(core.launch.cores) > 1:
        storage = _shared_storage(allocation)
    else:
        core.launch.allocations.append(allocation)
        storage = Storage(allocation)
    return NkiTensor(sizes, allocation.dtype, storage)


def _check_size(shape: tuple[int, ...], dtype: Any, buffer: Any) -> tuple[MemoryRegion, str]:
    """Return memory and type of a tensor that fits there."""
    region, kind = _region_of(buffer), dtype_name(dtype)
    check_declaration(Allocation(region, shape, kind, user_declaration()))
    return region, kind


def _region_of(buffer: Any) -> MemoryRegion:
    region = buffer if isinstance(buffer, MemoryRegion) else MemoryRegion.__members__.get(str(buffer))
    if region is None:
        fail(
            "ndarray",
            f"buffer {buffer!r} is not a memory",
            "use nl.sbuf, nl.psum, nl.private_hbm or nl.shared_hbm",
        )
    return region


def sizes_of(shape: Any) -> tuple[int, ...]:
    """Return the sizes of a shape that a kernel declares."""
    if type(shape) is tuple and {*map(type, shape)} == {int}:
        return shape
    if not isinstance(shape, tuple | list):
        shape = (shape,)
    return tuple(whole("ndarray", f"size {number} of the shape", size) for number, size in enumerate(shape))


def _shared_storage(allocation: Allocation) -> Storage:
    """Return the storage of a tensor in shared HBM: cores share it by order of declaration."""
    core = running()
    key = ("shared", core.shared_count)
    core.shared_count += 1
    constants = core.launch.constants
    if key not in constants:
        core.launch.allocations.append(allocation)
        constants[key] = Storage(allocation)
    storage: Storage = constants[key]
    if (storage.allocation.shape, storage.allocation.dtype) != (allocation.shape, allocation.dtype):
        fail(
            "ndarray",
            f"the cores declare different tensors in shared HBM: {storage.allocation.shape} and {allocation.shape}",
            "declare shared tensors in the same order on all cores, or use nl.private_hbm",
            storage.allocation,
        )
    return storage


def check_declaration(allocation: Allocation) -> None:
    """Refuse a declaration that does not fit into its memory."""
    limits = running().limits
    shape, region = allocation.shape, allocation.region
    if not shape or min(shape) < 1:
        fail("ndarray", f"shape {shape} has a size that is not positive")
    if region not in ON_CHIP:
        if allocation.nbytes > limits.hbm_bytes:
            needed, there = format_binary_size(allocation.nbytes), format_binary_size(limits.hbm_bytes)
            fail("ndarray", f"shape {shape} takes {needed}, HBM has {there} on {limits.target}")
        return
    if len(shape) < 2:
        fail(
            "ndarray",
            f"shape {shape} has {len(shape)} dimensions, tensors on the chip have partitions and free dimensions",
            "add a dimension of size 1",
        )
    if shape[0] > limits.partitions:
        fail(
            "ndarray",
            f"partition dimension {shape[0]} exceeds maximum {limits.partitions}",
            "the first dimension is the partitions: tile it by 128",
        )
    memory, most = (
        ("PSUM", limits.psum_partition_bytes) if region is psum else ("SBUF", limits.sbuf_partition_bytes)
    )
    if allocation.partition_bytes > most:
        fail(
            "ndarray",
            f"{allocation.partition_bytes} bytes a partition, {memory} has {most} on {limits.target}",
            "tile the free dimension",
        )
    if allocation.address is not None:
        _check_address(allocation, most)


def _check_address(allocation: Allocation, most: int) -> None:
    address = allocation.address
    if not (isinstance(address, tuple | list) and len(address) == len(("partition", "byte"))):
        fail(
            "ndarray", f"address {address!r} is not a pair", "give the first partition and a byte: (0, 2048)"
        )
    partition, offset = (whole("ndarray", "a number of the address", item) for item in address)
    if min(partition, offset) < 0:
        fail("ndarray", f"address {address} is negative")
    bank = running().limits.psum_bank_bytes
    if allocation.region is psum and offset % bank:
        fail(
            "ndarray",
            f"address {allocation.address} in PSUM must be a multiple of {bank} bytes",
            "start at a bank",
        )
    if partition + allocation.shape[0] > running().limits.partitions:
        fail(
            "ndarray",
            f"address {allocation.address}: partitions {partition} to {partition + allocation.shape[0] - 1} do not exist",
        )
    if offset + allocation.partition_bytes > most:
        fail(
            "ndarray",
            f"address {allocation.address}: ends at byte {offset + allocation.partition_bytes} of {most} a partition",
        )


def _filled(shape: Sequence[int], value: Any, dtype: Any, buffer: Any, name: str) -> NkiTensor:
    made = ndarray(shape, dtype, buffer, name)
    if made.on_chip:
        instructions.memset(made, value)
    else:
        made.write(np.full(made.shape, value, dtype=np.float32))
    return made


def zeros(shape: Sequence[int], dtype: Any, buffer: Any = sbuf, name: str = "") -> NkiTensor:
    """Declare a tensor of zeros."""
    return _filled(shape, 0, dtype, buffer, name)


def ones(shape: Sequence[int], dtype: Any, buffer: Any = sbuf, name: str = "") -> NkiTensor:
    """Declare a tensor of ones."""
    return _filled(shape, 1, dtype, buffer, name)


def full(shape: Sequence[int], fill_value: Any, dtype: Any, buffer: Any = sbuf, name: str = "") -> NkiTensor:
    """Declare a tensor of one value."""
    return _filled(shape, fill_value, dtype, buffer, name)


def zeros_like(x: NkiTensor, dtype: Any = None, buffer: Any = None, name: str = "") -> NkiTensor:
    """Declare a tensor of zeros of the shape and type of another."""
    return zeros(x.shape, dtype or x.dtype, buffer or x.buffer, name)


def empty_like(x: NkiTensor, dtype: Any = None, buffer: Any = None, name: str = "") -> NkiTensor:
    """Declare a tensor of the shape and type of another."""
    return ndarray(x.shape, dtype or x.dtype, buffer or x.buffer, name)


def rand(shape: Sequence[int], dtype: Any, buffer: Any = sbuf, name: str = "") -> NkiTensor:
    """Declare a tensor of uniform numbers of 0 to 1."""
    from neurontools.nki.instructions.random import uniform

    made = ndarray(shape, dtype, buffer, name)
    made.write(uniform("vector", made.shape))
    running().issue("rand", "vector", (), (made.access(),))
    return made


def shared_constant(constant: Any) -> NkiTensor:
    """Declare a tensor in shared HBM with the data of an array or a .npy file."""
    data = np.load(constant) if isinstance(constant, str) else np.asarray(constant)
    if data.dtype in {np.dtype(np.float64), np.dtype(np.int64)}:
        data = data.astype(np.float32 if data.dtype.kind == "f" else np.int32)
    made = ndarray(data.shape, data.dtype, shared_hbm)
    made.write(data)
    return made


def shared_identity_matrix(n: int, dtype: Any = "uint8", dst: NkiTensor | None = None) -> NkiTensor:
    """Return an identity matrix in SBUF."""
    made = ndarray((n, n), dtype) if dst is None else dst
    made.write(np.eye(n, dtype=np.float32))
    running().issue("shared_identity_matrix", "dma", (), (made.access(),))
    return made
