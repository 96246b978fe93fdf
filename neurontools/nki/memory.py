"""Memory of a core: regions, allocations, and the storage that holds their elements."""

from __future__ import annotations

from enum import Enum
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from neurontools.nki.dtypes import item_bytes, numpy_dtype
from neurontools.nki.locations import assigned_name

if TYPE_CHECKING:
    from neurontools.nki.locations import UserLine


class MemoryRegion(Enum):
    """Where a tensor is: SBUF and PSUM are on the chip; `hbm` is an older name of shared HBM, also of arguments."""

    __hash__ = object.__hash__  # that of Enum is slow

    sbuf = "sbuf"
    psum = "psum"
    private_hbm = "private_hbm"
    shared_hbm = "shared_hbm"
    hbm = shared_hbm


ON_CHIP = (MemoryRegion.sbuf, MemoryRegion.psum)


class Allocation:
    """A tensor's place in memory, without its elements: what instructions that have been executed keep.

    Args:
        region: the memory.
        shape: sizes by dimension; on the chip the first is the number of partitions.
        dtype: NKI name of the type.
        location: line of the declaration.
        name: name that the kernel gave it.
        address: first partition and byte offset, where the kernel chooses them.
        core: number of the core that declared it; -1 for what all cores share.
    """

    __slots__ = (
        "address",
        "core",
        "dtype",
        "is_argument",
        "is_empty",
        "location",
        "name",
        "partition_bytes",
        "region",
        "shape",
    )

    def __init__(
        self,
        region: MemoryRegion,
        shape: tuple[int, ...],
        dtype: str,
        location: UserLine,
        name: str = "",
        address: tuple[int, int] | None = None,
        core: int = -1,
    ) -> None:
        self.region = region
        self.shape = shape
        self.dtype = dtype
        self.location = location
        self.name = name
        self.address = address
        self.core = core
        self.is_argument = False
        self.is_empty = False  # whether it holds nothing until an instruction writes it
        self.partition_bytes = prod(shape[1:]) * item_bytes(dtype)

    @property
    def label(self) -> str:
        """The name of the tensor: the kernel's, or the variable's."""
        return self.name or assigned_name(self.location) or self.region.value

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.partition_bytes * self.shape[0] if self.shape else item_bytes(self.dtype)


class Storage:
    """The elements of an allocation, and which of them have been written.

    Args:
        allocation: where they are.
        data: the elements as a flat array; None makes an array of NaN, integers with 4, as the vendor's
            simulator fills it, unless the first instruction writes all of it.
    """

    __slots__ = (
        "_data", "_typed", "allocation", "is_blank", "is_complete", "origin", "written", "written_views",
    )  # fmt: skip

    def __init__(self, allocation: Allocation, data: np.ndarray | None = None) -> None:
        self.allocation = allocation
        self.is_blank = data is None
        self.is_complete = data is not None
        self.written: np.ndarray | None = None
        self.origin: tuple[str, UserLine] | None = (
            None  # warning of elements that were computed from unwritten ones
        )
        self.written_views: set[tuple[object, ...]] = set()  # shapes, strides and offsets, for a quick look
        if data is None:
            data = np.empty(prod(allocation.shape), numpy_dtype(allocation.dtype))
        self._data = data
        self._typed: dict[str, np.ndarray] = {allocation.dtype: data}

    @property
    def data(self) -> np.ndarray:
        """The elements as a flat array."""
        if self.is_blank:
            self._fill()
        return self._data

    @property
    def size(self) -> int:
        """Number of elements."""
        return self._data.size

    def _fill(self) -> None:
        self.is_blank = False
        kind = self._data.dtype.kind
        self._data.fill(_UNWRITTEN_INTEGER if kind in "iu" else False if kind == "b" else _UNWRITTEN_FLOAT)

    def complete(self) -> None:
        """Note that all elements are written."""
        self.is_complete, self.written, self.origin = True, None, None

    def flags(self) -> np.ndarray:
        """Return by element whether it is written; only of storage that is not complete."""
        if self.written is None:
            self.written = np.zeros(self._data.size, dtype=np.bool_)
        return self.written

    def typed(self, dtype: str) -> np.ndarray:
        """Return the elements as those of another type."""
        if self.is_blank:
            self._fill()
        return self._view(dtype)

    def held_dtype(self, dtype: str) -> np.dtype[Any]:
        """Return the numpy type of elements of another type."""
        return self._view(dtype).dtype

    def _view(self, dtype: str) -> np.ndarray:
        flat = self._typed.get(dtype)
        if flat is None:
            flat = self._typed[dtype] = self._data.view(numpy_dtype(dtype))
        return flat


_UNWRITTEN_INTEGER = 4
_UNWRITTEN_FLOAT = np.nan
