"""Which elements of tensors instructions touch: boxes of indices, and whether two accesses share an element."""

from __future__ import annotations

from functools import lru_cache
from itertools import count
from math import prod
from operator import le
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from neurontools.compiler.graph_nodes import contiguous_strides
from neurontools.nki.dtypes import item_bytes

if TYPE_CHECKING:
    from neurontools.nki.context import ElementAccess
    from neurontools.nki.memory import Allocation, MemoryRegion

_FEW = 8
_KEPT_PATTERNS = 1 << 16


class Box(NamedTuple):
    """A range of indices in each dimension of a tensor.

    Args:
        low: first indices.
        high: last indices plus one.
        is_exact: whether the access touches every element of the box.
    """

    low: tuple[int, ...]
    high: tuple[int, ...]
    is_exact: bool

    def overlaps(self, other: Box) -> bool:
        """Return whether two boxes share an element."""
        for start, end, first, last in zip(self.low, self.high, other.low, other.high, strict=True):
            if start >= last or first >= end:
                return False
        return True

    def contains(self, other: Box) -> bool:
        """Return whether the access of this box touches every element of another."""
        return self.is_exact and all(
            start <= first and last <= end
            for start, end, first, last in zip(self.low, self.high, other.low, other.high, strict=True)
        )


class AccessPattern:
    """The elements that views of equal tensors name: all that checks and costs of instructions depend on.

    Args:
        region: the memory that the tensors are in.
        held_shape: their shape.
        held_dtype: their type.
        address: where the kernel places them, None where the compiler does; a pattern of its own for each place.
        shape: sizes by dimension of the views.
        strides: steps by dimension in elements.
        offset: first element; a pattern of its own for each.
        dtype: NKI name of the type as which the views see them.
    """

    __slots__ = ("box", "has_other_type", "is_whole", "kind")

    def __init__(
        self,
        region: MemoryRegion,
        held_shape: tuple[int, ...],
        held_dtype: str,
        address: tuple[int, int] | None,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        offset: int,
        dtype: str,
    ) -> None:
        del address, offset
        # Elements of another size, so that flags of elements do not belong to those of the view.
        self.has_other_type = item_bytes(dtype) != item_bytes(held_dtype)
        self.is_whole = prod(shape) == prod(held_shape) and 0 not in strides and not self.has_other_type
        self.box: Box | None = None
        self.kind = _kind_of(region, shape, strides, dtype)  # what costs depend on


@lru_cache(_KEPT_PATTERNS)
def _kind_of(*_values: object) -> int:
    return next(_kinds)


_kinds = count()
_known_pattern = lru_cache(_KEPT_PATTERNS)(AccessPattern)


def pattern_of(
    allocation: Allocation, shape: tuple[int, ...], strides: tuple[int, ...], offset: int, dtype: str
) -> AccessPattern:
    """Return the pattern of a view of an allocation, mostly the same object for equal ones."""
    address = allocation.address
    if address is not None:
        address = (address[0], address[1])
    return _known_pattern(
        allocation.region, allocation.shape, allocation.dtype, address, shape, strides, offset, dtype
    )


def box_of(access: ElementAccess) -> Box:
    """Return the smallest box found for an access; it may be larger than the access."""
    pattern = access.pattern
    if pattern is None:
        return _find_box(access)
    if pattern.box is None:
        pattern.box = _find_box(access)
    return pattern.box


def _find_box(access: ElementAccess) -> Box:
    allocation = access.allocation
    shape = allocation.shape
    item, held = item_bytes(access.dtype), item_bytes(allocation.dtype)
    if access.elements is not None:
        return (
            _box_of_elements(access.elements, shape)
            if item == held
            else Box((0,) * len(shape), shape, is_exact=False)
        )
    if item != held:
        return _flat_box(access, item, held)
    low, rest = [], access.offset
    steps = contiguous_strides(shape)
    for step in steps:
        number, rest = divmod(rest, step)
        low.append(number)
    extent = [1] * len(shape)
    touched = 1
    for size, stride in zip(access.shape, access.strides, strict=True):
        if size == 1 or stride == 0:
            continue
        dim = next((number for number, step in enumerate(steps) if step <= stride and shape[number] > 1), -1)
        if dim < 0 or stride % steps[dim]:
            return _flat_box(access, item, held)
        extent[dim] += (size - 1) * (stride // steps[dim])
        touched *= size
    high = [number + count for number, count in zip(low, extent, strict=True)]
    for dim in range(len(shape) - 1, 0, -1):
        if high[dim] > shape[dim]:
            # The access runs on into the next index of the dimension before: whole rows of it, if it starts with one.
            if low[dim] or extent[dim] % shape[dim]:
                return _flat_box(access, item, held)
            rows = extent[dim] // shape[dim]
            extent[dim - 1] += rows - 1 if extent[dim - 1] == 1 else rows * extent[dim - 1]
            extent[dim] = shape[dim]
            high[dim], high[dim - 1] = shape[dim], low[dim - 1] + extent[dim - 1]
    if high[0] > shape[0]:
        return _flat_box(access, item, held)
    return Box(tuple(low), tuple(high), touched == prod(extent))


def _box_of_elements(elements: Any, shape: tuple[int, ...]) -> Box:
    if not elements.size:
        return Box((0,) * len(shape), (0,) * len(shape), is_exact=True)
    indices = np.unravel_index(elements, shape)
    low = tuple(int(index.min()) for index in indices)
    high = tuple(int(index.max()) + 1 for index in indices)
    return Box(low, high, elements.size == prod(end - start for start, end in zip(low, high, strict=True)))


def _flat_box(access: ElementAccess, item: int, held: int) -> Box:
    """Return the box from the first to the last element in the order of memory."""
    shape = access.allocation.shape
    span = sum((size - 1) * stride for size, stride in zip(access.shape, access.strides, strict=True))
    first = access.offset * item // held
    last = min(((access.offset + span + 1) * item - 1) // held, prod(shape) - 1)
    low: list[int] = []
    high: list[int] = []
    is_split = False
    for step, size in zip(contiguous_strides(shape), shape, strict=True):
        start, first = divmod(first, step)
        end, last = divmod(last, step)
        if is_split:
            start, end = 0, size - 1
        elif end > start:
            is_split = True
        low.append(start)
        high.append(end + 1)
    return Box(tuple(low), tuple(high), is_exact=False)


class Boxes:
    """The different boxes of a tensor, and for each which others share elements with it.

    A box is covered by another whose access touches each of its elements, and by itself.
    """

    __slots__ = ("_end", "_high", "_low", "_numbers", "_stored", "boxes", "covered", "overlapping")

    def __init__(self) -> None:
        self._numbers: dict[AccessPattern | Box, int] = {}
        self.boxes: list[Box] = []
        self.overlapping: list[list[int]] = []
        self.covered: list[list[int]] = []
        self._end: tuple[int, ...] = ()
        self._stored = 0
        self._low: Any = None
        self._high: Any = None

    def number(self, access: ElementAccess) -> int:
        """Return the number of the box of an access, a new one for a box that is new."""
        known = access.pattern  # much faster to look up than the box
        number = self._numbers.get(known)
        if number is not None:
            return number
        box = box_of(access)
        number = self._numbers.get(box)
        if number is None:
            number = self._numbers[box] = len(self.boxes)
            self._add(box, number)
        if known is not None:
            self._numbers[known] = number
        return number

    def _add(self, box: Box, number: int) -> None:
        overlapping, covered = [number], [number]
        for other in self._candidates(box) if number else ():
            overlapping.append(other)
            self.overlapping[other].append(number)
            if box.contains(self.boxes[other]):
                covered.append(other)
            if self.boxes[other].contains(box):
                self.covered[other].append(number)
        self._end = tuple(map(max, self._end, box.high)) if number else box.high
        self.boxes.append(box)
        self.overlapping.append(overlapping)
        self.covered.append(covered)

    def _candidates(self, box: Box) -> list[int]:
        if any(map(le, self._end, box.low)):  # behind all others, as in a loop over tiles
            return []
        count = len(self.boxes)
        if count < _FEW:
            return [number for number, other in enumerate(self.boxes) if other.overlaps(box)]
        if self._low is None or self._low.shape[0] <= count:
            rows = 2 * count
            self._low = np.zeros((rows, len(box.low)), np.int64)
            self._high = np.zeros((rows, len(box.low)), np.int64)
            self._stored = 0
        for number in range(self._stored, count):
            self._low[number], self._high[number] = self.boxes[number].low, self.boxes[number].high
        self._stored = count
        hits = (self._low[:count] < box.high).all(axis=1) & (self._high[:count] > box.low).all(axis=1)
        return [int(number) for number in np.flatnonzero(hits)]


def byte_numbers(access: ElementAccess) -> Any:
    """Return the numbers of the bytes that an access touches, sorted, in a unit that divides its elements."""
    item = item_bytes(access.dtype)
    if access.elements is not None:
        first = np.asarray(access.elements, dtype=np.int64) * item
    else:
        numbers: Any = np.full((1,), access.offset, dtype=np.int64)
        for size, stride in zip(access.shape, access.strides, strict=True):
            if stride and size > 1:
                numbers = (numbers[:, None] + np.arange(size, dtype=np.int64) * stride).reshape(-1)
        first = numbers * item
    return np.unique((first[:, None] + np.arange(item)).reshape(-1))
