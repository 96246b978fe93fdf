"""Which inputs an operator is checked with: those that were given, or what it turns out to take."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from neurontools.customop.checking.calls import REFUSALS, Caller
from neurontools.customop.checking.check_inputs import Pattern, case_of, cases
from neurontools.customop.checking.mixed_inputs import mixed_inputs
from neurontools.customop.dtypes import DEVICE_NAMES
from neurontools.customop.errors import NeuronCustomOpError
from neurontools.errors import UsageError

if TYPE_CHECKING:
    from neurontools.customop.checking.check_inputs import Case, Value
    from neurontools.customop.checking.check_report import CheckSettings
    from neurontools.customop.checking.tally import Tally

Inputs = tuple[list[list["Value"]], tuple[int, ...], tuple[str, ...]]
"""Patterns of the inputs, one list for each way to call it; ranks that `*` stands for; dtypes."""

_RANKS = (2, 1, 3, 4, 5, 6, 7, 8, 0)
_TENSORS = frozenset({"tensor", "const-tensor"})
_NUMBERS = (0.5, 3.0)  # a half of something is nothing where the number is a size
_FAILURES_MAX = 16  # while inputs of different kinds are tried out: each may cost a worker
_ACCESSOR = re.compile("dtype: ")
_NO_DIMENSION = re.compile(r"dimension -?\d+ of a tensor of \d+ dimensions")


def inputs_for(caller: Caller, settings: CheckSettings, tally: Tally) -> Inputs:
    """Return what to call an operator with; what it does not take at all is a finding.

    Raises:
        UsageError: what was given does not fit the operator.
    """
    found = _Discovery(caller, settings, tally)
    return found.given() if settings.patterns else found.tried_out()


class _Discovery:
    def __init__(self, caller: Caller, settings: CheckSettings, tally: Tally) -> None:
        self.caller = caller
        self.entry = caller.entry
        self.settings = settings
        self.tally = tally
        self.failures = 0
        self.failing: list[Value] = []
        self.has_output = False

    def given(self) -> Inputs:
        """Return what the settings say; checks that it fits the operator."""
        entry, given = self.entry, self.settings.patterns
        if len(given) != len(entry.parameters):
            raise UsageError(
                f"{entry.qualified} takes {len(entry.parameters)} inputs, {len(given)} given",
                f"schema: {entry.library}::{entry.schema}",
            )
        for position, (value, word) in enumerate(zip(given, entry.parameters, strict=True)):
            if isinstance(value, Pattern) != (word in _TENSORS):
                raise UsageError(f"{entry.qualified}: input {position} is of the other kind", entry.schema)
        tensors = [value for value in given if isinstance(value, Pattern)]
        any_shape = any(value.dims is None for value in tensors)
        return [list(given)], self._ranks(list(given)) if any_shape else (0,), _dtypes(list(given))

    def tried_out(self) -> Inputs:
        """Return what the operator takes: tensors of one shape and dtype, else of several."""
        numbers = _NUMBERS if set(self.entry.parameters) - _TENSORS else _NUMBERS[:1]
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
        if self.failing:  # it fails for a reason that is to be told
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
        # What an accessor asks for is nearer to the truth than what is said of the first shape that comes.
        reasons = sorted(
            (reason for reason, _ in self.caller.refused), key=lambda words: not _ACCESSOR.match(words)
        )
        reason = reasons[0] if reasons else "it refused all"
        case = next(iter(cases(self._any("float32", _NUMBERS[0]), (2,), 0, self.settings.seed)))
        words = {"tensor": "NxM:float32", "int64": "4"}
        example = " ".join(
            f"--input {words.get(word.removeprefix('const-'), '0.5')}" for word in self.entry.parameters
        )
        self.tally.add(
            "inputs",
            "",
            f"found none that it takes ({reason}); give them with --input, such as {example}",
            case,
        )

    def _any(self, dtype: str, number: float) -> list[Value]:
        made: list[Value] = []
        for word in self.entry.parameters:
            tensor = word in _TENSORS
            made.append(
                Pattern(None, dtype) if tensor else max(1, int(number)) if word == "int64" else number
            )
        return made

    def _ranks(self, pattern: list[Value]) -> tuple[int, ...]:
        return tuple(rank for rank in _RANKS if self._takes(pattern, rank))

    def _takes(self, pattern: list[Value], rank: int) -> bool:
        """Return whether the operator takes such inputs, or fails in a way that is to be told later."""
        try:
            self._call(next(iter(cases(pattern, (rank,), 0, self.settings.seed))))
        except NeuronCustomOpError as error:
            return not self._refuses(error)
        return True

    def _takes_sizes(self, pattern: list[Value], sizes: dict[str, int]) -> bool:
        """Return whether the operator takes inputs of such sizes."""
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

    def _call(self, case: Case) -> None:
        self.has_output |= self.caller.call(0, case).numel() > 0

    def _refuses(self, error: NeuronCustomOpError) -> bool:
        # A shape function that fails asks for a dimension that is not there, or it promises only one dtype.
        other_dtype = error.kind == "output" and "returned dtype" in error.reason
        no_dimension = _NO_DIMENSION.match(error.reason) is not None
        refuses = error.kind in REFUSALS or other_dtype or no_dimension or error.core < 0
        if refuses:
            self.caller.refuse(error)
        return refuses


def _dtypes(values: list[Value]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(value.dtype for value in values if isinstance(value, Pattern)))
