"""Objects of kernels besides tensors: classes with fields, slices, registers, and indices known at run time."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any, NoReturn, SupportsInt

import numpy as np

from neurontools.nki.context import fail


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
    if declared.default is not dataclasses.MISSING:
        return declared.default
    return declared.default_factory() if declared.default_factory is not dataclasses.MISSING else None


MOST_ITERATIONS = 100_000
"""The most iterations of a loop that runs on the device, which may not end: our decision."""


def refuse_endless(function: str) -> NoReturn:
    """Refuse a loop that does not seem to end."""
    fail(
        function,
        f"more than {MOST_ITERATIONS} iterations",
        "the loop does not end: check its bounds or its condition",
    )


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
        self.tests = 0

    def __bool__(self) -> bool:
        self.tests += 1
        if self.tests > MOST_ITERATIONS:
            refuse_endless("while")
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
        if isinstance(self.index, SupportsInt):  # a register; tensors are none
            return np.array([int(self.index)], dtype=np.int64)
        numbers = self.index.read("index").reshape(self.index.shape[0], -1)
        # The indices of rows go down the partitions first.
        return (numbers.T if self.is_vector else numbers).reshape(-1).astype(np.int64)
