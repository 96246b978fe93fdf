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
