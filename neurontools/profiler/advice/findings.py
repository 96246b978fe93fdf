"""What a rule says: an advice with its evidence and gain, or why it is silent."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

WORTH = 0.01
"""Smallest share of a step that is worth an advice."""
_HIGH, _MEDIUM = 0.1, 0.03


class Severity(StrEnum):
    """How much of a step an advice concerns: a tenth or more, 3 % or more, less."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class Clock(StrEnum):
    """Where a time comes from: the engine model, or the clock of the computer that ran the program."""

    MODELLED = "modelled"
    MEASURED = "measured"


@dataclass(frozen=True, slots=True)
class Evidence:
    """Where a fault is.

    Args:
        text: what is there, e.g. `softmax between two products`.
        source: the line of the program, empty if unknown.
        count: how many operators.
        share: part of the step during which they work, 0 to 1; None where it has no meaning.
        layer: the modules that they belong to, e.g. `GPT.blocks.*.attn`; empty if unknown or without a common path.
        layers: how many modules.
    """

    text: str
    source: str = ""
    count: int = 1
    share: float | None = None
    layer: str = ""
    layers: int = 0


@dataclass(frozen=True, slots=True)
class Gain:
    """Time that a step would take less.

    Args:
        ns: the time.
        step_ns: time of a step now, by the same clock.
        clock: where both come from.
        is_bound: whether the gain is what the change brings at most.
        samples: of a step, where the change alters the batch, so that only times of a sample can be compared; else 0.
    """

    ns: int
    step_ns: int
    clock: Clock = Clock.MODELLED
    is_bound: bool = False
    samples: float = 0

    @property
    def share(self) -> float:
        """Part of the step, 0 to 1."""
        return self.ns / self.step_ns if self.step_ns else 0.0


@dataclass(frozen=True, slots=True)
class Advice:
    """A change that makes a step faster.

    Args:
        rule: name of the rule.
        title: the change in one imperative sentence.
        change: which line to change, and what to write.
        gain: what it brings.
        method: how the gain was computed.
        evidence: what the rule saw, the largest part first.
        program: name of the graph that it is about, empty if about all.
    """

    rule: str
    title: str
    change: str
    gain: Gain
    method: str
    evidence: tuple[Evidence, ...] = ()
    program: str = ""

    @property
    def severity(self) -> Severity:
        """How much of the step it is about."""
        if self.gain.share >= _HIGH:
            return Severity.HIGH
        return Severity.MEDIUM if self.gain.share >= _MEDIUM else Severity.LOW


@dataclass(frozen=True, slots=True)
class Silent:
    """A rule that looked and found nothing to change, and why."""

    rule: str
    reason: str
    program: str = ""


Finding: TypeAlias = Advice | Silent
