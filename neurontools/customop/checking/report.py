"""Settings and results of a check."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from neurontools.customop.checking.inputs import Case, Pattern


@dataclass(frozen=True, slots=True)
class CheckSettings:
    """Settings of a check.

    Args:
        patterns: the operator's inputs; empty: found by trial.
        reference: an expression for the expected output, such as `torch.relu(x0)`, or a function that returns it,
            `MODULE:FUNCTION` or `FILE.py:FUNCTION`; "" for none.
        backward: expressions for gradients by input, such as `backward(g, x0)`; None: a backward operator found by name.
        count: number of random shapes per rank.
        seed: seed of random sizes and contents.
        tolerance: allowed relative and absolute difference to the reference; None: torch's by dtype.
    """

    patterns: tuple[Pattern | float | int, ...] = ()
    reference: str = ""
    backward: tuple[tuple[int, str], ...] | None = None
    count: int = 12
    seed: int = 0
    tolerance: float | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """An error of an operator, with the smallest inputs that show it.

    Args:
        check: the check that failed: shapes, repeats, cores, memory, reference, gradient, inputs.
        message: the error.
        count: number of cases that show it.
        inputs: the smallest of them, in the notation of `neuron-customop run --input`.
        remedy: the remedy, "" if none is known.
    """

    check: str
    message: str
    count: int
    inputs: tuple[str, ...]
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The result of checking an operator.

    Args:
        op: its qualified name.
        schema: its torch schema.
        cases: number of inputs that it accepted.
        ranks: numbers of dimensions that it accepts for `*`.
        dtypes: element types that it accepts; those of the patterns if given.
        assumed: facts found by trial: inputs of different kinds, the call of the gradient.
        passed: checks without findings.
        findings: the errors.
        warnings: warnings of the runtime checks.
        refused: its reasons for refused inputs, with their number.
        skipped: skipped checks with the reason.
    """

    op: str
    schema: str
    cases: int
    ranks: tuple[int, ...]
    dtypes: tuple[str, ...]
    assumed: tuple[tuple[str, str], ...]
    passed: tuple[str, ...]
    findings: tuple[Finding, ...]
    warnings: tuple[str, ...]
    refused: tuple[tuple[str, int], ...]
    skipped: tuple[tuple[str, str], ...]


@dataclass(slots=True)
class Findings:
    """Findings by check and kind, with the smallest case of each."""

    found: dict[tuple[str, str], tuple[int, Case, str, str]] = field(default_factory=dict)

    def add(self, check: str, kind: str, message: str, case: Case, remedy: str = "") -> None:
        """Add a finding; findings of the same check and kind are merged."""
        count, smallest, text, known_remedy = self.found.get((check, kind), (0, case, message, remedy))
        if _size(case) < _size(smallest):
            smallest, text, known_remedy = case, message, remedy
        self.found[check, kind] = count + 1, smallest, text, known_remedy

    def has(self, check: str) -> bool:
        """Return whether a check has findings."""
        return any(found == check for found, _ in self.found)

    def drop(self, check: str) -> None:
        """Remove the findings of a check."""
        self.found = {key: value for key, value in self.found.items() if key[0] != check}

    def as_tuple(self) -> tuple[Finding, ...]:
        """Return the findings in the order of their first occurrence."""
        return tuple(
            Finding(check, message, count, case.words, remedy)
            for (check, _), (count, case, message, remedy) in self.found.items()
        )


def _size(case: Case) -> tuple[bool, int]:
    return case.elements == 0, case.elements  # an empty tensor is the least useful example
