"""Reads decoded JSON with checks: each value knows its place, so that an error can name it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from neurontools.errors import NeuronToolsError

if TYPE_CHECKING:
    from collections.abc import Iterator

_SHOWN = 40


class DamagedLineError(NeuronToolsError):
    """A line is no report of neuron-monitor; the message names the place."""


class Reading:
    """A decoded JSON value and where it stands. What is absent or null reads as empty.

    Args:
        value: as json.loads returns it.
        place: keys from the root, with dots between them.
    """

    __slots__ = ("_place", "_value")

    def __init__(self, value: object, place: str = "") -> None:
        self._value = value
        self._place = place

    def member(self, key: str) -> Reading:
        """Return what a key of this object holds."""
        return Reading(self._object().get(key), f"{self._place}.{key}" if self._place else key)

    def optional(self, key: str) -> Reading | None:
        """Return what a key of this object holds, None when that is null or the key is absent."""
        return None if self._object().get(key) is None else self.member(key)

    def members(self) -> Iterator[tuple[str, Reading]]:
        """Yield the keys of this object and what they hold."""
        return ((key, self.member(key)) for key in self._object())

    def items(self) -> Iterator[Reading]:
        """Yield the items of this list."""
        if self._value is None:
            return iter(())
        if not isinstance(self._value, list):
            raise self.error("expected a list")
        return (Reading(item, f"{self._place}[{index}]") for index, item in enumerate(self._value))

    def text(self, key: str) -> str:
        """Return a text member, "" by default."""
        value = self._object().get(key)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise self.member(key).error("expected a text")
        return value

    def boolean(self, key: str) -> bool:
        """Return a boolean member, False by default."""
        value = self._object().get(key)
        if value is not None and not isinstance(value, bool):
            raise self.member(key).error("expected true or false")
        return bool(value)

    def number(self, key: str) -> float:
        """Return a member that is a number, 0 by default."""
        value = self._object().get(key)
        if value is None:
            return 0.0
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.member(key).error("expected a number")
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise self.member(key).error("the number is out of range")
        return number

    def integer(self, key: str, default: int = 0) -> int:
        """Return a member that is a whole number; fractions are rounded."""
        value = self._object().get(key)
        if value is None:
            return default
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        return round(self.number(key))

    def index(self, key: str, prefix: str = "") -> int:
        """Return the number that a key of this object stands for, e.g. a core's id."""
        digits = key.removeprefix(prefix)
        if not (digits.isascii() and digits.isdigit() and len(digits) < 10):
            raise self.error(f"{key[:_SHOWN]!r} is no index")
        return int(digits)

    def error(self, why: str) -> DamagedLineError:
        """Return the error that this value is not what it should be."""
        shown = repr(self._value)
        short = shown if len(shown) <= _SHOWN else shown[: _SHOWN - 3] + "..."
        return DamagedLineError(f"damaged line: {self._place or 'the whole line'}: {why}, found {short}")

    def _object(self) -> dict[str, object]:
        if self._value is None:
            return {}
        if not isinstance(self._value, dict):
            raise self.error("expected an object")
        return self._value
