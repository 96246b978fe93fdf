"""Views of memory that instructions of the first generation read and write: plain, masked, and gathered by index tiles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from neurontools.compiler.graph_nodes import contiguous_strides
from neurontools.nki.context import ElementAccess, fail, note_read, note_write
from neurontools.nki.dtypes import cast
from neurontools.nki.first.index import Index
from neurontools.nki.locations import user_location
from neurontools.nki.tensor import NkiTensor, repeated

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.nki.first.index import Selection
    from neurontools.nki.memory import Storage


class TileView(NkiTensor):
    """A view whose elements are read as they are: what a mask leaves out was never written."""

    def read(self, operand: str = "") -> np.ndarray:
        """Return the elements."""
        del operand
        return note_read(self.array())


class Gathered(TileView):
    """A view of elements by number.

    Args:
        base: the view whose storage, shape and type it has.
        elements: the number of each element in the storage.
        selected: which elements are accessed, None for all.
        is_gather: whether an index tile has chosen them, and not a mask.
    """

    def __init__(
        self, base: NkiTensor, elements: np.ndarray, selected: np.ndarray | None, *, is_gather: bool = False
    ) -> None:
        super().__init__(base.shape, base.dtype, base.storage)
        self.strides, self.offset = base.strides, base.offset
        self.elements = elements
        self.selected = selected
        self.is_gather = is_gather

    def array(self) -> np.ndarray:
        """Return a copy of the elements; those that are not accessed are any."""
        flat = self.storage.typed(self.dtype)
        elements: np.ndarray = flat[
            self.elements if self.selected is None else np.where(self.selected, self.elements, 0)
        ]
        return elements

    def write(self, values: np.ndarray, *, oob_skip: bool = False) -> None:
        """Store the values of the accessed elements."""
        del oob_skip
        values = cast(values, self.dtype).reshape(self.elements.shape)
        flat = self.storage.typed(self.dtype)
        elements = self.elements
        if self.selected is not None:
            elements, values = elements[self.selected], values[self.selected]
        flat[elements] = values
        storage = self.storage
        note_write(storage.allocation, flat[elements])
        if not storage.is_complete:
            storage.flags()[elements] = True

    def repetition(self) -> str:
        """Return which element occurs more than once in a scatter to this view, "" for none."""
        if not self.is_gather:
            return ""
        return repeated("element", self.elements if self.selected is None else self.elements[self.selected])

    def access(self) -> ElementAccess:
        """Return which elements an instruction reads or writes here."""
        if self._access is None:
            elements = np.unique(self.elements if self.selected is None else self.elements[self.selected])
            place = (self.storage.allocation, self.offset, self.shape, self.strides, self.dtype)
            self._access = ElementAccess(*place, elements, self.is_gather)
        return self._access


class Rows(TileView):
    """A view whose rows start at chosen elements.

    Args:
        base: the view whose storage, shape and type it has.
        starts: the first element of each row.
    """

    def __init__(self, base: NkiTensor, starts: np.ndarray) -> None:
        super().__init__(base.shape, base.dtype, base.storage)
        self.strides, self.offset = base.strides, base.offset
        self.starts = starts

    def _windows(self, flat: np.ndarray) -> np.ndarray:
        """Return the rows that could start at each element."""
        reach = sum(
            (size - 1) * stride for size, stride in zip(self.shape[1:], self.strides[1:], strict=True)
        )
        item = flat.itemsize
        strides = (item, *[stride * item for stride in self.strides[1:]])
        return np.ndarray((flat.size - reach, *self.shape[1:]), flat.dtype, flat, 0, strides)

    def array(self) -> np.ndarray:
        """Return a copy of the elements."""
        rows: np.ndarray = self._windows(self.storage.typed(self.dtype))[self.starts]
        return rows

    def write(self, values: np.ndarray, *, oob_skip: bool = False) -> None:
        """Store values."""
        del oob_skip
        self._windows(self.storage.typed(self.dtype))[self.starts] = cast(values, self.dtype).reshape(
            self.shape
        )
        storage = self.storage
        if not storage.is_complete:
            self._windows(storage.flags())[self.starts] = True

    def repetition(self) -> str:
        """Return which row occurs more than once in a scatter to this view, "" for none."""
        return repeated("the row from element", self.starts)

    def access(self) -> ElementAccess:
        """Return which elements an instruction reads or writes here."""
        if self._access is None:
            starts = np.unique(self.starts)
            offsets = np.sort(Index(self.shape[1:], self.strides[1:], 0).values().reshape(-1))
            elements = (starts[:, None] + offsets).reshape(-1)
            if starts.size > 1 and offsets.size and np.diff(starts).min() <= offsets[-1]:
                elements = np.unique(elements)
            place = (self.storage.allocation, self.offset, self.shape, self.strides, self.dtype)
            self._access = ElementAccess(*place, elements, is_gather=True)
        return self._access


class Bound(NamedTuple):
    """A dimension that the indices of a view leave.

    Args:
        dim: its number.
        size: its size.
        numbers: those along the axes of the view.
    """

    dim: int
    size: int
    numbers: Index


class IndexLookup(NamedTuple):
    """Numbers of a tile that are an index.

    Args:
        dim: the dimension.
        size: its size.
        stride: elements between its neighbours.
        values: the numbers, of a shape that broadcasts over the view.
        added: an affine part.
    """

    dim: int
    size: int
    stride: int
    values: np.ndarray
    added: Index


def plain_view(storage: Storage, shape: Sequence[int], dtype: str) -> TileView:
    """Return the view of a whole allocation, shaped."""
    view = TileView(shape, dtype, storage)
    view.strides = contiguous_strides(view.shape)
    return view


def reshaped(
    view: NkiTensor, shape: Sequence[int], strides: Sequence[int], offset: int | None = None
) -> NkiTensor:
    """Return the view of the same storage with another shape, strides and first element."""
    return view._view(shape, strides, offset)  # noqa: SLF001


def cut(view: NkiTensor, box: tuple[slice, ...], shape: tuple[int, ...]) -> NkiTensor:
    """Return the part of a view in a box of a larger shape that the view broadcasts to."""
    offset, sizes = view.offset, list(view.shape)
    for axis, (item, size) in enumerate(zip(box, shape, strict=True)):
        if axis < view.ndim and sizes[axis] == size and size > 1:
            offset += item.start * view.strides[axis]
            sizes[axis] = item.stop - item.start
    return reshaped(view, sizes, view.strides, offset)


def part_of(index: Index, box: tuple[slice, ...] | None) -> Index:
    """Return the numbers of an index within a box."""
    if box is None:
        return index
    keys = tuple(
        item if size > 1 else slice(None) for item, size in zip(box[: index.ndim], index.shape, strict=False)
    )
    return index[keys]


def within_bounds(view: NkiTensor, bounds: Sequence[Bound], selected: Selection, function: str) -> NkiTensor:
    """Return a view for an instruction, whose indices may leave dimensions where a mask excludes them.

    Raises:
        KernelError: an index that the mask selects is out of bounds.
    """
    box = selected if isinstance(selected, tuple) else None
    inside: Any = np.ones(view.shape, dtype=np.bool_) if isinstance(selected, np.ndarray) else None
    for bound in bounds:
        low, high = part_of(bound.numbers, box).bounds()
        if low >= 0 and high < bound.size:
            continue
        if inside is not None:
            values = np.broadcast_to(bound.numbers.values(), view.shape)
            good = (values >= 0) & (values < bound.size)
            if not (selected & ~good).any():
                inside &= good
                continue
        _refuse_bound(view, bound, low, high, function)
    if box is not None:
        return cut(view, box, view.shape)
    if inside is None:
        return view
    numbers = np.full((), view.offset, dtype=np.int64) + Index(view.shape, view.strides, 0).values()
    return Gathered(view, np.where(inside, numbers, 0), selected)


def _refuse_bound(view: NkiTensor, bound: Bound, low: int, high: int, function: str) -> None:
    from neurontools.nki.first.errors import refuse_size

    allocation = view.storage.allocation
    refuse_size(
        function,
        f"Out-of-bound access for tensor `{allocation.label}` on dimension {bound.dim}: "
        f"index range [{low}, {high}] exceed dimension size of {bound.size}",
        "correct the indices, or pass a mask that excludes these elements",
        allocation,
    )


def gathered(
    view: NkiTensor,
    lookups: Sequence[IndexLookup],
    bounds: Sequence[Bound],
    selected: Selection,
    function: str,
    *,
    skip: bool,
) -> TileView:
    """Return a view whose elements are chosen by index tiles.

    Args:
        view: its shape, the strides of its affine part, and where that starts.
        lookups: the index tiles.
        bounds: dimensions that the affine part leaves.
        selected: elements that a mask selects.
        function: the instruction, for errors.
        skip: whether elements out of bounds are left out.

    Raises:
        IndexError: an index is out of bounds.
    """
    if not bounds and not isinstance(selected, np.ndarray):
        by_rows = _rows(view, lookups, selected)
        if by_rows is not None:
            return by_rows
    inside: np.ndarray = np.ones(view.shape, dtype=np.bool_)
    elements: np.ndarray = view.offset + Index(view.shape, view.strides, 0).values()
    for lookup in lookups:
        numbers = lookup.values + lookup.added.values()
        inside = inside & (numbers >= 0) & (numbers < lookup.size)
        # The affine part is in the strides of the view already.
        elements = elements + lookup.values * lookup.stride
    for bound in bounds:
        values = bound.numbers.values()
        inside = inside & (values >= 0) & (values < bound.size)
    wanted: Any = True
    if isinstance(selected, tuple):
        wanted = np.zeros(view.shape, dtype=np.bool_)
        wanted[selected] = True
    elif selected is not None:
        wanted = selected
    outside = wanted & ~inside
    if not skip and outside.any():
        _refuse_element(view, int(elements[outside][0]), function)
    accessed = inside & wanted
    chosen = None if accessed.all() else accessed
    if isinstance(selected, tuple):
        part = cut(view, selected, view.shape)
        within = None if chosen is None else chosen[selected]
        return Gathered(part, elements[selected], within, is_gather=True)
    return Gathered(view, elements, chosen, is_gather=True)


def _rows(view: NkiTensor, lookups: Sequence[IndexLookup], selected: Selection) -> Rows | None:
    """Return a view by rows where each index tile has a number for each row and all are in bounds."""
    box = selected if isinstance(selected, tuple) else tuple(slice(0, size) for size in view.shape)
    part = cut(view, box, view.shape)
    starts: np.ndarray = part.offset + np.arange(part.shape[0], dtype=np.int64) * part.strides[0]
    for lookup in lookups:
        if lookup.values.size != lookup.values.shape[0]:
            return None
        numbers = lookup.values.reshape(-1)
        numbers = numbers[box[0]] if numbers.size == view.shape[0] > 1 else numbers
        low, high = part_of(lookup.added, box).bounds()
        if numbers.min() + low < 0 or numbers.max() + high >= lookup.size:
            return None
        starts = starts + numbers * lookup.stride
    return Rows(part, starts)


def _refuse_element(view: NkiTensor, element: int, function: str) -> None:
    error = IndexError(f"index {element} is out of bounds for axis 0 with size {view.storage.size}")
    allocation = view.storage.allocation
    error.add_note(
        f"{user_location()}: {function}: an index tile leaves {allocation.label}, declared at {allocation.location}"
    )
    raise error


def summed(view: NkiTensor, values: np.ndarray) -> np.ndarray:
    """Return float32 values where those for equal elements of a view are replaced by their sum."""
    keys = view.starts if isinstance(view, Rows) else view.elements if isinstance(view, Gathered) else None
    if keys is None:
        return values
    unique, places = np.unique(keys, return_inverse=True)
    if unique.size == keys.size:
        return values
    places = places.reshape(keys.shape)
    sums: np.ndarray = np.zeros((unique.size, *values.shape[keys.ndim :]), dtype=np.float32)
    np.add.at(sums, places, values)
    joined: np.ndarray = sums[places]
    return joined


def refuse_dynamic(function: str, view: NkiTensor) -> None:
    """Refuse an operand whose indices are known at run time only."""
    fail(
        function,
        "does not allow tiles with indirect indices",
        "load them with nl.load or nisa.dma_copy",
        view.storage.allocation,
    )
