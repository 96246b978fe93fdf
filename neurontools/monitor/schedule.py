"""When what is collected: pure, the clock is passed in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

Key = TypeVar("Key", bound="Hashable")

# Things whose times differ by less are collected together, so that 0.1 s and 0.3 s share a line each third time.
_TOGETHER_S = 0.005


class Schedule(Generic[Key]):
    """Things that are due at whole multiples of their periods; what was missed is not made up for.

    Args:
        periods: seconds, by thing.
        start_s: when everything is due for the first time.
    """

    def __init__(self, periods: Mapping[Key, float], start_s: float) -> None:
        self._start_s = start_s
        self._periods = dict(periods)
        self._turns = dict.fromkeys(periods, 0)

    def next_s(self) -> float:
        """Return when something is due next; infinite for an empty schedule."""
        return min(map(self._due_s, self._periods), default=float("inf"))

    def take(self, now_s: float) -> frozenset[Key]:
        """Return what is due now, which is then due again at its next multiple in the future."""
        due = frozenset(key for key in self._periods if self._due_s(key) <= now_s + _TOGETHER_S)
        for key in due:
            passed = int((now_s + _TOGETHER_S - self._start_s) / self._periods[key])
            self._turns[key] = max(passed, self._turns[key]) + 1
        return due

    def _due_s(self, key: Key) -> float:
        return self._start_s + self._turns[key] * self._periods[key]
