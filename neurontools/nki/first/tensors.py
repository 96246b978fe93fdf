"""Functions of nki.language that declare tensors (first generation)."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from neurontools.nki import instructions
from neurontools.nki.context import fail, running
from neurontools.nki.declarations import check_declaration, sizes_of
from neurontools.nki.dtypes import numpy_dtype
from neurontools.nki.first.allocation import Placed, as_buffer
from neurontools.nki.first.blocks import BlockTensor
from neurontools.nki.first.dtypes import name_of
from neurontools.nki.first.errors import refuse_size
from neurontools.nki.first.execution import new_tile
from neurontools.nki.first.loops import as_traced
from neurontools.nki.first.tile import Tile
from neurontools.nki.first.views import plain_view
from neurontools.nki.instructions.random import uniform
from neurontools.nki.locations import user_declaration
from neurontools.nki.memory import ON_CHIP, Allocation, MemoryRegion, Storage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.nki.first.allocation import KernelBuffer


class ParDim(int):
    """A size that is marked as the partition dimension: `nl.par_dim(128)`."""

    def __repr__(self) -> str:
        return f"par_dim({int(self)})"


def ndarray(shape: Any, dtype: Any, *, buffer: Any = None, name: str = "") -> Any:
    """Declare a tensor; on the chip, dimensions before the partitions number tiles."""
    sizes = tuple(shape) if isinstance(shape, tuple | list) else (shape,)
    blocks = next((dim for dim, size in enumerate(sizes) if isinstance(size, ParDim)), 0)
    sizes = sizes_of(sizes)
    place, kind = as_buffer(buffer), name_of(dtype)
    if place.region not in ON_CHIP:
        return _in_hbm(sizes, kind, place.region, name)
    if isinstance(place, Placed):
        place = as_traced(place)
    location, core = user_declaration(), running()

    def make(numbers: tuple[int, ...]) -> Tile:
        tile_shape = sizes[blocks:] if len(sizes) - blocks > 1 else (*sizes[blocks:], 1)
        allocation = Allocation(place.region, tile_shape, kind, location, name, core=core.number)
        allocation.address = place.address(numbers, tile_shape[0], allocation.partition_bytes)
        if tile_shape[0] > core.limits.partitions:
            refuse_size(
                "ndarray",
                f"number of partitions {tile_shape[0]} exceed architecture limitation of {core.limits.partitions}.",
                "tile the partition dimension",
            )
        check_declaration(allocation)
        core.launch.allocations.append(allocation)
        storage = Storage(allocation)
        # What a mask left out is read without harm, so only sums in PSUM need to know what was written by element.
        allocation.is_empty = True
        storage.is_complete = place.region is not MemoryRegion.psum
        return Tile(plain_view(storage, tile_shape, kind))

    if blocks == 0:
        return make(())
    made = BlockTensor(sizes, blocks, kind, make, {})
    if isinstance(place, Placed):  # addresses are checked where the tensor is declared
        for _ in made.tiles():
            pass
    return made


def _in_hbm(shape: tuple[int, ...], dtype: str, region: MemoryRegion, name: str) -> Tile:
    core = running()
    allocation = Allocation(
        region,
        shape,
        dtype,
        user_declaration(),
        name,
        core=-1 if region is MemoryRegion.shared_hbm else core.number,
    )
    check_declaration(allocation)
    if region is not MemoryRegion.shared_hbm:
        core.launch.allocations.append(allocation)
        return Tile(plain_view(Storage(allocation), shape, dtype))
    # The programs of a grid share these tensors, by order of declaration.
    key = ("shared", core.shared_count)
    core.shared_count += 1
    storage = core.launch.constants.get(key)
    if storage is None:
        core.launch.allocations.append(allocation)
        storage = core.launch.constants[key] = Storage(allocation)
    elif (storage.allocation.shape, storage.allocation.dtype) != (shape, dtype):
        fail(
            "ndarray",
            f"the programs of the grid declare different tensors in shared HBM: {storage.allocation.shape} and {shape}",
            "declare shared tensors in the same order in all programs",
            storage.allocation,
        )
    return Tile(plain_view(storage, shape, dtype))


def _filled(shape: Any, value: Any, dtype: Any, buffer: Any, name: str) -> Any:
    place: KernelBuffer = as_buffer(buffer)
    if place.region not in ON_CHIP:
        fail(
            "full",
            "Creating HBM tensor with init value is not supported.",
            "declare it with nl.ndarray and write it with nl.store",
        )
    if isinstance(place, Placed):
        fail(
            "full",
            "Creating SBUF/PSUM tensor with init value is not supported in allocated NKI kernels.",
            "declare it with nl.ndarray and assign the value",
        )
    made = ndarray(shape, dtype, buffer=buffer, name=name)
    for tile in made.tiles() if isinstance(made, BlockTensor) else (made,):
        operand = tile.operand
        if place.region is MemoryRegion.psum and value == 0:
            # The first product of a sum overwrites: no instruction writes the zeros.
            operand.storage.data.fill(0)
            operand.storage.is_complete = True
            operand.storage.allocation.is_empty = False
        else:
            instructions.memset(operand, value)
    return made


def zeros(shape: Any, dtype: Any, *, buffer: Any = None, name: str = "") -> Any:
    """Declare a tensor of zeros."""
    return _filled(shape, 0, dtype, buffer, name)


def ones(shape: Any, dtype: Any, *, buffer: Any = None, name: str = "") -> Any:
    """Declare a tensor of ones."""
    return _filled(shape, 1, dtype, buffer, name)


def full(shape: Any, fill_value: Any, dtype: Any, *, buffer: Any = None, name: str = "") -> Any:
    """Declare a tensor of one value."""
    return _filled(shape, fill_value, dtype, buffer, name)


def _like(a: Any) -> tuple[Sequence[int], Any]:
    blocks = a.block_dims if isinstance(a, BlockTensor) else 0
    shape = [ParDim(size) if dim == blocks else size for dim, size in enumerate(a.shape)]
    buffer = a[(0,) * blocks].buffer if blocks else a.buffer
    return shape, buffer


def zeros_like(a: Any, dtype: Any = None, *, buffer: Any = None, name: str = "") -> Any:
    """Declare a tensor of zeros of the shape and type of another."""
    shape, place = _like(a)
    return zeros(shape, dtype if dtype is not None else a.dtype, buffer=buffer or place, name=name)


def empty_like(a: Any, dtype: Any = None, *, buffer: Any = None, name: str = "") -> Any:
    """Declare a tensor of the shape and type of another."""
    shape, place = _like(a)
    return ndarray(shape, dtype if dtype is not None else a.dtype, buffer=buffer or place, name=name)


def rand(shape: Any, dtype: Any = np.float32) -> Tile:
    """Return a tile of uniform numbers of 0 to 1."""
    made = new_tile(shape, name_of(dtype))
    made.operand.write(uniform("vector", made.shape))
    made.producer = running().issue("rand", "vector", (), (made.operand.access(),))
    return made


def shared_constant(constant: Any, dtype: Any = None) -> Tile:
    """Declare a tensor in HBM with the data of an array."""
    data = np.load(constant) if isinstance(constant, str) else np.asarray(constant)
    kind = name_of(dtype if dtype is not None else data.dtype)
    allocation = Allocation(MemoryRegion.shared_hbm, data.shape, kind, user_declaration())
    running().launch.allocations.append(allocation)
    made = Tile(
        plain_view(Storage(allocation, np.empty(prod(data.shape), numpy_dtype(kind))), data.shape, kind)
    )
    made.operand.write(data)
    return made


def shared_identity_matrix(n: int, dtype: Any = np.uint8) -> Tile:
    """Declare an identity matrix in HBM."""
    return shared_constant(np.eye(n, dtype=np.float32), dtype)
