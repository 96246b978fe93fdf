"""Quantities over time: pure functions of the seconds since a start, with their integrals.

Every curve knows its minimum and maximum, so a scenario can be checked without playing it. No curve is negative, so no
integral falls. `seeded` gives a curve its own noise.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

# Three sines with incommensurable periods look like noise and have an exact integral.
_NOISE_PARTS = ((0.5, 1.0), (0.3, 2.618034), (0.2, 6.854102))


def digest(*names: str) -> str:
    """Return 32 hexadecimal digits that depend on names alone."""
    return blake2b("\0".join(names).encode(), digest_size=16).hexdigest()


def unit(*names: str) -> float:
    """Return a number from 0 to below 1 that depends on names alone."""
    return int(digest(*names)[:13], 16) / 16**13


class Curve(ABC):
    """A quantity over time."""

    __slots__ = ()

    @property
    def low(self) -> float:
        """A value that it never falls below."""
        return self.bounds()[0]

    @property
    def high(self) -> float:
        """A value that it never exceeds."""
        return self.bounds()[1]

    @abstractmethod
    def bounds(self) -> tuple[float, float]:
        """Return the lower and the upper bound of its values."""

    @abstractmethod
    def value(self, time_s: float) -> float:
        """Return the value at a time of at least 0."""

    @abstractmethod
    def integral(self, time_s: float) -> float:
        """Return the area under the curve from 0 to a time of at least 0."""

    def seeded(self, seed: str) -> Curve:  # noqa: ARG002  for curves with noise
        """Return the curve with the noise that belongs to a seed; itself if it has none."""
        return self


@dataclass(frozen=True, slots=True)
class Constant(Curve):
    """Always the same."""

    level: float

    def bounds(self) -> tuple[float, float]:
        """Return the least and the greatest value."""
        return self.level, self.level

    def value(self, time_s: float) -> float:  # noqa: ARG002  a curve's form
        """Return the value at a time."""
        return self.level

    def integral(self, time_s: float) -> float:
        """Return the area from 0 to a time."""
        return self.level * time_s


NOTHING = Constant(0.0)


@dataclass(frozen=True, slots=True)
class Ramp(Curve):
    """From one value to another in a straight line, then level."""

    start: float
    end: float
    over_s: float

    def bounds(self) -> tuple[float, float]:
        """Return the least and the greatest value."""
        return min(self.start, self.end), max(self.start, self.end)

    def value(self, time_s: float) -> float:
        """Return the value at a time."""
        if time_s >= self.over_s:
            return self.end
        return self.start + (self.end - self.start) * time_s / self.over_s

    def integral(self, time_s: float) -> float:
        """Return the area from 0 to a time."""
        rising_s = min(time_s, self.over_s)
        area = (self.start + self.value(rising_s)) / 2 * rising_s if rising_s else 0.0
        return area + self.end * (time_s - rising_s)


@dataclass(frozen=True, slots=True)
class Sine(Curve):
    """Up and down between two values; `phase` is the part of a period that is over at time 0, which starts rising from the middle."""

    least: float
    greatest: float
    period_s: float
    phase: float = 0.0

    def bounds(self) -> tuple[float, float]:
        """Return the least and the greatest value."""
        return self.least, self.greatest

    def value(self, time_s: float) -> float:
        """Return the value at a time."""
        middle, swing = (self.least + self.greatest) / 2, (self.greatest - self.least) / 2
        return middle + swing * math.sin(2 * math.pi * (time_s / self.period_s + self.phase))

    def integral(self, time_s: float) -> float:
        """Return the area from 0 to a time."""
        middle, swing = (self.least + self.greatest) / 2, (self.greatest - self.least) / 2
        rate = 2 * math.pi / self.period_s
        before = 2 * math.pi * self.phase
        return middle * time_s + swing / rate * (math.cos(before) - math.cos(rate * time_s + before))


@dataclass(frozen=True, slots=True)
class Sum(Curve):
    """Several curves, added."""

    parts: tuple[Curve, ...]

    def bounds(self) -> tuple[float, float]:
        """Return the least and the greatest value."""
        return sum(part.low for part in self.parts), sum(part.high for part in self.parts)

    def value(self, time_s: float) -> float:
        """Return the value at a time."""
        return sum(part.value(time_s) for part in self.parts)

    def integral(self, time_s: float) -> float:
        """Return the area from 0 to a time."""
        return sum(part.integral(time_s) for part in self.parts)

    def seeded(self, seed: str) -> Sum:
        """Return the sum of the parts, each with noise of its own."""
        return Sum(tuple(part.seeded(f"{seed}/{index}") for index, part in enumerate(self.parts)))


@dataclass(frozen=True, slots=True)
class Noise(Curve):
    """Irregular about a mean, never further from it than the amplitude. Each seed makes it another sum of sines."""

    mean: float
    amplitude: float
    period_s: float

    def bounds(self) -> tuple[float, float]:
        """Return the least and the greatest value."""
        return self.mean - self.amplitude, self.mean + self.amplitude

    def value(self, time_s: float) -> float:
        """Return the value at a time, without a seed."""
        return self._sines((0.0, 0.0, 0.0)).value(time_s)

    def integral(self, time_s: float) -> float:
        """Return the area from 0 to a time, without a seed."""
        return self._sines((0.0, 0.0, 0.0)).integral(time_s)

    def seeded(self, seed: str) -> Sum:
        """Return the noise of a seed."""
        return self._sines([unit(seed, "noise", str(part)) for part in range(len(_NOISE_PARTS))])

    def _sines(self, phases: Sequence[float]) -> Sum:
        parts = []
        for (share, faster), phase in zip(_NOISE_PARTS, phases, strict=True):
            swing, middle = self.amplitude * share, self.mean * share
            parts.append(Sine(middle - swing, middle + swing, self.period_s / faster, phase))
        return Sum(tuple(parts))


@dataclass(frozen=True, slots=True)
class Scaled(Curve):
    """A curve times a number."""

    curve: Curve
    factor: float

    def bounds(self) -> tuple[float, float]:
        """Return the least and the greatest value."""
        return self.curve.low * self.factor, self.curve.high * self.factor

    def value(self, time_s: float) -> float:
        """Return the value at a time."""
        return self.curve.value(time_s) * self.factor

    def integral(self, time_s: float) -> float:
        """Return the area from 0 to a time."""
        return self.curve.integral(time_s) * self.factor

    def seeded(self, seed: str) -> Scaled:
        """Return it with the noise of a seed."""
        return Scaled(self.curve.seeded(seed), self.factor)


class Pieces(Curve):
    """Curves one after the other, each with its own time from 0; the last one lasts, or the pieces repeat.

    Args:
        pieces: pairs of a duration in seconds and a curve.
        repeat_from: index of the piece with which it goes on after the last one, None to stay in the last one.
    """

    __slots__ = ("_areas", "_bounds", "_intro_s", "_pieces", "_repeats", "_starts", "repeat_from")

    def __init__(self, pieces: Sequence[tuple[float, Curve]], repeat_from: int | None = None) -> None:
        self._pieces = tuple(pieces)
        self.repeat_from = repeat_from
        self._bounds = (min(curve.low for _, curve in pieces), max(curve.high for _, curve in pieces))
        starts, areas = [0.0], [0.0]
        for length_s, curve in pieces:
            starts.append(starts[-1] + length_s)
            areas.append(areas[-1] + curve.integral(length_s))
        self._starts, self._areas = starts, areas
        self._intro_s = starts[repeat_from] if repeat_from is not None else 0.0
        self._repeats = repeat_from is not None and starts[-1] > self._intro_s

    def bounds(self) -> tuple[float, float]:
        """Return the least and the greatest value."""
        return self._bounds

    def value(self, time_s: float) -> float:
        """Return the value at a time."""
        local_s, _ = self._once(time_s)
        index = min(bisect_right(self._starts, local_s), len(self._pieces)) - 1
        return self._pieces[index][1].value(local_s - self._starts[index])

    def integral(self, time_s: float) -> float:
        """Return the area from 0 to a time."""
        local_s, rounds = self._once(time_s)
        index = min(bisect_right(self._starts, local_s), len(self._pieces)) - 1
        area = self._areas[index] + self._pieces[index][1].integral(local_s - self._starts[index])
        if rounds:
            area += rounds * (self._areas[-1] - self._areas[self.repeat_from or 0])
        return area

    def seeded(self, seed: str) -> Pieces:
        """Return the pieces, each with noise of its own."""
        seeded = [
            (length_s, curve.seeded(f"{seed}/{index}"))
            for index, (length_s, curve) in enumerate(self._pieces)
        ]
        return Pieces(seeded, self.repeat_from)

    def _once(self, time_s: float) -> tuple[float, int]:
        # The time within the first round, and how many rounds are over.
        end_s = self._starts[-1]
        if not self._repeats or time_s < end_s:
            return time_s, 0
        rounds, rest_s = divmod(time_s - self._intro_s, end_s - self._intro_s)
        return self._intro_s + rest_s, int(rounds)
