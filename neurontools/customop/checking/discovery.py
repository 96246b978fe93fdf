"""Find the inputs for a check: the given ones, or those that the operator accepts in trials."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from neurontools.customop.abi import DEVICE_NAMES
from neurontools.customop.checking.calls import REFUSAL_KINDS, CheckedOperator
from neurontools.customop.checking.inputs import LETTERS, Pattern, case_of, cases
from neurontools.customop.errors import NeuronCustomOpError
from neurontools.customop.runner import check_inputs
from neurontools.customop.signature import TENSOR_KINDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from neurontools.customop.checking.inputs import Value
    from neurontools.customop.checking.report import CheckSettings, Findings

    Takes = Callable[[list[Value], dict[str, int]], bool]

Inputs = tuple[list[list["Value"]], tuple[int, ...], tuple[str, ...]]
"""Patterns of the inputs, one list for each way to call the operator; ranks for `*`; dtypes."""

_RANKS = (2, 1, 3, 4, 5, 6, 7, 8, 0)
_NUMBERS = (0.5, 3.0)  # 0.5 gives an empty result where the number is a size
_FAILURES_MAX = 16  # in trials of inputs of different kinds: each may cost a worker
_ACCESSOR = re.compile("dtype: ")
_NO_DIMENSION = re.compile(r"dimension -?\d+ of a tensor of \d+ dimensions")
_PAIR = 2  # with more, only the most likely dtypes are tried
_TENSORS_MAX = 3  # with more, there are too many ways
_MIXED_RANKS = (2, 1, 3, 4)
_FIRST = ("float32", "int32", "uint8")  # values, indexes, masks
_SIZE, _OTHER = 8, 5
_DIFFERENT = (3, 5, 7, 2, 6, 4, 9, 8)
_LARGEST = 11


def inputs_for(caller: CheckedOperator, settings: CheckSettings, findings: Findings) -> Inputs:
    """Return the inputs of an operator; it is a finding if it accepts none.

    Raises:
        UsageError: the given inputs do not match the operator.
    """
    found = _Discovery(caller, settings, findings)
    return found.given() if settings.patterns else found.by_trial()


class _Discovery:
    def __init__(self, caller: CheckedOperator, settings: CheckSettings, findings: Findings) -> None:
        self.caller = caller
        self.entry = caller.entry
        self.settings = settings
        self.findings = findings
        self.failures = 0
        self.failing: list[Value] = []
        self.has_output = False

    def given(self) -> Inputs:
        """Return the inputs of the settings if they match the operator."""
        given = self.settings.patterns
        check_inputs(self.entry, [isinstance(value, Pattern) for value in given])
        tensors = [value for value in given if isinstance(value, Pattern)]
        any_shape = any(value.dims is None for value in tensors)
        return [list(given)], self._ranks(list(given)) if any_shape else (0,), _dtypes(list(given))

    def by_trial(self) -> Inputs:
        """Return inputs that the operator accepts: tensors of one shape and dtype, else of several."""
        numbers = _NUMBERS if set(self.entry.parameters) - TENSOR_KINDS else _NUMBERS[:1]
        tries = [self._equal(number) for number in numbers[:1]]
        if len(numbers) > 1 and not self.has_output:
            tries.append(self._equal(numbers[1]))
        taken = [found for found in tries if found[0]]
        if taken:
            return taken[-1]
        for number in numbers[::-1]:
            mixed = mixed_inputs(self._any("float32", number), self._takes_sizes)
            if mixed is not None:
                return [mixed], (0,), _dtypes(mixed)
        if self.failing:  # report why it fails
            return [self.failing], (0,), _dtypes(self.failing)
        self._none_found()
        return [], (), ()

    def _equal(self, number: float) -> Inputs:
        names = ("float32", *(name for name in DEVICE_NAMES if name != "float32"))
        accepted: list[list[Value]] = []
        dtypes: list[str] = []
        ranks: tuple[int, ...] = ()
        for name in names:
            inputs = self._any(name, number)
            found = self._ranks(inputs) if not ranks else ranks if self._takes(inputs, ranks[0]) else ()
            if found:
                ranks = ranks or found
                accepted.append(inputs)
                dtypes.append(name)
        return accepted, ranks, tuple(dtypes)

    def _none_found(self) -> None:
        # The dtype that an accessor requires is a better reason than the refusal of the first tried shape.
        reasons = sorted(
            (reason for reason, _ in self.caller.refused), key=lambda words: not _ACCESSOR.match(words)
        )
        reason = reasons[0] if reasons else "it rejected all of them"
        case = next(iter(cases(self._any("float32", _NUMBERS[0]), (2,), 0, self.settings.seed)))
        words = {"tensor": "NxM:float32", "int64": "4"}
        example = " ".join(
            f"--input {words.get(word.removeprefix('const-'), '0.5')}" for word in self.entry.parameters
        )
        self.findings.add(
            "inputs",
            "",
            f"found no inputs that the operator accepts ({reason}); give them with --input, e.g. {example}",
            case,
        )

    def _any(self, dtype: str, number: float) -> list[Value]:
        made: list[Value] = []
        for word in self.entry.parameters:
            tensor = word in TENSOR_KINDS
            made.append(
                Pattern(None, dtype) if tensor else max(1, int(number)) if word == "int64" else number
            )
        return made

    def _ranks(self, pattern: list[Value]) -> tuple[int, ...]:
        return tuple(rank for rank in _RANKS if self._takes(pattern, rank))

    def _takes(self, pattern: list[Value], rank: int) -> bool:
        """Return whether the operator accepts such inputs, or fails in a way that the check reports."""
        try:
            case = next(iter(cases(pattern, (rank,), 0, self.settings.seed)))
            self.has_output |= self.caller.call(0, case).numel() > 0
        except NeuronCustomOpError as error:
            return not self._refuses(error)
        return True

    def _takes_sizes(self, pattern: list[Value], sizes: dict[str, int]) -> bool:
        """Return whether the operator accepts inputs of such sizes."""
        if self.failures >= _FAILURES_MAX:
            return False
        try:
            output = self.caller.call(0, case_of(pattern, sizes, self.settings.seed))
        except NeuronCustomOpError as error:
            if not self._refuses(error):
                self.failures += 1
                self.failing = self.failing or list(pattern)
            return False
        return bool(output.numel())

    def _refuses(self, error: NeuronCustomOpError) -> bool:
        # A failing shape function needs another number of dimensions, or supports one dtype only.
        other_dtype = error.kind == "output" and "returned dtype" in error.reason
        no_dimension = _NO_DIMENSION.match(error.reason) is not None
        refuses = error.kind in REFUSAL_KINDS or other_dtype or no_dimension or error.core < 0
        if refuses:
            self.caller.refuse(error)
        return refuses


def _dtypes(values: list[Value]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(value.dtype for value in values if isinstance(value, Pattern)))


def mixed_inputs(values: Sequence[Value], takes: Takes) -> list[Value] | None:
    """Find patterns of tensors with different shapes or dtypes that an operator accepts, None if there are none.

    Trials take at most about a second.

    Args:
        values: its inputs: any pattern for tensors, and numbers.
        takes: returns whether the operator accepts patterns with given sizes of their letters.

    Dimensions that must be equal get one letter; integers that are indexes are bounded by the letter that they index.
    """
    tensors = [index for index, value in enumerate(values) if isinstance(value, Pattern)]
    if not 1 < len(tensors) <= _TENSORS_MAX:
        return None
    for kinds in _kinds(len(tensors)):
        for ranks in itertools.product(_MIXED_RANKS, repeat=len(tensors)):
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
    """Give independent dimensions different letters, if the operator accepts that."""
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
    """Return the patterns with the letter B for some dimensions, and the sizes of both letters."""
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
    """Return groups of dimensions that change together: single ones, pairs, and the rest."""
    remaining = list(range(count))
    groups: list[list[int]] = []
    for member in range(count):
        if may_change(frozenset({member})):
            groups.append([member])
            remaining.remove(member)
    for first, second in itertools.combinations(tuple(remaining), 2):
        if first in remaining and second in remaining and may_change(frozenset({first, second})):
            groups.append([first, second])
            remaining = [member for member in remaining if member not in (first, second)]
    if remaining:
        groups.append(remaining)
    return sorted(groups)
