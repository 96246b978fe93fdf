"""Loops, reductions over loops, and launch grids of the first generation.

Sources: AWS Neuron documentation 2.26, "nki.language" (affine_range, loop_reduce, nc, spmd_dim).
"""

from __future__ import annotations

import sys
from math import prod
from typing import TYPE_CHECKING, Any

from neurontools.nki.context import affine_iterations, fail, running, whole
from neurontools.nki.locations import UserLine, is_user_frame, user_location

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import FrameType

    from neurontools.nki.first.tile import Tile


class Loop:
    """A loop that runs: what reductions over it have added up.

    Args:
        place: the line of its iterator.
        is_traced: whether the compiler traces its body once, for all iterations.
    """

    __slots__ = ("is_traced", "number", "place", "seen", "totals")

    def __init__(self, place: UserLine, *, is_traced: bool = True) -> None:
        self.place = place
        self.is_traced = is_traced
        self.number = 0
        self.totals: dict[Any, Tile] = {}
        self.seen: dict[Any, int] = {}


class LoopNumber(int):
    """A number of a loop, which knows the loop."""

    loop: Loop


def _loop(numbers: Any, *, is_traced: bool = True) -> Iterator[LoopNumber]:
    loops: list[Loop] = running().loops
    loop = Loop(user_location(), is_traced=is_traced)
    depth = len(loops)
    loops.append(loop)
    try:
        for number in numbers:
            del loops[depth + 1 :]  # loops that ended with `break`
            loop.number = number
            loop.seen.clear()
            made = LoopNumber(number)
            made.loop = loop
            yield made
    finally:
        del loops[depth:]


def _numbers(args: tuple[Any, ...]) -> range:
    return range(*[whole("range", "a bound", item) for item in args])


def affine_range(*args: Any) -> Iterator[LoopNumber]:
    """Return the numbers of a loop whose iterations the kernel declares independent, sums aside."""
    return _loop(affine_iterations(_numbers(args)))


def sequential_range(*args: Any) -> Iterator[LoopNumber]:
    """Return the numbers of a loop whose iterations depend on each other."""
    return _loop(_numbers(args))


def static_range(*args: Any) -> Iterator[LoopNumber]:
    """Return the numbers of a loop that is unrolled."""
    return _loop(_numbers(args), is_traced=False)


def as_traced(value: Any) -> Any:
    """Return what the line that is running had computed in the first iterations of its loops.

    The compiler traces the body of a loop once: addresses that Python adds up do not grow from iteration to iteration.
    """
    loops: list[Loop] = running().loops
    traced = [loop for loop in loops if loop.is_traced]
    if not traced:
        return value
    unrolled = tuple((loop.place, loop.number) for loop in loops if not loop.is_traced)
    line = ("traced", _call_lines(), unrolled)
    count = traced[-1].seen.get(line, 0)
    traced[-1].seen[line] = count + 1
    return running().launch.constants.setdefault((*line, count), value)


def running_total(loop_indices: Any, add: Any) -> Tile:
    """Return the total of a reduction over loops, after this iteration.

    The totals belong to the outermost of the loops. A total belongs to a line, the lines that have called it, the numbers of
    the other loops inside, and how often the line has run in this iteration: plain loops of Python are not known here.

    Args:
        loop_indices: numbers of the loops.
        add: returns the new total for the one before, which is None at first and where a mask has excluded all of them.
    """
    loops: list[Loop] = running().loops
    given = loop_indices if isinstance(loop_indices, list | tuple) else (loop_indices,)
    reduced = [item.loop for item in given if isinstance(item, LoopNumber)]
    depth = min((loops.index(loop) for loop in reduced if loop in loops), default=0)
    owner = loops[depth] if loops else Loop(user_location())
    inner = tuple((loop.place, loop.number) for loop in loops[depth + 1 :] if loop not in reduced)
    key = (_call_lines(), inner)
    step = (key, tuple(loop.number for loop in reduced))
    count = owner.seen.get(step, 0)
    owner.seen[step] = count + 1
    total: Tile = add(owner.totals.get((key, count)))
    if total.valid is not False:
        owner.totals[key, count] = total
    return total


def _call_lines() -> tuple[tuple[Any, int], ...]:
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001
    lines = []
    while frame is not None:
        if is_user_frame(frame):
            lines.append((frame.f_code, frame.f_lineno))
        frame = frame.f_back
    return tuple(lines)


# ---- launch grids


class GridDim:
    """A dimension of a launch grid, in factors of which one may number the physical cores.

    Args:
        factors: sizes, outermost first, and whether they number cores.
    """

    __slots__ = ("factors",)

    def __init__(self, *factors: tuple[int, bool]) -> None:
        self.factors = factors

    @property
    def size(self) -> int:
        """Number of programs."""
        return prod(size for size, _ in self.factors)

    def core_of(self, number: int) -> int:
        """Return the physical core of a program."""
        core = 0
        for position, (size, is_core) in enumerate(self.factors):
            inner = prod(factor for factor, _ in self.factors[position + 1 :])
            if is_core:
                core = core * size + number // inner % size
        return core

    def __mul__(self, other: Any) -> GridDim:
        return spmd_dim(self, other)

    def __rmul__(self, other: Any) -> GridDim:
        return spmd_dim(other, self)


def nc(count: int) -> GridDim:
    """Return a grid dimension of physical cores."""
    return GridDim((int(count), True))


def spmd_dim(*dims: Any) -> GridDim:
    """Return a grid dimension of factors, outermost first."""
    return GridDim(*[factor for dim in dims for factor in as_grid_dim(dim).factors])


def as_grid_dim(value: Any) -> GridDim:
    """Return a dimension of a launch grid."""
    if isinstance(value, GridDim):
        return value
    size = whole("grid", "a size", value)
    if size < 1:
        fail("grid", f"size {size} is not positive")
    return GridDim((size, False))


def core_of(dims: Sequence[GridDim], program: Sequence[int]) -> int:
    """Return the physical core of a program of a grid."""
    core = 0
    for dim, number in zip(dims, program, strict=True):
        cores = prod(size for size, is_core in dim.factors if is_core)
        core = core * cores + dim.core_of(number)
    return core
