"""Views of tensors: the operations of kernels that choose elements by shape, strides and offset.

Sources: AWS Neuron documentation 2.32, "nki.language.NkiTensor" and "Access patterns" (nki-aps).
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, NoReturn, Self

import numpy as np

from neurontools.compiler.graph_nodes import contiguous_strides
from neurontools.nki.context import fail, is_running, running, whole
from neurontools.nki.dtypes import dtype_name, item_bytes
from neurontools.nki.memory import ON_CHIP, MemoryRegion
from neurontools.nki.objects import Dynamic, DynamicSlice, NKIObject, VirtualRegister
from neurontools.nki.regions import pattern_of
from neurontools.nki.strides import infer_sizes, merge_dims, reshape_strides

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.nki.context import ElementAccess
    from neurontools.nki.memory import Storage
    from neurontools.nki.regions import AccessPattern


_CONSTANT = {int, type(None), type(Ellipsis), type}


class TensorView(NKIObject):
    """The elements of a storage that a shape, strides and an offset name; operations on views share the storage.

    Args:
        shape: sizes by dimension; on the chip the first is the number of partitions.
        dtype: type of the elements.
        storage: where they are.
        buffer: kept for the documented signature; the storage knows its memory.
        name: kept likewise.
    """

    __slots__ = (
        "_access",
        "_array",
        "_parts",
        "_pattern",
        "dtype",
        "dynamic",
        "offset",
        "shape",
        "storage",
        "strides",
    )

    def __init__(
        self, shape: Sequence[int], dtype: Any, storage: Storage, buffer: Any = None, name: str = ""
    ) -> None:
        del buffer, name
        self.shape = tuple(shape)
        self.dtype: str = dtype_name(dtype)
        self.storage = storage
        self.strides = contiguous_strides(self.shape)
        self.offset = 0
        self.dynamic: Dynamic | None = None
        self._array: np.ndarray | None = None
        self._access: ElementAccess | None = None
        self._pattern: AccessPattern | None = None
        self._parts: dict[tuple[Any, ...], Self] = {}  # views of constant indices

    # ---- what it is

    @property
    def buffer(self) -> MemoryRegion:
        """The memory that it is in."""
        return self.storage.allocation.region

    @property
    def pattern(self) -> AccessPattern:
        """Which elements it names, but for an index that is known at run time."""
        pattern = self._pattern
        if pattern is None:
            pattern = self._pattern = pattern_of(
                self.storage.allocation, self.shape, self.strides, self.offset, self.dtype
            )
        return pattern

    @property
    def name(self) -> str:
        """The name that the kernel gave the tensor."""
        return self.storage.allocation.name

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return item_bytes(self.dtype)

    @property
    def on_chip(self) -> bool:
        """Whether it is in SBUF or PSUM."""
        return self.storage.allocation.region in ON_CHIP

    @property
    def free_size(self) -> int:
        """Elements of a partition."""
        return prod(self.shape[1:])

    def __len__(self) -> int:
        return self.shape[0]

    def __bool__(self) -> bool:
        """Say that the tensor exists, as kernels ask with `if tensor:`; elements are known at run time only."""
        return True

    __hash__ = object.__hash__
    __array_ufunc__ = None

    def is_contiguous(self) -> bool:
        """Return whether the elements follow each other; on the chip those of each partition."""
        first = 1 if self.on_chip else 0
        runs = merge_dims(self.shape[first:], self.strides[first:])
        return not runs or (len(runs) == 1 and runs[0][1] == 1)

    def is_indirect(self) -> bool:
        """Return whether an index of the view is known at run time only."""
        return self.dynamic is not None

    def get_pattern(self) -> list[list[int]]:
        """Return stride and size of each dimension."""
        return [[stride, size] for stride, size in zip(self.strides, self.shape, strict=True)]

    # ---- views

    def _view(
        self,
        shape: Sequence[int],
        strides: Sequence[int],
        offset: int | None = None,
        dynamic: Dynamic | None = None,
        dtype: str | None = None,
    ) -> Self:
        made = object.__new__(type(self))
        made.shape = tuple(shape)
        made.strides = tuple(strides)
        made.offset = self.offset if offset is None else offset
        made.dtype = dtype or self.dtype
        made.storage = self.storage
        made.dynamic = dynamic or self.dynamic
        made._array = made._access = made._pattern = None
        made._parts = {}
        return made

    def _refuse(self, function: str, reason: str, remedy: str = "") -> NoReturn:
        fail(function, reason, remedy, self.storage.allocation)

    def __getitem__(self, key: Any) -> Self:
        keys = key if isinstance(key, tuple) else (key,)
        indices = tuple(
            [
                (item.start, item.stop, item.step) if type(item) is slice else (type(item), item)
                for item in keys
            ]
        )
        try:
            return self._parts[indices]
        except (KeyError, TypeError):
            part = self._part(keys)
        if all({*map(type, index)} <= _CONSTANT for index in indices):
            self._parts[indices] = part
        return part

    def _part(self, keys: tuple[Any, ...]) -> Self:
        ndim = len(self.shape)
        shape: list[int] = []
        strides: list[int] = []
        offset, dynamic, dim = self.offset, self.dynamic, 0
        for item in keys:
            if item is None:
                shape.append(1)
                strides.append(0)
                continue
            if item is Ellipsis:
                until = dim + ndim - _count_indices(keys)
                shape += self.shape[dim:until]
                strides += self.strides[dim:until]
                dim = max(dim, until)
                continue
            if dim == ndim:
                self._refuse("index", f"{_count_indices(keys)} indices for {ndim} dimensions")
            size, stride = self.shape[dim], self.strides[dim]
            if isinstance(item, (slice, DynamicSlice)):
                start, length, step = self._range(item, dim)
                if not isinstance(start, int):
                    dynamic, start = self._dynamic(start, stride, size - length + 1), 0
                offset += start * stride
                shape.append(length)
                strides.append(stride * step)
            elif isinstance(item, TensorView | VirtualRegister):
                dynamic = self._dynamic(item, stride, size)
                if dim == 0 and self.on_chip:
                    self._refuse(
                        "index",
                        "a partition cannot be chosen at run time",
                        "select it with nc_stream_shuffle",
                    )
            else:
                number = self._number(item, dim)
                offset += number * stride
                if dim == 0 and self.on_chip:
                    shape.append(1)
                    strides.append(stride)
            dim += 1
        shape += self.shape[dim:]
        strides += self.strides[dim:]
        least = 2 if self.on_chip else 1
        while len(shape) < least:
            shape.append(1)
            strides.append(1)
        return self._view(shape, strides, offset, dynamic)

    def _number(self, item: Any, dim: int) -> int:
        try:
            number = item.__index__()
        except (AttributeError, TypeError):  # that of arrays fails
            self._refuse(
                "index", f"{type(item).__name__} cannot be an index", "use integers, slices, ... and nl.ds"
            )
        size = self.shape[dim]
        if not -size <= number < size:
            self._refuse("index", f"index {number} of dimension {dim} is out of bounds, its size is {size}")
        return int(number % size)

    def _range(self, item: slice | DynamicSlice, dim: int) -> tuple[Any, int, int]:
        size = self.shape[dim]
        if isinstance(item, slice):
            step = 1 if item.step is None else whole("slice", "its step", item.step)
            if step < 1:
                self._refuse("slice", f"step {step} of dimension {dim} is not positive")
            start = 0 if item.start is None else whole("slice", "its start", item.start)
            stop = size if item.stop is None else whole("slice", "its end", item.stop)
            start += size if start < 0 else 0
            stop += size if stop < 0 else 0
        else:
            if isinstance(item.start, (TensorView, VirtualRegister)):
                return item.start, whole("slice", "its size", item.size), 1
            start, step = whole("slice", "its start", item.start), 1
            stop = start + whole("slice", "its size", item.size)
        # In HBM, for a core without a share of the work; no instruction takes an empty view.
        shortest = 1 if self.on_chip else 0
        if not 0 <= start <= stop - shortest <= size - shortest:
            problem = "is empty" if start >= stop else "is out of bounds"
            self._refuse("slice", f"{start}:{stop} of dimension {dim} {problem}, its size is {size}")
        return start, -(-(stop - start) // step), step

    def _dynamic(self, index: Any, stride: int, limit: int, *, is_vector: bool = False) -> Dynamic:
        if self.dynamic is not None:
            self._refuse("index", "a view has at most one index that is known at run time")
        return Dynamic(index, stride, limit, is_vector=is_vector)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._refuse(
            "assignment",
            "tensors are written by instructions (nki of the second generation)",
            "use nisa.tensor_copy or nisa.dma_copy; neuronxcc.nki, the first generation, has assignments",
        )

    def __iter__(self) -> Any:
        self._refuse(
            "iteration", "a tensor cannot be iterated over", "iterate over a range and index the tensor"
        )

    def _dim(self, dim: int, function: str, *, partition: bool = False) -> int:
        number = dim + self.ndim if dim < 0 else dim
        if not 0 <= number < self.ndim:
            self._refuse(function, f"dimension {dim} does not exist, the tensor has {self.ndim}")
        if number == 0 and self.on_chip and not partition:
            self._refuse(function, "the partition dimension stays as it is")
        return number

    def permute(self, dims: Sequence[int]) -> Self:
        """Return the view with reordered dimensions; on the chip the first stays."""
        if sorted(dims) != list(range(self.ndim)):
            self._refuse("permute", f"{tuple(dims)} does not permute {self.ndim} dimensions")
        if dims[0] != 0 and (self.on_chip or (self.dynamic and self.dynamic.is_vector)):
            self._refuse("permute", "the partition dimension stays the first")
        return self._view([self.shape[dim] for dim in dims], [self.strides[dim] for dim in dims])

    def broadcast(self, dim: int, size: int) -> Self:
        """Return the view with a dimension of size 1 repeated."""
        number = self._dim(dim, "broadcast")
        if self.shape[number] != 1:
            self._refuse("broadcast", f"dimension {dim} has size {self.shape[number]}, not 1")
        shape, strides = list(self.shape), list(self.strides)
        shape[number], strides[number] = size, 0
        return self._view(shape, strides)

    def expand_dim(self, dim: int) -> Self:
        """Return the view with a dimension of size 1 inserted."""
        number = dim + self.ndim + 1 if dim < 0 else dim
        if number == 0 and self.on_chip:
            self._refuse("expand_dim", "the partition dimension stays the first")
        shape, strides = list(self.shape), list(self.strides)
        shape.insert(number, 1)
        strides.insert(number, 1 if number == self.ndim else self.strides[number] * self.shape[number])
        return self._view(shape, strides)

    def squeeze_dim(self, dim: int) -> Self:
        """Return the view without a dimension of size 1."""
        number = self._dim(dim, "squeeze_dim")
        if self.shape[number] != 1:
            self._refuse("squeeze_dim", f"dimension {dim} has size {self.shape[number]}, not 1")
        return self._view(
            self.shape[:number] + self.shape[number + 1 :], self.strides[:number] + self.strides[number + 1 :]
        )

    def reshape_dim(self, dim: int, shape: Sequence[int]) -> Self:
        """Return the view with a dimension split; one size may be -1."""
        number = self._dim(dim, "reshape_dim", partition=tuple(shape) == (self.shape[dim],))
        sizes = infer_sizes(shape, self.shape[number])
        if prod(sizes) != self.shape[number]:
            self._refuse("reshape_dim", f"{tuple(shape)} has not {self.shape[number]} elements")
        strides = [step * self.strides[number] for step in contiguous_strides(sizes)]
        return self._view(
            (*self.shape[:number], *sizes, *self.shape[number + 1 :]),
            (*self.strides[:number], *strides, *self.strides[number + 1 :]),
        )

    def flatten_dims(self, start_dim: int, end_dim: int) -> Self:
        """Return the view with neighbouring dimensions merged."""
        first = self._dim(start_dim, "flatten_dims", partition=start_dim == end_dim)
        last = end_dim + self.ndim if end_dim < 0 else end_dim
        merged = merge_dims(self.shape[first : last + 1], self.strides[first : last + 1])
        if len(merged) > 1:
            self._refuse("flatten_dims", f"dimensions {first} to {last} do not follow each other in memory")
        size, stride = merged[0] if merged else (1, 1)
        return self._view(
            (*self.shape[:first], size, *self.shape[last + 1 :]),
            (*self.strides[:first], stride, *self.strides[last + 1 :]),
        )

    def reshape(self, shape: Sequence[int]) -> Self:
        """Return the view with another shape of the same elements in the same order."""
        sizes = infer_sizes(shape, self.size)
        if prod(sizes) != self.size:
            self._refuse(
                "reshape", f"{tuple(shape)} has {prod(sizes)} elements, {self.shape} has {self.size}"
            )
        if self.on_chip and sizes[0] != self.shape[0] and self.shape[0] != 1:
            self._refuse("reshape", f"the partition dimension stays {self.shape[0]}, not {sizes[0]}")
        strides = reshape_strides(self.shape, self.strides, sizes)
        if strides is None:
            self._refuse(
                "reshape",
                f"a view of {self.shape} with gaps has no shape {tuple(sizes)}",
                "reshape before slicing",
            )
        return self._view(sizes, strides)

    def rearrange(
        self,
        src_pattern: Sequence[Any],
        dst_pattern: Sequence[Any],
        fixed_sizes: dict[str, int] | None = None,
    ) -> Self:
        """Return the view with dimensions split, reordered and merged by name, as in einops."""
        fixed = dict(fixed_sizes or {})
        split, names = self, []
        for item in src_pattern:
            group = (item,) if isinstance(item, str) else tuple(item)
            at = len(names)
            if len(group) > 1:
                split = split.reshape_dim(at, [fixed.get(name, -1) for name in group])
            names += group
        order = [name for item in dst_pattern for name in ((item,) if isinstance(item, str) else item)]
        if sorted(order) != sorted(names):
            self._refuse("rearrange", f"{tuple(dst_pattern)} has not the names of {tuple(src_pattern)}")
        result = split.permute([names.index(name) for name in order])
        for at, item in enumerate(dst_pattern):
            if not isinstance(item, str) and len(item) > 1:
                result = result.flatten_dims(at, at + len(item) - 1)
        return result

    def slice(self, dim: int, start: int, end: int, step: int = 1) -> Self:
        """Return the view of a part of a dimension."""
        number = self._dim(dim, "slice", partition=True)
        keys: list[Any] = [slice(None)] * self.ndim
        keys[number] = slice(start, end, step)
        view = self[tuple(keys)]
        if 0 in view.shape:
            self._refuse(
                "slice", f"{start}:{end} of dimension {dim} is empty, its size is {self.shape[number]}"
            )
        return view

    def select(self, dim: int, index: Any) -> Self:
        """Return the view without a dimension, at one of its indices."""
        number = self._dim(dim, "select", partition=not isinstance(index, TensorView))
        keys: list[Any] = [slice(None)] * self.ndim
        keys[number] = index
        return self[tuple(keys)]

    def vector_select(self, dim: int, vector_offset: TensorView) -> Self:
        """Return the view whose rows start at indices of a tensor of one element for each partition."""
        if dim != 0 or self.on_chip:
            self._refuse(
                "vector_select", "only dimension 0 of tensors in HBM has an index for each partition"
            )
        dynamic = self._dynamic(vector_offset, self.strides[0], self.shape[0], is_vector=True)
        return self._view((vector_offset.shape[0], *self.shape[1:]), (0, *self.strides[1:]), dynamic=dynamic)

    def ap(
        self,
        pattern: Sequence[Sequence[int]],
        offset: int | None = None,
        scalar_offset: Any = None,
        vector_offset: TensorView | None = None,
        indirect_dim: int = 0,
        dtype: Any = None,
    ) -> Self:
        """Return the view of an access pattern: stride and size of each dimension over the storage."""
        if not isinstance(pattern, list | tuple) or any(np.shape(pair) != (2,) for pair in pattern):
            self._refuse("ap", f"pattern {pattern!r} is not a list of pairs", "use [[step, size], ...]")
        shape = [int(size) for _, size in pattern]
        strides = [int(step) for step, _ in pattern]
        kind = dtype_name(dtype) if dtype is not None else self.dtype
        base = self.offset * item_bytes(self.dtype) // item_bytes(kind)
        dynamic = None
        if scalar_offset is not None or vector_offset is not None:
            if scalar_offset is not None and vector_offset is not None:
                self._refuse("ap", "scalar_offset and vector_offset exclude each other")
            stride = (
                prod(self.shape[indirect_dim + 1 :]) if self.is_contiguous() else self.strides[indirect_dim]
            )
            index = scalar_offset if scalar_offset is not None else vector_offset
            dynamic = self._dynamic(
                index, stride, self.shape[indirect_dim], is_vector=vector_offset is not None
            )
            if dynamic.is_vector:
                strides[0] = 0
        return self._view(shape, strides, base + (offset or 0), dynamic, kind)

    def view(self, dtype: Any) -> Self:
        """Return the view of the same bytes as elements of another type."""
        kind = dtype_name(dtype)
        old, new = self.itemsize, item_bytes(kind)
        if old == new:
            return self._view(self.shape, self.strides, dtype=kind)
        if self.strides[-1] != 1 and self.shape[-1] != 1:
            self._refuse("view", "the last dimension has gaps")
        last, rest = self.shape[-1] * old, self.strides[:-1]
        if last % new or any(stride * old % new for stride in rest) or self.offset * old % new:
            self._refuse("view", f"{self.shape[-1]} elements of {self.dtype} do not fill elements of {kind}")
        return self._view(
            (*self.shape[:-1], last // new),
            (*(stride * old // new for stride in rest), 1),
            self.offset * old // new,
            dtype=kind,
        )

    reinterpret_cast = view

    def indirect(self, index: TensorView, num_elem: int | None = None) -> Self:
        """Return the view of columns that an index tensor names (trn3): tensor indirection."""
        if is_running() and running().limits.generation < 4:
            self._refuse("indirect", f"tensor indirection needs trn3, not {running().limits.target}")
        count = index.size if num_elem is None else num_elem
        dynamic = Dynamic(index, self.strides[-1], self.free_size, columns=count)
        return self._view((self.shape[0], count), (self.strides[0], self.strides[-1]), dynamic=dynamic)


def _count_indices(keys: tuple[Any, ...]) -> int:
    return sum(item is not None and item is not Ellipsis for item in keys)
