"""What an operator takes whose tensors have not all one shape and dtype: found by trying, at most a second long."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

from neurontools.customop.checking.check_inputs import LETTERS, Pattern
from neurontools.customop.dtypes import DEVICE_NAMES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from neurontools.customop.checking.check_inputs import Value

    Takes = Callable[[list[Value], dict[str, int]], bool]

_PAIR = 2  # with more, only the most likely dtypes are tried
_TENSORS_MAX = 3  # with more, there are too many ways
_RANKS = (2, 1, 3, 4)
_FIRST = ("float32", "int32", "uint8")  # values, indexes, masks
_SIZE, _OTHER = 8, 5
_DIFFERENT = (3, 5, 7, 2, 6, 4, 9, 8)
_LARGEST = 11


def mixed_inputs(values: Sequence[Value], takes: Takes) -> list[Value] | None:
    """Return patterns that an operator takes, None when none was found.

    Args:
        values: its inputs: any pattern where there is a tensor, and numbers.
        takes: tells whether it takes patterns with such sizes of their letters.

    Dimensions that must be equal have one letter, and integers that are indexes are below the letter that they index.
    """
    tensors = [index for index, value in enumerate(values) if isinstance(value, Pattern)]
    if not 1 < len(tensors) <= _TENSORS_MAX:
        return None
    for kinds in _kinds(len(tensors)):
        for ranks in itertools.product(_RANKS, repeat=len(tensors)):
            made = list(values)
            for index, (dtype, below), rank in zip(tensors, kinds, ranks, strict=True):
                made[index] = Pattern(("A",) * rank, dtype, below)
            if takes(made, {"A": _SIZE}):
                return _with_letters(made, takes)
    return None


def _kinds(count: int) -> Iterator[tuple[tuple[str, str | None], ...]]:
    names = (*_FIRST, *(name for name in DEVICE_NAMES if name not in _FIRST)) if count == _PAIR else _FIRST
    choices: list[tuple[str, str | None]] = [(name, None) for name in names]
    choices.insert(2, ("int32", "A"))
    yield from itertools.product(choices, repeat=count)


def _with_letters(made: list[Value], takes: Takes) -> list[Value]:
    """Give dimensions that may differ letters of their own, if the operator takes it."""
    places = [
        (index, axis)
        for index, value in enumerate(made)
        if isinstance(value, Pattern)
        for axis in range(len(value.dims or ()))
    ]
    groups = _groups(len(places), lambda changed: takes(*_changed(made, places, changed)))
    if len(groups) > len(LETTERS):
        return made
    letter_of = {
        places[member]: letter for letter, group in zip(LETTERS, groups, strict=False) for member in group
    }
    letters = LETTERS[: len(groups)]
    lettered = [
        replace(value, dims=tuple(letter_of[index, axis] for axis in range(len(value.dims or ()))))
        if isinstance(value, Pattern)
        else value
        for index, value in enumerate(made)
    ]
    indexed = any(isinstance(value, Pattern) and value.below for value in lettered)
    for letter in letters if indexed else letters[:1]:
        bound = [
            replace(value, below=letter) if isinstance(value, Pattern) and value.below else value
            for value in lettered
        ]
        largest = {letter: _LARGEST} if indexed else {}
        if takes(bound, {**dict(zip(letters, _DIFFERENT, strict=False)), **largest}):
            return bound
    return made


def _changed(
    made: list[Value], places: list[tuple[int, int]], changed: frozenset[int]
) -> tuple[list[Value], dict[str, int]]:
    """Return the patterns with a letter B where some dimensions are, and the sizes of both letters."""
    result = list(made)
    for index, value in enumerate(made):
        if isinstance(value, Pattern):
            dims = (
                "B" if places.index((index, axis)) in changed else "A"
                for axis in range(len(value.dims or ()))
            )
            result[index] = replace(value, dims=tuple(dims), below=value.below and "B")
    return result, {"A": _SIZE, "B": _OTHER}


def _groups(count: int, may_change: Callable[[frozenset[int]], bool]) -> list[list[int]]:
    """Return which dimensions change together: alone, in pairs, or all that are left."""
    left = list(range(count))
    groups: list[list[int]] = []
    for member in range(count):
        if may_change(frozenset({member})):
            groups.append([member])
            left.remove(member)
    for first, second in itertools.combinations(tuple(left), 2):
        if first in left and second in left and may_change(frozenset({first, second})):
            groups.append([first, second])
            left = [member for member in left if member not in (first, second)]
    if left:
        groups.append(left)
    return sorted(groups)
