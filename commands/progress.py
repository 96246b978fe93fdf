"""The progress line of commands: on a terminal only, after a second, on stderr."""

from __future__ import annotations

import sys
import time
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Self

from neurontools.base.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable

_DELAY_S = 1.0
_PERIOD_S = 0.1
_CLEAR = "\r\x1b[K"


class ProgressLine:
    """One line on a terminal that is rewritten in place and cleared at the end.

    Quiet in a pipe, with `enabled=False`, and for the first `delay_s` seconds, so that quick work never flickers.
    """

    def __init__(
        self, *, enabled: bool = True, delay_s: float = _DELAY_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self.is_enabled = enabled and sys.stderr.isatty()
        """Whether it will ever show anything."""
        self._next_s = clock() + delay_s if self.is_enabled else float("inf")
        self._is_shown = False

    def show(self, text: str) -> None:
        """Show a text, at most ten times a second."""
        now_s = self._clock()
        if now_s < self._next_s:
            return
        columns = get_terminal_size().columns - 1
        sys.stderr.write(f"{_CLEAR}{printable(text)[:columns]}")
        sys.stderr.flush()
        self._is_shown = True
        self._next_s = now_s + _PERIOD_S

    def count(self, action: str, done: int, total: int | None = None, unit: str = "") -> None:
        """Show how far a piece of work is: `listing 1200 of 5000 entries`."""
        amount = f"{done}" if total is None else f"{done} of {total}"
        self.show(" ".join(word for word in (action, amount, unit) if word))

    def clear(self) -> None:
        """Remove the line, before other output or at the end."""
        if self._is_shown:
            sys.stderr.write(_CLEAR)
            sys.stderr.flush()
            self._is_shown = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()


class ProgressCounter(ProgressLine):
    """A progress line that counts: `counter(1200, 5000)` shows `listing 1200 of 5000 entries`."""

    def __init__(self, action: str, unit: str) -> None:
        super().__init__()
        self._action = action
        self._unit = unit

    def __call__(self, done: int, total: int | None = None) -> None:
        """Show how many are done, and of how many where that is known."""
        self.count(self._action, done, total, self._unit)
