"""What a check found so far: each finding once, for the smallest inputs that show it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from neurontools.customop.checking.check_report import Finding

if TYPE_CHECKING:
    from neurontools.customop.checking.check_inputs import Case


@dataclass(slots=True)
class Tally:
    """The findings so far: of those with the same words, the smallest case."""

    found: dict[tuple[str, str], tuple[int, Case, str]] = field(default_factory=dict)

    def add(self, check: str, kind: str, message: str, case: Case) -> None:
        """Add a finding; those of one check and kind count as one."""
        count, smallest, words = self.found.get((check, kind), (0, case, message))
        if _size(case) < _size(smallest):
            smallest, words = case, message
        self.found[check, kind] = count + 1, smallest, words

    def findings(self) -> tuple[Finding, ...]:
        """Return them in the order in which they were found first."""
        return tuple(
            Finding(check, message, count, case.words)
            for (check, _), (count, case, message) in self.found.items()
        )


def _size(case: Case) -> tuple[bool, int]:
    return case.elements == 0, case.elements  # an empty tensor says least
