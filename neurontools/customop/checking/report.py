"""What to check an operator with, and what came out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from neurontools.customop.checking.inputs import Case, Pattern


@dataclass(frozen=True, slots=True)
class CheckSettings:
    """What to check an operator with.

    Args:
        patterns: its inputs; empty: what it takes is tried out.
        reference: an expression for the expected output, such as `torch.relu(x0)`; "" for none.
        backward: expressions for gradients by input, such as `backward(g, x0)`; None: those of a pair by name.
        count: random shapes for each number of dimensions.
        seed: decides random sizes and contents.
        tolerance: relative and absolute difference to the reference that is allowed; None: torch's own by dtype.
    """

    patterns: tuple[Pattern | float | int, ...] = ()
    reference: str = ""
    backward: tuple[tuple[int, str], ...] | None = None
    count: int = 12
    seed: int = 0
    tolerance: float | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong, on the smallest inputs that show it.

    Args:
        check: which check: shapes, repeats, cores, memory, reference, gradient, inputs.
        message: what happened.
        count: how many cases show it.
        inputs: the smallest of them, as `neuron-customop run --input` takes them.
        remedy: what to do, "" where nothing is known.
    """

    check: str
    message: str
    count: int
    inputs: tuple[str, ...]
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class CheckReport:
    """A checked operator.

    Args:
        op: its qualified name.
        schema: its torch schema.
        cases: how many inputs it was called with and took.
        ranks: numbers of dimensions that `*` stood for and that it takes.
        dtypes: element types that it takes; those of the patterns when they were given.
        assumed: what nobody said and was tried out: inputs of different kinds, how the gradient is called.
        passed: checks that found nothing.
        findings: what is wrong.
        warnings: what the checks of the runtime warn about.
        refused: what it says of inputs that it does not take, with their number.
        skipped: checks that were not made, and why.
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
class Tally:
    """The findings so far: of those with the same words, the smallest case."""

    found: dict[tuple[str, str], tuple[int, Case, str, str]] = field(default_factory=dict)

    def add(self, check: str, kind: str, message: str, case: Case, remedy: str = "") -> None:
        """Add a finding; those of one check and kind count as one."""
        count, smallest, words, help_ = self.found.get((check, kind), (0, case, message, remedy))
        if _size(case) < _size(smallest):
            smallest, words, help_ = case, message, remedy
        self.found[check, kind] = count + 1, smallest, words, help_

    def has(self, check: str) -> bool:
        """Return whether a check found something."""
        return any(found == check for found, _ in self.found)

    def drop(self, check: str) -> None:
        """Forget what a check found."""
        self.found = {key: value for key, value in self.found.items() if key[0] != check}

    def findings(self) -> tuple[Finding, ...]:
        """Return them in the order in which they were found first."""
        return tuple(
            Finding(check, message, count, case.words, remedy)
            for (check, _), (count, case, message, remedy) in self.found.items()
        )


def _size(case: Case) -> tuple[bool, int]:
    return case.elements == 0, case.elements  # an empty tensor says least
