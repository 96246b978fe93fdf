"""Tensors and tiles of the first generation: values with operators, indices, and assignment.

Sources: AWS Neuron documentation 2.26, "NKI Programming Model", "nki.tensor", "NKI API Errors", "NKI Block Dimension
Migration Guide".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from neurontools.nki.context import fail, running
from neurontools.nki.dtypes import item_bytes, numpy_dtype
from neurontools.nki.first.dtypes import name_of, public_dtype
from neurontools.nki.first.errors import refuse_value
from neurontools.nki.first.index import Index, Mask, is_number
from neurontools.nki.first.views import Bound, IndexLookup, cut, gathered, plain_view, reshaped, within_bounds
from neurontools.nki.memory import ON_CHIP, Allocation, Storage
from neurontools.nki.objects import DynamicSlice
from neurontools.nki.operators import OPERATORS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from neurontools.nki.context import Record
    from neurontools.nki.first.index import Selection
    from neurontools.nki.tensor import NkiTensor

_LEAST_DIMS = 2


class Offset:
    """An index tile plus an affine expression."""

    __slots__ = ("index", "tile")
    __array_ufunc__ = None

    def __init__(self, tile: Tile, index: Index) -> None:
        self.tile = tile
        self.index = index

    def __add__(self, other: Any) -> Offset:
        return Offset(self.tile, self.index + other)

    __radd__ = __add__


class Tile:
    """A tensor in HBM, or a tile on the chip: the first of at least two dimensions is the partitions.

    Args:
        operand: the view of memory.
        bounds: dimensions that its indices leave: instructions need masks there.
        lookups: index tiles that choose its elements.
        valid: the elements that the instruction that made it has computed.
        is_result: whether an instruction made it, and the compiler chooses its memory.
    """

    __slots__ = ("bounds", "is_result", "lookups", "operand", "producer", "valid")
    __array_ufunc__ = None

    def __init__(
        self,
        operand: NkiTensor,
        bounds: Sequence[Bound] = (),
        lookups: Sequence[IndexLookup] = (),
        valid: Selection = None,
        *,
        is_result: bool = False,
    ) -> None:
        self.operand = operand
        self.bounds = bounds
        self.lookups = lookups
        self.valid = valid
        self.is_result = is_result
        self.producer: Record | None = None

    # ---- what it is

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes by dimension."""
        return self.operand.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the elements, as numpy and ml_dtypes name it."""
        return public_dtype(self.operand.dtype)

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.operand.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.operand.size

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self.operand.itemsize

    @property
    def buffer(self) -> Any:
        """The memory that it is in."""
        from neurontools.nki.first.allocation import buffer_of

        return buffer_of(self.operand.buffer)

    @property
    def name(self) -> str:
        """The name that the kernel gave it."""
        return self.operand.name

    @property
    def on_chip(self) -> bool:
        """Whether it is in SBUF or PSUM."""
        return self.operand.on_chip

    @property
    def label(self) -> str:
        """Type, name and shape, as messages name it."""
        return f"{self.operand.dtype} {self.operand.storage.allocation.label}{list(self.shape)}"

    def __repr__(self) -> str:
        return repr(self.operand)

    def __len__(self) -> int:
        return self.shape[0]

    def __bool__(self) -> bool:  # noqa: PLE0304 # raises
        refuse_value(
            "if",
            "Cannot evaluate truth value of a multi-element tensor/array: dynamic control-flow depending on tensor value"
            " is not supported",
            "compare with `is None`, or select elements with an instruction",
            self.operand.storage.allocation,
        )

    def __iter__(self) -> Iterator[Any]:
        fail(
            "iteration",
            "a tensor cannot be iterated over",
            "iterate over nl.affine_range and index the tensor",
        )

    def assert_shape(self, shape: Sequence[int]) -> Tile:
        """Return the tensor if it has a shape."""
        if tuple(shape) != self.shape:
            fail(
                "assert_shape", f"shape of `{self.label}` does not match the expected shape of {list(shape)}"
            )
        return self

    # ---- views

    def resolved(self, function: str, selected: Selection = None, *, skip: bool = False) -> NkiTensor:
        """Return the view for an instruction that accesses the selected elements.

        Raises:
            KernelError: selected elements are out of bounds.
        """
        if self.lookups:
            return gathered(self.operand, self.lookups, self.bounds, selected, function, skip=skip)
        if self.bounds:
            return within_bounds(self.operand, self.bounds, selected, function)
        if isinstance(selected, tuple):
            return cut(self.operand, selected, self.shape)
        return self.operand

    def _with(self, operand: NkiTensor) -> Tile:
        made = Tile(operand, is_result=self.is_result)
        made.producer = self.producer
        return made

    def reshape(self, shape: Sequence[int]) -> Tile:
        """Return the view with another shape of the same elements."""
        return self._with(self.operand.reshape(tuple(int(size) for size in shape)))

    def view(self, dtype: Any) -> Tile:
        """Return the view of the same bytes as another type."""
        kind, operand = name_of(dtype), self.operand
        if kind != operand.dtype and any(
            numpy_dtype(name).itemsize != item_bytes(name) for name in (kind, operand.dtype)
        ):
            return self._reinterpreted(kind)
        return self._with(operand.view(kind))

    def _reinterpreted(self, kind: str) -> Tile:
        """Return a copy as another type where one of the types is held in float32."""
        exact = np.ascontiguousarray(self.operand.array().astype(public_dtype(self.operand.dtype)))
        values = exact.view(public_dtype(kind))
        allocation = self.operand.storage.allocation
        made = Allocation(
            allocation.region, values.shape, kind, allocation.location, allocation.name, core=allocation.core
        )
        return Tile(
            plain_view(Storage(made, values.astype(numpy_dtype(kind)).reshape(-1)), values.shape, kind)
        )

    def expand_dims(self, axis: Any) -> Tile:
        """Return the view with dimensions of size 1 inserted."""
        operand = self.operand
        for item in sorted(axis) if isinstance(axis, tuple | list) else (axis,):
            operand = operand.expand_dim(item)
        return self._with(operand)

    def broadcast_to(self, shape: Sequence[int]) -> Tile:
        """Return the tile repeated along dimensions of size 1."""
        return running().language.broadcast_to(self, shape=shape)

    def astype(self, dtype: Any) -> Tile:
        """Return a copy of another type."""
        return running().language.apply(OPERATORS["copy"], (self,), dtype, {})

    def __getitem__(self, key: Any) -> Tile:
        return _Subscript(self, key).tile()

    def __setitem__(self, key: Any, value: Any) -> None:
        target = _Subscript(self, key).tile()
        running().language.assign(target, value)


def _binary(name: str, *, reverse: bool = False) -> Callable[[Tile, Any], Any]:
    operator = OPERATORS[name]

    def compute(self: Tile, other: Any) -> Any:
        if name == "add" and isinstance(other, Index):
            return Offset(self, other)
        if isinstance(other, Mask):
            return NotImplemented
        operands = (other, self) if reverse else (self, other)
        return running().language.apply(operator, operands, None, {})

    return compute


def _in_place(name: str) -> Callable[[Tile, Any], Any]:
    operator = OPERATORS[name]

    def compute(self: Tile, other: Any) -> Any:
        return running().language.update(self, operator, other)

    return compute


def _unary(name: str) -> Callable[[Tile], Any]:
    operator = OPERATORS[name]
    return lambda self: running().language.apply(operator, (self,), None, {})


for _name, _operator in {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "divide", "mod": "mod", "pow": "power",
    "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor", "lshift": "left_shift", "rshift": "right_shift",
}.items():  # fmt: skip
    setattr(Tile, f"__{_name}__", _binary(_operator))
    setattr(Tile, f"__r{_name}__", _binary(_operator, reverse=True))
    setattr(Tile, f"__i{_name}__", _in_place(_operator))
for _name, _operator in {
    "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal", "eq": "equal", "ne": "not_equal",
}.items():  # fmt: skip
    setattr(Tile, f"__{_name}__", _binary(_operator))
for _name, _operator in {"neg": "negative", "abs": "abs", "invert": "invert"}.items():
    setattr(Tile, f"__{_name}__", _unary(_operator))


class _Subscript:
    """The meaning of a subscript of a tile.

    Args:
        tile: the tile.
        key: what is between the brackets.
    """

    def __init__(self, tile: Tile, key: Any) -> None:
        self._view = tile.operand
        self._is_result = tile.is_result
        self._bounds: list[Bound] = list(tile.bounds)
        self._lookups: list[IndexLookup] = []
        keys = list(key) if isinstance(key, tuple) else [key]
        ndim = len(self._view.shape)
        given = sum(item is not None and item is not Ellipsis for item in keys)
        if given > ndim:
            fail(
                "index", f"{given} indices for the {ndim} dimensions of `{tile.label}`", "", self._allocation
            )
        at = next((number for number, item in enumerate(keys) if item is Ellipsis), None)
        rest: list[Any] = [slice(None)] * (ndim - given)
        if at is None:
            keys += rest
        else:
            keys[at : at + 1] = rest
        self._keys = keys
        if tile.lookups or (
            tile.bounds and not all(isinstance(item, slice) and item == slice(None) for item in keys)
        ):
            fail(
                "index",
                f"`{tile.label}` is indexed twice",
                "join the indices in one subscript",
                self._allocation,
            )

    @property
    def _allocation(self) -> Any:
        return self._view.storage.allocation

    def tile(self) -> Tile:
        """Return the tile that the subscript names."""
        if any(isinstance(item, Tile | Offset | Index) for item in self._keys):
            return self._advanced()
        return self._basic()

    # ---- slices and numbers

    def _basic(self) -> Tile:
        view = self._view
        on_chip = view.storage.allocation.region in ON_CHIP
        shape: list[int] = []
        strides: list[int] = []
        leaving: list[tuple[int, int, int, int, int]] = []
        offset, dim = view.offset, 0
        for item in self._keys:
            if item is None:
                shape.append(1)
                strides.append(0)
                continue
            size, stride = view.shape[dim], view.strides[dim]
            if isinstance(item, slice | DynamicSlice):
                start, count, step = _range(item, size)
                if count < 1:
                    fail(
                        "index",
                        f"the slice of dimension {dim} is empty, its size is {size}",
                        "",
                        self._allocation,
                    )
                if start + (count - 1) * step >= size or start < 0:
                    leaving.append((dim, len(shape), start, count, step))
                offset += start * stride
                shape.append(count)
                strides.append(stride * step)
            else:
                number = self._number(item, dim)
                offset += number * stride
                if on_chip and dim == 0:
                    shape.append(1)
                    strides.append(stride)
            dim += 1
        while on_chip and len(shape) < _LEAST_DIMS:
            shape.append(1)
            strides.append(1)
        for dim, axis, start, count, step in leaving:
            sizes, factors = [1] * len(shape), [0] * len(shape)
            sizes[axis], factors[axis] = count, step
            self._bounds.append(Bound(dim, view.shape[dim], Index(tuple(sizes), tuple(factors), start)))
        return Tile(reshaped(view, shape, strides, offset), self._bounds, is_result=self._is_result)

    def _number(self, item: Any, dim: int) -> int:
        if not is_number(item):
            fail(
                "index",
                f"{type(item).__name__} cannot be an index",
                "use numbers, slices, nl.ds, nl.arange and nl.mgrid",
                self._allocation,
            )
        number, size = int(item), self._view.shape[dim]
        if -size <= number < 0:
            return number + size
        if not 0 <= number < size:
            self._bounds.append(Bound(dim, size, Index((), (), number)))
        return number

    # ---- index expressions and tiles

    def _advanced(self) -> Tile:
        indices = [self._index(item, dim) for dim, item in enumerate(self._keys)]
        ndim = max(_LEAST_DIMS, *(index.ndim for index, _ in indices))
        shapes = [index.expanded(ndim).shape for index, _ in indices]
        shapes += [_leading(tile, ndim).shape for _, tile in indices if tile is not None]
        try:
            shape = tuple(np.broadcast_shapes(*shapes))
        except ValueError:
            fail(
                "index",
                f"the indices of `{self._allocation.label}` have shapes {shapes} that do not broadcast",
                "",
                self._allocation,
            )
        view = self._view
        offset, strides = view.offset, [0] * ndim
        for dim, (plain, tile) in enumerate(indices):
            index, stride, size = plain.expanded(ndim), view.strides[dim], view.shape[dim]
            offset += index.constant * stride
            for axis, factor in enumerate(index.coefficients):
                strides[axis] += factor * stride
            low, high = index.bounds()
            if tile is not None:
                self._lookups.append(IndexLookup(dim, size, stride, _leading(tile, ndim), index))
            elif low < 0 or high >= size:
                self._bounds.append(Bound(dim, size, index))
        if shape[0] == 1 and view.storage.allocation.region in ON_CHIP:
            strides[0] = view.strides[0]
        view = reshaped(view, shape, strides, offset)
        return Tile(view, self._bounds, self._lookups, is_result=self._is_result)

    def _index(self, item: Any, dim: int) -> tuple[Index, Tile | None]:
        """Return the affine part of an index and its tile."""
        size = self._view.shape[dim]
        if isinstance(item, Tile):
            return Index((), (), 0), item
        if isinstance(item, Offset):
            return item.index, item.tile
        if is_number(item):
            number = int(item)
            return Index((), (), number + size if -size <= number < 0 else number), None
        if not isinstance(item, Index):
            return self._whole(item, dim), None
        if item.ndim == 1:
            fail(
                "index",
                f"indexing tensor `{self._allocation.label}` with 1d arange is not supported",
                "add an axis: nl.arange(64)[:, None]",
                self._allocation,
            )
        return item, None

    def _whole(self, item: Any, dim: int) -> Index:
        """Return the index of a whole dimension: the columns of rows that an index tile chooses, or one number."""
        size, is_last = self._view.shape[dim], dim == len(self._keys) - 1
        alone = not any(isinstance(key, Index | Offset) for key in self._keys)
        if item != slice(None) or (size > 1 and not (is_last and alone)):
            fail(
                "index",
                "mixing basic tensor indexing (slices) and advanced tensor indexing (nl.arange, nl.mgrid) is not supported",
                "use one of them for all dimensions",
                self._allocation,
            )
        return Index((1, size), (0, 1), 0) if size > 1 else Index((), (), 0)


def _leading(tile: Tile, ndim: int) -> np.ndarray:
    """Return the numbers of an index tile with axes of size 1 behind."""
    if tile.lookups or tile.bounds:
        fail(
            "index",
            "an index tile has indices out of bounds or of its own",
            "load it first",
            tile.operand.storage.allocation,
        )
    values: np.ndarray = tile.operand.array().astype(np.int64)
    return values.reshape(values.shape + (1,) * (ndim - values.ndim))


def _range(item: slice | DynamicSlice, size: int) -> tuple[int, int, int]:
    """Return start, count and step of a slice that may leave the dimension."""
    if isinstance(item, DynamicSlice):
        return int(item.start), int(item.size), 1
    step = 1 if item.step is None else int(item.step)
    start = 0 if item.start is None else int(item.start)
    stop = size if item.stop is None else int(item.stop)
    start += size if start < 0 else 0
    stop += size if stop < 0 else 0
    return start, -(-(stop - start) // step), step
