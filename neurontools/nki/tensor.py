"""Tensors of kernels: views whose elements instructions read and write, at chosen indices or at those known at run time."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np

from neurontools.nki.context import (
    ElementAccess,
    declarations,
    fail,
    is_running,
    note_read,
    note_write,
    running,
)
from neurontools.nki.dtypes import cast, to_float32
from neurontools.nki.locations import user_location
from neurontools.nki.strides import offsets_grid
from neurontools.nki.tensor_views import TensorView

if TYPE_CHECKING:
    from neurontools.nki.locations import UserLine


class Unwritten(NamedTuple):
    """Elements of an operand that were not all written.

    Args:
        written: by element whether it was.
        origin: the warning, and the line of the first instruction that read them.
    """

    written: np.ndarray
    origin: tuple[str, UserLine]


class NkiTensor(TensorView):
    """A view of memory that instructions read and write through."""

    __slots__ = ()

    def __repr__(self) -> str:
        """Return name, type, shape, memory, address and elements: what people look for in a debugger."""
        allocation = self.storage.allocation
        memory = self.buffer.value
        if self.on_chip:
            chosen = allocation.address
            memory += f", address {chosen}" if chosen else ", address left to the compiler"
        memory += f", from element {self.offset} on" if self.offset else ""
        if is_running() and not running().launch.checks:
            elements = "no elements yet: the kernel is traced on zeros"
        elif self.dynamic is not None:
            elements = "elements known at run time only"
        else:
            elements = str(self.array())
        return f"{allocation.label}: {self.dtype} {self.shape} in {memory}\n{elements}"

    __str__ = __repr__

    @property
    def base_tensor(self) -> Self:
        """The tensor as it was declared, of which this is a view; no document names it, public kernels use it."""
        allocation = self.storage.allocation
        return type(self)(allocation.shape, allocation.dtype, self.storage)

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
        if self.dynamic is not None:
            fixed = self._fixed()
            return note_read(self._gather(operand) if fixed is None else fixed.array())
        if not self.storage.is_complete:
            self._check_written(operand)
        return note_read(self.array())

    def is_written(self) -> bool:
        """Return whether an instruction has written any of the elements."""
        return self.pattern.has_other_type or bool(np.any(self.written()))

    def read_moved(self, operand: str = "") -> tuple[np.ndarray, np.ndarray | None]:
        """Return the elements for a transpose, and by element whether they were written, None where all are.

        Kernels transpose tiles of which they have written and will use a part. A tile without any counts as read.
        """
        if self.dynamic is None and not self.pattern.has_other_type:
            written = self.written()
            if isinstance(written, np.ndarray) and written.any():
                return self.array(), written
        return self.read(operand), None

    def read_partly(self, operand: str = "") -> tuple[np.ndarray, Unwritten | None]:
        """Return the elements for an operator on each of them, and what the result is to be marked with.

        Kernels compute with whole tiles of which they have written and will use a part. The warning of the rest comes
        when its results are used. A tile without any counts as read.
        """
        if self.storage.is_complete:
            return self.read(operand), None
        values, written = self.read_moved(operand)
        if written is None:
            return values, None
        return values, Unwritten(written, self.storage.origin or (self._unwritten(operand), user_location()))

    def mark_partly(self, *operands: Unwritten | None) -> None:
        """Note that the results of unwritten elements hold nothing either."""
        for unwritten in operands:
            if unwritten is not None and self.dynamic is None:
                self.mark_written(unwritten.written.reshape(self.shape) & self.written())
                self.storage.origin = unwritten.origin

    def mark_written(self, written: np.ndarray | None) -> None:
        """Note which elements hold something after a transpose of elements that were not all written."""
        storage = self.storage
        if written is None or self.pattern.has_other_type:
            return
        if storage.is_complete:
            storage.flags()[...] = True
            storage.is_complete = False
        storage.written_views.clear()
        strided(storage.flags(), self.shape, self.strides, self.offset, self)[...] = written.reshape(
            self.shape
        )

    def read32(self, operand: str = "") -> np.ndarray:
        """Return the elements as float32."""
        return to_float32(self.read(operand))

    def write(self, values: np.ndarray, *, oob_skip: bool = False) -> None:
        """Store values, cast to the type of the tensor. Shapes may differ, the number of elements may not."""
        if self.dynamic is not None:
            fixed = self._fixed()
            if fixed is None:
                self._scatter(cast(values, self.dtype), oob_skip)
            else:
                fixed.write(values)
            return
        storage = self.storage
        target = self._array
        if target is None:
            if storage.is_blank and self.pattern.is_whole:
                storage.is_blank = False
            target = self.array()
        if values.dtype != target.dtype or self.dtype == "tfloat32":
            values = cast(values, self.dtype)
        if values.shape != target.shape:
            values = values.reshape(target.shape)
        target[...] = values
        note_write(storage.allocation, target)
        if not storage.is_complete:
            self._mark()

    def access(self) -> ElementAccess:
        """Return which elements an instruction reads or writes here."""
        if self._access is not None:
            return self._access
        if 0 in self.shape:
            self._refuse("access", f"a view of shape {self.shape} is empty")
        storage = self.storage
        if self.dynamic is not None:
            fixed = self._fixed()
            if fixed is not None:
                return fixed.access()._replace(has_register=True)
            indices, inside = self._flat_indices()
            elements = _ascending(indices[inside])
            is_gather = self.dynamic.is_vector or self.dynamic.columns > 0
            return ElementAccess(
                storage.allocation, self.offset, self.shape, self.strides, self.dtype, elements, is_gather
            )
        self._access = ElementAccess(
            storage.allocation, self.offset, self.shape, self.strides, self.dtype, pattern=self.pattern
        )
        return self._access

    def repetition(self) -> str:
        """Return which index occurs more than once in a scatter to this view, "" for none."""
        dynamic = self.dynamic
        if dynamic is None or not dynamic.is_vector:
            return ""
        values = dynamic.values()
        return repeated("index", values[(values >= 0) & (values < dynamic.limit)])

    def _mark(self) -> None:
        storage, pattern = self.storage, self.pattern
        if pattern.is_whole or pattern.has_other_type:
            storage.complete()
            return
        strided(storage.flags(), self.shape, self.strides, self.offset, self)[...] = True
        storage.written_views.add((self.shape, self.strides, self.offset))

    def written(self) -> np.ndarray | bool:
        """Return whether all elements are written, or no element of the storage is, or else which are."""
        storage = self.storage
        if storage.is_complete:
            return True
        if storage.written is None:
            return False
        view = (self.shape, self.strides, self.offset)
        if view in storage.written_views:
            return True
        flags = strided(storage.written, self.shape, self.strides, self.offset, self)
        if not flags.all():
            return flags
        storage.written_views.add(view)
        return True

    def _check_written(self, operand: str) -> None:
        storage = self.storage
        if self.pattern.has_other_type:
            return
        written = self.written()
        if written is True:
            if self.size == storage.size:
                storage.complete()
            return
        if is_running() and running().launch.checks:
            running().launch.warn("unwritten", *(storage.origin or (self._unwritten(operand),)))

    def _unwritten(self, operand: str) -> str:
        missing = self.size - int(np.sum(self.written()))
        notes = " ".join(declarations(self.storage.allocation)).removeprefix("note: ")
        return f"{operand or 'operand'}: {missing} of {self.size} elements were never written ({notes})"

    def _fixed(self) -> Self | None:
        """Return the view at the one index of a dynamic view; None where each row has its own or it is out of bounds."""
        dynamic = self.dynamic
        assert dynamic is not None
        if dynamic.is_vector or dynamic.columns:
            return None
        value = int(dynamic.values()[0])
        if not 0 <= value < dynamic.limit:
            return None
        offset = self.offset + value * dynamic.stride
        last = offset + sum(
            [(size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True)]
        )
        if last >= self.storage.typed(self.dtype).size:
            return None
        fixed = self._view(self.shape, self.strides, offset)
        fixed.dynamic = None
        return fixed

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
        rest = offsets_grid(self.shape[1:], self.strides[1:]) + self.offset
        first = base + np.arange(self.shape[0]) * self.strides[0]
        last = self.storage.typed(self.dtype).size - int(rest.max())
        inside = inside & (first >= -int(rest.min())) & (first < last)
        return first.reshape(-1, *[1] * rest.ndim) + rest, inside

    def _gather(self, operand: str) -> np.ndarray:
        indices, inside = self._flat_indices()
        flat = self.storage.typed(self.dtype)
        if not inside.all():
            self._out_of_bounds(operand, inside)
        return flat[np.clip(indices, 0, flat.size - 1)]

    def gather(self, operand: str = "") -> tuple[np.ndarray, np.ndarray]:
        """Return elements and which rows of dimension 0 are in bounds, without an error for those that are not."""
        if self.dynamic is None or self._fixed() is not None:
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
        note_write(self.storage.allocation, flat[indices[inside]])
        if not self.storage.is_complete:
            self.storage.flags()[indices[inside]] = True

    def _out_of_bounds(self, operand: str, inside: np.ndarray) -> None:
        dynamic = self.dynamic
        assert dynamic is not None
        row = int(np.argmin(inside.reshape(inside.shape[0], -1).all(axis=1)))
        values = dynamic.values()
        value = int(values[min(row, values.size - 1)])
        has = f"{dynamic.limit} rows" if not 0 <= value < dynamic.limit else "the row ends behind the tensor"
        self._refuse(
            "index",
            f"{operand or 'operand'}: index {value} of row {row} is out of bounds, {has}",
            "oob_mode.skip leaves such rows out",
        )


def repeated(what: str, numbers: np.ndarray) -> str:
    """Return which number occurs more than once, "" for none."""
    unique, counts = np.unique(numbers, return_counts=True)
    if unique.size == numbers.size:
        return ""
    first = int(np.argmax(counts > 1))
    return f"{what} {unique[first]} occurs {counts[first]} times in one transfer"


def _ascending(rows: np.ndarray) -> np.ndarray:
    """Return the numbers of elements sorted and each once: in most cases the first of each row sort them all."""
    if rows.size and rows.ndim > 1:
        rows = rows.reshape(rows.shape[0], -1)
        flat = rows[np.argsort(rows[:, 0])].reshape(-1)
        if (flat[1:] > flat[:-1]).all():
            return flat
    return np.unique(rows)


def strided(
    flat: np.ndarray, shape: tuple[int, ...], strides: tuple[int, ...], offset: int, tensor: NkiTensor
) -> np.ndarray:
    """Return a view of a flat array by shape and strides in elements.

    Raises:
        KernelError: it would reach beyond the array.
    """
    item = flat.itemsize
    try:
        return np.ndarray(
            shape, flat.dtype, flat, offset * item, tuple([stride * item for stride in strides])
        )
    except (ValueError, TypeError):
        last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
        fail(
            "access",
            f"elements {offset} to {last} of {tensor.storage.allocation.label} are out of bounds, it has {flat.size}",
            "",
            tensor.storage.allocation,
        )
