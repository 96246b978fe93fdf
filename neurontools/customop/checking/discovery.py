"""Which inputs an operator is checked with: those that were given, or what it turns out to take."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from neurontools.customop.checking.calls import REFUSALS, Caller
from neurontools.customop.checking.check_inputs import Pattern, cases
from neurontools.customop.dtypes import DEVICE_NAMES
from neurontools.customop.errors import NeuronCustomOpError
from neurontools.errors import UsageError

if TYPE_CHECKING:
    from neurontools.customop.checking.check_report import CheckSettings
    from neurontools.customop.checking.tally import Tally

Value = Pattern | float | int
Inputs = tuple[list[list[Value]], tuple[int, ...], tuple[str, ...]]
"""Patterns of the inputs, one list for each way to call it; ranks that `*` stands for; dtypes."""

_RANKS = (2, 1, 3, 4, 5, 6, 7, 8, 0)
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

    def given(self) -> Inputs:
        """Return what the settings say; checks that it fits the operator."""
        entry, given = self.entry, self.settings.patterns
        if len(given) != len(entry.parameters):
            raise UsageError(
                f"{entry.qualified} takes {len(entry.parameters)} inputs, {len(given)} given",
                f"schema: {entry.library}::{entry.schema}",
            )
        for position, (value, word) in enumerate(zip(given, entry.parameters, strict=True)):
            if isinstance(value, Pattern) != (word in {"tensor", "const-tensor"}):
                raise UsageError(f"{entry.qualified}: input {position} is of the other kind", entry.schema)
        tensors = [value for value in given if isinstance(value, Pattern)]
        any_shape = any(value.dims is None for value in tensors)
        dtypes = tuple(dict.fromkeys(value.dtype for value in tensors))
        return [list(given)], self._ranks(list(given)) if any_shape else (0,), dtypes

    def tried_out(self) -> Inputs:
        """Return what the operator takes of tensors that all have one shape and dtype."""
        names = ("float32", *(name for name in DEVICE_NAMES if name != "float32"))
        accepted: list[list[Value]] = []
        dtypes: list[str] = []
        ranks: tuple[int, ...] = ()
        for name in names:
            inputs = self._any(name)
            found = self._ranks(inputs) if not ranks else ranks if self._takes(inputs, ranks[0]) else ()
            if found:
                ranks = ranks or found
                accepted.append(inputs)
                dtypes.append(name)
        if not accepted:
            reason = next(iter(self.caller.refused), "it refused all")
            case = next(iter(cases(self._any("float32"), (2,), 0, self.settings.seed)))
            self.tally.add("inputs", "", f"found none that it takes ({reason}); give them with --input", case)
        return accepted, ranks, tuple(dtypes)

    def _any(self, dtype: str) -> list[Value]:
        made: list[Value] = []
        for word in self.entry.parameters:
            tensor = word in {"tensor", "const-tensor"}
            made.append(Pattern(None, dtype) if tensor else 1 if word == "int64" else 0.5)
        return made

    def _ranks(self, pattern: list[Value]) -> tuple[int, ...]:
        return tuple(rank for rank in _RANKS if self._takes(pattern, rank))

    def _takes(self, pattern: list[Value], rank: int) -> bool:
        """Return whether the operator takes such inputs, or fails in a way that is to be told later."""
        case = next(iter(cases(pattern, (rank,), 0, self.settings.seed)))
        try:
            self.caller.call(0, case)
        except NeuronCustomOpError as error:
            # A shape function that fails asks for a dimension that is not there, or it promises only one dtype.
            other_dtype = error.kind == "output" and "returned dtype" in error.reason
            no_dimension = _NO_DIMENSION.match(error.reason) is not None
            if error.kind in REFUSALS or other_dtype or no_dimension or error.core < 0:
                self.caller.refuse(error)
                return False
        return True
