"""Affine index expressions (`nl.arange`, `nl.mgrid`) and the masks that comparisons of them make.

Sources: AWS Neuron documentation 2.26, "NKI Programming Model" (indexing), "NKI API Masking", "NKI API Errors".
"""

from __future__ import annotations

from typing import Any

import numpy as np

from neurontools.nki.context import fail
from neurontools.nki.first.errors import refuse_value

Selection = Any
"""Elements that an instruction computes: None for all, False for none, a tuple of slices, or an array of booleans."""


class Index:
    """An affine expression of the numbers along axes: `constant + sum(coefficients * numbers)`.

    Args:
        shape: sizes of the axes, 1 where the expression does not vary.
        coefficients: factor of each axis.
        constant: the value at the first numbers.
    """

    __slots__ = ("coefficients", "constant", "shape")
    __array_ufunc__ = None
    __hash__ = object.__hash__

    def __init__(self, shape: tuple[int, ...], coefficients: tuple[int, ...], constant: int) -> None:
        self.shape = shape
        self.coefficients = tuple(
            factor if size > 1 else 0 for size, factor in zip(shape, coefficients, strict=True)
        )
        self.constant = constant

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def __repr__(self) -> str:
        return f"Index({self.shape}, {self.coefficients}, {self.constant})"

    def values(self) -> np.ndarray:
        """Return the numbers as an array of int64."""
        total: np.ndarray = np.full((1,) * self.ndim, self.constant, dtype=np.int64)
        for axis, (size, factor) in enumerate(zip(self.shape, self.coefficients, strict=True)):
            if factor:
                steps: np.ndarray = np.arange(size, dtype=np.int64) * factor
                total = total + steps.reshape([-1 if axis == number else 1 for number in range(self.ndim)])
        numbers: np.ndarray = np.broadcast_to(total, self.shape)
        return numbers

    def bounds(self) -> tuple[int, int]:
        """Return the smallest and the largest number."""
        low = high = self.constant
        for size, factor in zip(self.shape, self.coefficients, strict=True):
            reach = factor * (size - 1)
            low, high = (low, high + reach) if reach > 0 else (low + reach, high)
        return low, high

    def expanded(self, ndim: int) -> Index:
        """Return the expression with axes of size 1 in front, for `ndim` axes in all."""
        missing = ndim - self.ndim
        if missing <= 0:
            return self
        return Index((1,) * missing + self.shape, (0,) * missing + self.coefficients, self.constant)

    def __getitem__(self, key: Any) -> Index:
        shape: list[int] = []
        factors: list[int] = []
        constant, axis = self.constant, 0
        for item in key if isinstance(key, tuple) else (key,):
            if item is None:
                shape.append(1)
                factors.append(0)
                continue
            size, factor = self.shape[axis], self.coefficients[axis]
            if isinstance(item, slice):
                start, stop, step = item.indices(size)
                constant += start * factor
                shape.append(len(range(start, stop, step)))
                factors.append(factor * step)
            else:
                constant += int(item) * factor
            axis += 1
        return Index((*shape, *self.shape[axis:]), (*factors, *self.coefficients[axis:]), constant)

    def __setitem__(self, key: Any, value: Any) -> None:
        fail(
            "assignment",
            "'index' tensor does not support item assignment",
            "make a tile of it with nisa.iota",
        )

    def __iter__(self) -> Any:
        fail("iteration", "an index expression cannot be iterated over")

    def __bool__(self) -> bool:  # noqa: PLE0304 # raises
        refuse_value(
            "if",
            "Control-flow depending on `nl.arange` or `nl.mgrid` is not supported",
            "pass the comparison as mask=",
        )

    # ---- arithmetic

    def _combined(self, other: Any, sign: int) -> Any:
        if is_number(other):
            return Index(self.shape, self.coefficients, self.constant + sign * int(other))
        if not isinstance(other, Index):
            return NotImplemented
        ndim = max(self.ndim, other.ndim)
        first, second = self.expanded(ndim), other.expanded(ndim)
        shape = tuple(np.broadcast_shapes(first.shape, second.shape))
        factors = tuple(a + sign * b for a, b in zip(first.coefficients, second.coefficients, strict=True))
        return Index(shape, factors, first.constant + sign * second.constant)

    def __add__(self, other: Any) -> Any:
        return self._combined(other, 1)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return self._combined(other, -1)

    def __rsub__(self, other: Any) -> Any:
        return -self + other

    def __neg__(self) -> Index:
        return Index(self.shape, tuple(-item for item in self.coefficients), -self.constant)

    def __mul__(self, other: Any) -> Any:
        if isinstance(other, Index):
            fail(
                "index",
                "the product of two index expressions is not affine",
                "make a tile of one with nisa.iota",
            )
        if not is_number(other):
            return NotImplemented
        factor = int(other)
        return Index(self.shape, tuple(item * factor for item in self.coefficients), self.constant * factor)

    __rmul__ = __mul__

    def _not_affine(self, *_: Any) -> Any:
        fail(
            "index",
            "index expressions have sums and products with numbers alone",
            "make a tile of it with nisa.iota",
        )

    __floordiv__ = __mod__ = __truediv__ = __pow__ = __rfloordiv__ = __rmod__ = __rtruediv__ = _not_affine

    # ---- comparisons

    def _compared(self, other: Any, name: str) -> Any:
        difference = self._combined(other, -1)
        return difference if difference is NotImplemented else Mask(((difference, name),))

    def __lt__(self, other: Any) -> Any:
        return self._compared(other, "less")

    def __le__(self, other: Any) -> Any:
        return self._compared(other, "less_equal")

    def __gt__(self, other: Any) -> Any:
        return self._compared(other, "greater")

    def __ge__(self, other: Any) -> Any:
        return self._compared(other, "greater_equal")

    def __eq__(self, other: object) -> Any:
        return self._compared(other, "equal")

    def __ne__(self, other: object) -> Any:
        return self._compared(other, "not_equal")


_COMPARISONS = {
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "equal": np.equal,
    "not_equal": np.not_equal,
}


class Mask:
    """Comparisons of affine expressions with 0 that hold together.

    Args:
        terms: expressions with the names of their operators.
    """

    __slots__ = ("terms",)
    __array_ufunc__ = None

    def __init__(self, terms: tuple[tuple[Index, str], ...]) -> None:
        self.terms = terms

    def __and__(self, other: Any) -> Any:
        if isinstance(other, bool | np.bool_):
            return self if other else False
        if isinstance(other, Mask):
            return Mask(self.terms + other.terms)
        return NotImplemented

    __rand__ = __and__

    def __bool__(self) -> bool:
        # `a and b` of two masks means the conjunction to the compiler; `if` is refused where the operands are numbers.
        return True

    def _unsupported(self, *_: Any) -> Any:
        fail("mask", "Unsupported expression in mask: comparisons are joined by `&` alone")

    __or__ = __ror__ = __invert__ = __xor__ = _unsupported

    def __setitem__(self, key: Any, value: Any) -> None:
        fail(
            "assignment",
            "'mask' tensor does not support item assignment",
            "make a tile of the index with nisa.iota",
        )

    def selection(self, shape: tuple[int, ...]) -> Selection:
        """Return which elements of a tile of that shape the mask selects."""
        starts, stops = [0] * len(shape), list(shape)
        rest = []
        for term, name in self.terms:
            expression = _aligned(term, shape)
            axes = [axis for axis, factor in enumerate(expression.coefficients) if factor and shape[axis] > 1]
            if not axes:
                if not _COMPARISONS[name](expression.constant, 0):
                    return False
            elif len(axes) == 1 and name in _HALF_LINES:
                low, high = _interval(expression.coefficients[axes[0]], expression.constant, name)
                axis = axes[0]
                starts[axis] = max(starts[axis], low) if low is not None else starts[axis]
                stops[axis] = min(stops[axis], high) if high is not None else stops[axis]
            else:
                rest.append((expression, name))
        if any(start >= stop for start, stop in zip(starts, stops, strict=True)):
            return False
        box = tuple(slice(start, stop) for start, stop in zip(starts, stops, strict=True))
        if not rest:
            return None if all(item == slice(0, size) for item, size in zip(box, shape, strict=True)) else box
        selected: np.ndarray = np.zeros(shape, dtype=np.bool_)
        selected[box] = True
        for expression, name in rest:
            selected &= _COMPARISONS[name](expression.values(), 0)
        return selected if selected.any() else False


_HALF_LINES = frozenset({"less", "less_equal", "greater", "greater_equal", "equal"})


def _interval(factor: int, constant: int, name: str) -> tuple[int | None, int | None]:
    """Return start and end of the numbers `n` where `factor * n + constant` compares true with 0, None for no limit."""
    if name == "equal":
        number, rest = divmod(-constant, factor)
        return (number, number + 1) if rest == 0 else (0, 0)
    if name in {"greater", "greater_equal"}:
        factor, constant = -factor, -constant
        name = {"greater": "less", "greater_equal": "less_equal"}[name]
    if name == "less":
        constant += 1
    if factor > 0:  # factor * n <= -constant
        return None, -constant // factor + 1
    return -(-constant // -factor), None


def _aligned(expression: Index, shape: tuple[int, ...]) -> Index:
    """Return an expression with the axes of a tile: axis 0 is the partitions."""
    if expression.ndim > len(shape):
        while expression.ndim > len(shape) and expression.shape[-1] == 1:
            expression = Index(expression.shape[:-1], expression.coefficients[:-1], expression.constant)
        if expression.ndim > len(shape):
            fail("mask", f"has {expression.ndim} dimensions, the tile has the shape {shape}")
    missing = len(shape) - expression.ndim
    if missing:
        expression = Index(
            expression.shape + (1,) * missing, expression.coefficients + (0,) * missing, expression.constant
        )
    for axis, (size, wanted) in enumerate(zip(expression.shape, shape, strict=True)):
        if size not in {1, wanted} and expression.coefficients[axis] and wanted != 1:
            fail(
                "mask",
                f"has shape {expression.shape}, the tile has {shape}",
                "make the mask of the indices of the tile",
            )
    return expression


def selection(mask: Any, shape: tuple[int, ...]) -> Selection:
    """Return which elements of a tile a mask selects; plain booleans, None and selections are masks too."""
    if mask is None or isinstance(mask, tuple | np.ndarray):
        return mask
    if isinstance(mask, Mask):
        return mask.selection(shape)
    if not isinstance(mask, bool | np.bool_ | int):
        fail(
            "mask",
            f"Unsupported expression in mask: a {type(mask).__name__}",
            "compare index expressions with numbers",
        )
    return None if mask else False


def is_number(value: Any) -> bool:
    """Return whether a value is an integer of Python or numpy."""
    return isinstance(value, int | np.integer)


def arange(*args: Any) -> Index:
    """Return the numbers of an interval, for the indices of a tile."""
    start, stop = (0, int(args[0])) if len(args) == 1 else (int(args[0]), int(args[1]))
    if stop <= start:
        fail("arange", f"the interval {start} to {stop} is empty")
    return Index((stop - start,), (1,), start)


class Grid(tuple[Index, ...]):
    """The indices of `nl.mgrid`; the fields are p, x, y, z and w."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Index:
        number = "pxyzw".find(name) if len(name) == 1 else -1
        if not 0 <= number < len(self):
            raise AttributeError(f"mgrid of {len(self)} dimensions has no field {name!r}")
        return self[number]


class _GridMaker:
    def __getitem__(self, key: Any) -> Any:
        slices = key if isinstance(key, tuple) else (key,)
        ranges = [range(int(item.start or 0), int(item.stop), int(item.step or 1)) for item in slices]
        shape = tuple(len(numbers) for numbers in ranges)
        made = Grid(
            Index(
                shape,
                tuple(numbers.step if number == axis else 0 for number in range(len(shape))),
                numbers.start,
            )
            for axis, numbers in enumerate(ranges)
        )
        return made if isinstance(key, tuple) else made[0]


mgrid = _GridMaker()
