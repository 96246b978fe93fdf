"""Things sorted by a number, and those nearest to a value: found by bisection, as a cache may hold very many."""

from __future__ import annotations

from bisect import bisect_left
from operator import itemgetter
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

T = TypeVar("T")


class Ranked(Generic[T]):
    """Things by a number; equal ones keep the order in which they were given."""

    def __init__(self, things: Iterable[tuple[float, T]]) -> None:
        self._rows = sorted(things, key=itemgetter(0))

    def nearest(self, value: float, most: int, accepts: Callable[[T], bool]) -> list[T]:
        """Return the things nearest to a value, the nearest first, at most so many of those that are accepted."""
        found: list[T] = []
        for thing in self._outwards(value):
            if len(found) == most:
                break
            if accepts(thing):
                found.append(thing)
        return found

    def _outwards(self, value: float) -> Iterator[T]:
        rows = self._rows
        after = bisect_left(rows, value, key=itemgetter(0))
        before = after - 1
        while before >= 0 or after < len(rows):
            if before < 0 or (after < len(rows) and rows[after][0] - value <= value - rows[before][0]):
                yield rows[after][1]
                after += 1
            else:
                yield rows[before][1]
                before -= 1
