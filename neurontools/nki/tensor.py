"""Tensors of kernels: views of memory by shape and strides, which instructions read and write.

Sources: AWS Neuron documentation 2.32, "nki.language.NkiTensor" and "Access patterns" (nki-aps).
"""

from __future__ import annotations

import inspect
from math import prod
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from neurontools.nki.context import ElementAccess, declarations, fail, is_running, running
from neurontools.nki.dtypes import cast, dtype_name, item_bytes, to_float32
from neurontools.nki.memory import ON_CHIP, MemoryRegion

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.nki.memory import Storage


class NKIObject:
    """Base of classes in kernels: a class without `__init__` takes its annotated fields, missing ones as None."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__init__" not in cls.__dict__ and cls.__init__ in (
            NKIObject.__init__,
            object.__init__,
            _from_fields,
        ):
            cls.__init__ = _from_fields  # type: ignore[method-assign]

    def __init__(self, **values: Any) -> None:
        _from_fields(self, **values)


def _from_fields(self: NKIObject, *positional: Any, **values: Any) -> None:
    """Set the annotated fields of a class and its bases; call `__post_init__`."""
    kind = type(self)
    names = _field_names(kind)
    if len(positional) > len(names):
        raise TypeError(f"{kind.__name__} takes {len(names)} fields, not {len(positional)}")
    values.update(zip(names, positional, strict=False))
    # Attributes without annotation are fields, too.
    names += [name for name in values if name not in names and hasattr(kind, name)]
    unknown = [name for name in values if name not in names]
    if unknown:
        raise TypeError(f"{kind.__name__} has no field {unknown[0]!r}")
    declared = getattr(kind, "__dataclass_fields__", {})
    for name in names:
        if name in values:
            value = values[name]
        elif name in declared:
            value = _default(declared[name])
        else:
            value = getattr(kind, name, None)
        object.__setattr__(self, name, value)
    after = getattr(self, "__post_init__", None)
    if after is not None:
        after()


def _field_names(kind: type) -> list[str]:
    names: dict[str, None] = {}
    for base in reversed(kind.__mro__):
        names.update(dict.fromkeys(inspect.get_annotations(base)))
        if base is not object and base is not NKIObject:
            names.update(
                dict.fromkeys(name for name, value in base.__dict__.items() if _is_field(name, value))
            )
    return list(names)


def _is_field(name: str, value: Any) -> bool:
    """Return whether an attribute of a class is a field with a default: public kernels leave annotations out."""
    is_data = not callable(value) and not hasattr(type(value), "__get__")
    return is_data and not (name.startswith("__") and name.endswith("__"))


def _default(declared: Any) -> Any:
    import dataclasses

    if declared.default is not dataclasses.MISSING:
        return declared.default
    return declared.default_factory() if declared.default_factory is not dataclasses.MISSING else None


class DynamicSlice:
    """A slice of `size` elements from a start on, which may be a register."""

    __slots__ = ("size", "start")

    def __init__(self, start: Any, size: int) -> None:
        self.start = start
        self.size = size


class VirtualRegister(NKIObject):
    """A 32-bit register of an engine's sequencer."""

    def __init__(self, state: int | None = None, frozen: bool = False) -> None:
        self.value = 0 if state is None else int(state)
        self.frozen = frozen

    def __bool__(self) -> bool:
        return self.value != 0

    def __int__(self) -> int:
        return self.value

    __index__ = __int__

    def __repr__(self) -> str:
        return f"VirtualRegister({self.value})"


class Dynamic:
    """An index that is known when the instruction runs.

    Args:
        index: a register, a tensor of one element, or of one element for each row (`is_vector`).
        stride: elements of the storage between neighbouring indices.
        limit: indices from this one on are out of bounds.
        is_vector: whether each row of dimension 0 has an index of its own.
        columns: whether the index tensor holds columns of tensor indirection instead.
    """

    __slots__ = ("columns", "index", "is_vector", "limit", "stride")

    def __init__(
        self, index: Any, stride: int, limit: int, *, is_vector: bool = False, columns: int = 0
    ) -> None:
        self.index = index
        self.stride = stride
        self.limit = limit
        self.is_vector = is_vector
        self.columns = columns

    def values(self) -> np.ndarray:
        """Return the indices as a flat array."""
        if isinstance(self.index, NkiTensor):
            if self.is_vector:  # down the partitions first
                return (
                    self.index.read("index").reshape(self.index.shape[0], -1).T.reshape(-1).astype(np.int64)
                )
            return self.index.read("index").reshape(-1).astype(np.int64)
        return np.array([int(self.index)], dtype=np.int64)


class NkiTensor(NKIObject):
    """A view of memory. Operations on views share the storage; instructions read and write through them.

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
        "dtype",
        "dynamic",
        "is_checked",
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
        self.strides = row_major(self.shape)
        self.offset = 0
        self.dynamic: Dynamic | None = None
        self._array: np.ndarray | None = None
        self._access: ElementAccess | None = None
        self.is_checked = False

    # ---- what it is

    @property
    def buffer(self) -> MemoryRegion:
        """The memory that it is in."""
        return self.storage.allocation.region

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

    def __repr__(self) -> str:
        return f"NkiTensor({self.storage.allocation.label}, {self.shape}, {self.dtype}, {self.buffer.value})"

    def __str__(self) -> str:
        elements = "elements known at run time only" if self.dynamic is not None else str(self.array())
        return (
            f"{self.storage.allocation.label}: {self.dtype} {self.shape} in {self.buffer.value}\n{elements}"
        )

    def __len__(self) -> int:
        return self.shape[0]

    def __bool__(self) -> bool:
        """Say that the tensor exists, as kernels ask with `if tensor:`; elements are known at run time only."""
        return True

    __hash__ = object.__hash__

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
    ) -> NkiTensor:
        made = object.__new__(type(self))
        made.shape = tuple(shape)
        made.strides = tuple(strides)
        made.offset = self.offset if offset is None else offset
        made.dtype = dtype or self.dtype
        made.storage = self.storage
        made.dynamic = dynamic or self.dynamic
        made._array = made._access = None
        made.is_checked = False
        return made

    def _refuse(self, function: str, reason: str, remedy: str = "") -> NoReturn:
        fail(function, reason, remedy, self.storage.allocation)

    def __getitem__(self, key: Any) -> NkiTensor:
        keys = list(key) if isinstance(key, tuple) else [key]
        given = sum(item is not None and item is not Ellipsis for item in keys)
        if given > self.ndim:
            self._refuse("index", f"{given} indices for {self.ndim} dimensions")
        if Ellipsis in [item for item in keys if item is Ellipsis]:
            at = next(number for number, item in enumerate(keys) if item is Ellipsis)
            keys[at : at + 1] = [slice(None)] * (self.ndim - given)
        else:
            keys += [slice(None)] * (self.ndim - given)
        shape: list[int] = []
        strides: list[int] = []
        offset, dynamic, dim = self.offset, self.dynamic, 0
        for item in keys:
            if item is None:
                shape.append(1)
                strides.append(0)
                continue
            size, stride = self.shape[dim], self.strides[dim]
            if isinstance(item, slice | DynamicSlice):
                start, length, step = self._range(item, dim)
                if not isinstance(start, int):
                    dynamic, start = self._dynamic(start, stride, size - length + 1), 0
                offset += start * stride
                shape.append(length)
                strides.append(stride * step)
            elif isinstance(item, NkiTensor | VirtualRegister):
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
        least = 2 if self.on_chip else 1
        while len(shape) < least:
            shape.append(1)
            strides.append(1)
        return self._view(shape, strides, offset, dynamic)

    def _number(self, item: Any, dim: int) -> int:
        try:
            number = item.__index__()
        except AttributeError:
            self._refuse(
                "index", f"{type(item).__name__} cannot be an index", "use integers, slices, ... and nl.ds"
            )
        size = self.shape[dim]
        if not -size <= number < size:
            self._refuse("index", f"index {number} of dimension {dim} is out of bounds, its size is {size}")
        return int(number % size)

    def _range(self, item: slice | DynamicSlice, dim: int) -> tuple[Any, int, int]:
        size = self.shape[dim]
        if isinstance(item, DynamicSlice):
            if isinstance(item.start, NkiTensor | VirtualRegister):
                return item.start, int(item.size), 1
            start, stop, step = int(item.start), int(item.start) + int(item.size), 1
        else:
            step = 1 if item.step is None else int(item.step)
            if step < 1:
                self._refuse("slice", f"step {step} of dimension {dim} is not positive")
            start = 0 if item.start is None else int(item.start)
            stop = size if item.stop is None else int(item.stop)
            start += size if start < 0 else 0
            stop += size if stop < 0 else 0
        if not 0 <= start < stop <= size:
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

    def permute(self, dims: Sequence[int]) -> NkiTensor:
        """Return the view with reordered dimensions; on the chip the first stays."""
        if sorted(dims) != list(range(self.ndim)):
            self._refuse("permute", f"{tuple(dims)} does not permute {self.ndim} dimensions")
        if dims[0] != 0 and (self.on_chip or (self.dynamic and self.dynamic.is_vector)):
            self._refuse("permute", "the partition dimension stays the first")
        return self._view([self.shape[dim] for dim in dims], [self.strides[dim] for dim in dims])

    def broadcast(self, dim: int, size: int) -> NkiTensor:
        """Return the view with a dimension of size 1 repeated."""
        number = self._dim(dim, "broadcast")
        if self.shape[number] != 1:
            self._refuse("broadcast", f"dimension {dim} has size {self.shape[number]}, not 1")
        shape, strides = list(self.shape), list(self.strides)
        shape[number], strides[number] = size, 0
        return self._view(shape, strides)

    def expand_dim(self, dim: int) -> NkiTensor:
        """Return the view with a dimension of size 1 inserted."""
        number = dim + self.ndim + 1 if dim < 0 else dim
        if number == 0 and self.on_chip:
            self._refuse("expand_dim", "the partition dimension stays the first")
        shape, strides = list(self.shape), list(self.strides)
        shape.insert(number, 1)
        strides.insert(number, 1 if number == self.ndim else self.strides[number] * self.shape[number])
        return self._view(shape, strides)

    def squeeze_dim(self, dim: int) -> NkiTensor:
        """Return the view without a dimension of size 1."""
        number = self._dim(dim, "squeeze_dim")
        if self.shape[number] != 1:
            self._refuse("squeeze_dim", f"dimension {dim} has size {self.shape[number]}, not 1")
        return self._view(
            self.shape[:number] + self.shape[number + 1 :], self.strides[:number] + self.strides[number + 1 :]
        )

    def reshape_dim(self, dim: int, shape: Sequence[int]) -> NkiTensor:
        """Return the view with a dimension split; one size may be -1."""
        number = self._dim(dim, "reshape_dim", partition=tuple(shape) == (self.shape[dim],))
        sizes = _infer(shape, self.shape[number])
        if prod(sizes) != self.shape[number]:
            self._refuse("reshape_dim", f"{tuple(shape)} has not {self.shape[number]} elements")
        strides = [step * self.strides[number] for step in row_major(sizes)]
        return self._view(
            (*self.shape[:number], *sizes, *self.shape[number + 1 :]),
            (*self.strides[:number], *strides, *self.strides[number + 1 :]),
        )

    def flatten_dims(self, start_dim: int, end_dim: int) -> NkiTensor:
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

    def reshape(self, shape: Sequence[int]) -> NkiTensor:
        """Return the view with another shape of the same elements in the same order."""
        sizes = _infer(shape, self.size)
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
    ) -> NkiTensor:
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

    def slice(self, dim: int, start: int, end: int, step: int = 1) -> NkiTensor:
        """Return the view of a part of a dimension."""
        number = self._dim(dim, "slice", partition=True)
        keys: list[Any] = [slice(None)] * self.ndim
        keys[number] = slice(start, end, step)
        return self[tuple(keys)]

    def select(self, dim: int, index: Any) -> NkiTensor:
        """Return the view without a dimension, at one of its indices."""
        number = self._dim(dim, "select", partition=not isinstance(index, NkiTensor))
        keys: list[Any] = [slice(None)] * self.ndim
        keys[number] = index
        return self[tuple(keys)]

    def vector_select(self, dim: int, vector_offset: NkiTensor) -> NkiTensor:
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
        vector_offset: NkiTensor | None = None,
        indirect_dim: int = 0,
        dtype: Any = None,
    ) -> NkiTensor:
        """Return the view of an access pattern: stride and size of each dimension over the storage."""
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

    def view(self, dtype: Any) -> NkiTensor:
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

    def indirect(self, index: NkiTensor, num_elem: int | None = None) -> NkiTensor:
        """Return the view of columns that an index tensor names (trn3): tensor indirection."""
        if is_running() and running().limits.generation < 4:
            self._refuse("indirect", f"tensor indirection needs trn3, not {running().limits.target}")
        count = index.size if num_elem is None else num_elem
        dynamic = Dynamic(index, self.strides[-1], self.free_size, columns=count)
        return self._view((self.shape[0], count), (self.strides[0], self.strides[-1]), dynamic=dynamic)

    # ---- elements

    def array(self) -> np.ndarray:
        """Return the elements as an array that shares the storage; the view must not be dynamic."""
        array = self._array
        if array is None:
            array = self._array = strided(
                self.storage.typed(self.dtype), self.shape, self.strides, self.offset, self
            )
        return array

    def read(self, operand: str = "") -> np.ndarray:
        """Return the elements, and warn of those that no instruction has written."""
        storage = self.storage
        if self.dynamic is not None:
            return self._gather(operand)
        if not storage.is_complete:
            self._check_written(operand)
        return self.array()

    def read32(self, operand: str = "") -> np.ndarray:
        """Return the elements as float32."""
        return to_float32(self.read(operand))

    def write(self, values: np.ndarray, *, oob_skip: bool = False) -> None:
        """Store values, cast to the type of the tensor. Shapes may differ, the number of elements may not."""
        if self.dynamic is not None:
            self._scatter(cast(values, self.dtype), oob_skip)
            return
        target = self._array
        if target is None:
            target = self.array()
        if values.dtype != target.dtype or self.dtype == "tfloat32":
            values = cast(values, self.dtype)
        if values.shape != target.shape:
            values = values.reshape(target.shape)
        target[...] = values
        if not self.storage.is_complete:
            self._mark()

    def access(self) -> ElementAccess:
        """Return which elements an instruction reads or writes here."""
        storage = self.storage
        if self.dynamic is not None:
            indices, inside = self._flat_indices()
            elements = np.unique(indices[inside])
            is_gather = self.dynamic.is_vector or self.dynamic.columns > 0
            return ElementAccess(
                storage.allocation, self.offset, self.shape, self.strides, self.dtype, elements, is_gather
            )
        if self._access is None:
            self._access = ElementAccess(
                storage.allocation, self.offset, self.shape, self.strides, self.dtype
            )
        return self._access

    def _mark(self) -> None:
        storage = self.storage
        is_whole = self.size == storage.data.size and self.strides and 0 not in self.strides
        if is_whole or self.itemsize != item_bytes(storage.allocation.dtype):
            storage.complete()
            return
        strided(storage.flags(), self.shape, self.strides, self.offset, self)[...] = True

    def _check_written(self, operand: str) -> None:
        storage = self.storage
        if self.itemsize != item_bytes(storage.allocation.dtype):
            return
        if storage.written is not None:
            written = strided(storage.written, self.shape, self.strides, self.offset, self)
            if written.all():
                if self.size == storage.data.size:
                    storage.complete()
                return
            missing = self.size - int(written.sum())
        else:
            missing = self.size
        if is_running() and running().launch.checks:
            notes = " ".join(declarations(storage.allocation)).removeprefix("note: ")
            running().launch.warn(
                "unwritten",
                f"{operand or 'operand'}: {missing} of {self.size} elements were never written ({notes})",
            )

    def _flat_indices(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the element numbers of a dynamic view, and by row which of them are in bounds."""
        dynamic = self.dynamic
        assert dynamic is not None
        if dynamic.columns:
            index = dynamic.index.read("index")
            group = 16
            order = np.concatenate(
                [index[start : start + group].T.reshape(1, -1) for start in range(0, index.shape[0], group)]
            )[:, : dynamic.columns].astype(np.int64)
            by_row = np.repeat(order, group, axis=0)[: self.shape[0]]
            starts = np.arange(self.shape[0])[:, None] * self.strides[0]
            return self.offset + starts + by_row * dynamic.stride, (by_row >= 0) & (by_row < dynamic.limit)
        values = dynamic.values()
        if values.dtype.kind == "i":
            values = np.where(values >= 1 << 31, values - (1 << 32), values)
        if dynamic.is_vector:
            rows = self.shape[0]
            values = values[:rows]
            inside = (values >= 0) & (values < dynamic.limit)
            base = values * dynamic.stride
        else:
            inside = np.repeat((values[:1] >= 0) & (values[:1] < dynamic.limit), self.shape[0])
            base = np.repeat(values[:1] * dynamic.stride, self.shape[0])
        rest = _grid(self.shape[1:], self.strides[1:]) + self.offset
        first = base + np.arange(self.shape[0]) * self.strides[0]
        return first.reshape(-1, *[1] * rest.ndim) + rest, inside

    def _gather(self, operand: str) -> np.ndarray:
        indices, inside = self._flat_indices()
        flat = self.storage.typed(self.dtype)
        if not inside.all():
            self._out_of_bounds(operand, inside)
        return flat[np.clip(indices, 0, flat.size - 1)]

    def gather(self, operand: str = "") -> tuple[np.ndarray, np.ndarray]:
        """Return elements and which rows of dimension 0 are in bounds, without an error for those that are not."""
        if self.dynamic is None:
            return self.read(operand), np.ones(self.shape[0], dtype=np.bool_)
        indices, inside = self._flat_indices()
        flat = self.storage.typed(self.dtype)
        return flat[np.clip(indices, 0, flat.size - 1)], inside

    def _scatter(self, values: np.ndarray, oob_skip: bool) -> None:
        indices, inside = self._flat_indices()
        if not inside.all() and not oob_skip:
            self._out_of_bounds("dst", inside)
        flat = self.storage.typed(self.dtype)
        values = values.reshape(indices.shape)
        flat[indices[inside]] = values[inside]
        if not self.storage.is_complete:
            self.storage.flags()[indices[inside]] = True

    def _out_of_bounds(self, operand: str, inside: np.ndarray) -> None:
        dynamic = self.dynamic
        assert dynamic is not None
        row = int(np.argmin(inside.reshape(inside.shape[0], -1).all(axis=1)))
        values = dynamic.values()
        value = int(values[min(row, values.size - 1)])
        self._refuse(
            "index",
            f"{operand or 'operand'}: index {value} of row {row} is out of bounds, {dynamic.limit} rows",
            "oob_mode.skip leaves such rows out",
        )


def _infer(shape: Sequence[int], size: int) -> tuple[int, ...]:
    sizes = [int(item) for item in shape]
    if -1 in sizes:
        rest = prod(item for item in sizes if item != -1)
        sizes[sizes.index(-1)] = size // rest if rest else 0
    return tuple(sizes)


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a shape whose last dimension varies fastest."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def merge_dims(shape: Sequence[int], strides: Sequence[int]) -> list[tuple[int, int]]:
    """Return sizes and strides of the fewest dimensions that name the same elements in the same order."""
    merged: list[tuple[int, int]] = []
    for size, stride in zip(shape, strides, strict=True):
        if size == 1:
            continue
        if merged and merged[-1][1] == stride * size:
            merged[-1] = (merged[-1][0] * size, stride)
        else:
            merged.append((size, stride))
    return merged


def reshape_strides(
    shape: Sequence[int], strides: Sequence[int], wanted: Sequence[int]
) -> tuple[int, ...] | None:
    """Return the strides of another shape of the same elements, None where it has none."""
    runs = merge_dims(shape, strides) or [(1, 1)]
    found: list[int] = []
    remaining = [*runs]
    for size in reversed(wanted):
        if size == 1:
            found.append(found[-1] if found else 1)
            continue
        if not remaining:
            return None
        length, stride = remaining.pop()
        if length % size:
            return None
        found.append(stride)
        if length > size:
            remaining.append((length // size, stride * size))
    return tuple(reversed(found))


def strided(
    flat: np.ndarray, shape: tuple[int, ...], strides: tuple[int, ...], offset: int, tensor: NkiTensor
) -> np.ndarray:
    """Return a view of a flat array by shape and strides in elements.

    Raises:
        KernelError: it would reach beyond the array.
    """
    item = flat.itemsize
    try:
        return np.ndarray(shape, flat.dtype, flat, offset * item, tuple(stride * item for stride in strides))
    except (ValueError, TypeError):
        last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
        fail(
            "access",
            f"elements {offset} to {last} of {tensor.storage.allocation.label} are out of bounds, it has {flat.size}",
            "",
            tensor.storage.allocation,
        )


def _grid(shape: Sequence[int], strides: Sequence[int]) -> np.ndarray:
    total = np.zeros(tuple(shape), dtype=np.int64)
    for dim, (size, stride) in enumerate(zip(shape, strides, strict=True)):
        steps = np.arange(size, dtype=np.int64) * stride
        total += steps.reshape([-1 if number == dim else 1 for number in range(len(shape))])
    return total
