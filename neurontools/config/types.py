"""The types of values in configuration files: what a value must be, and how it is read."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from neurontools.base.text import did_you_mean, shorten
from neurontools.base.units import parse_duration, parse_size
from neurontools.config import reader
from neurontools.config.reader import MismatchError
from neurontools.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from neurontools.config.reader import Value

_LARGEST = 1e18  # larger numbers than any machine counts overflow where they are multiplied
_MAX_SECONDS = 100 * 365 * 86400.0
_MIN_POSITIVE_SECONDS = 1e-9
_SHOWN = 40

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Type(Generic[T_co]):
    """What a value must be.

    Args:
        expected: what a message calls it: "a whole number".
        parse: returns the value; raises ValueError where it is not one, `MismatchError` to say why.
        placeholder: stands in for a required value that is missing or wrong, so that reading goes on.
    """

    expected: str
    parse: Callable[[Value], T_co]
    placeholder: T_co


def scalar(expected: str, convert: Callable[[str], T], placeholder: T) -> Type[T]:
    """Return the type of a single value that a function of its text reads."""

    def parse(value: Value) -> T:
        if not value.is_scalar:
            raise ValueError
        return convert(value.text)

    return Type(expected, parse, placeholder)


def whole(least: int = 0, greatest: int | None = None, *, expected: str = "") -> Type[int]:
    """Return the type of a whole number in a range; `expected` is what messages call it instead."""

    def convert(text: str) -> int:
        number = int(text)
        if greatest is None:
            _check_size(number, text)
        if number < least or (greatest is not None and number > greatest):
            raise ValueError
        return number

    limit = f" of at least {least}" if greatest is None else f" from {least} to {greatest}"
    return scalar(
        expected or "a whole number" + (limit if (least, greatest) != (0, None) else ""), convert, least
    )


def number(
    least: float = 0.0, greatest: float = math.inf, *, exclusive: bool = False, expected: str = ""
) -> Type[float]:
    """Return the type of a finite number in a range, without its lower end where `exclusive`."""

    def convert(text: str) -> float:
        value = float(text)
        if greatest == math.inf:
            _check_size(value, text)
        if not least <= value <= greatest or (exclusive and value == least):
            raise ValueError
        return value

    limit = f"above {least:g}" if exclusive else f"of at least {least:g}"
    if greatest < math.inf:
        limit = f"from {least:g} to {greatest:g}"
    return scalar(expected or f"a number {limit}", convert, 1.0 if exclusive else least)


def choice(names: Iterable[T], what: str) -> Type[T | None]:
    """Return the type of one of some names; `what` is what a message calls it: "theme"."""
    known = {str(name): name for name in names}

    def convert(text: str) -> T:
        if text not in known:
            raise MismatchError(f"unknown {what} {text!r}", did_you_mean(text, known))
        return known[text]

    return scalar(f"one of {', '.join(known)}", convert, None)


def list_of(item: Type[T], expected: str, *, count: int | None = None) -> Type[list[T]]:
    """Return the type of a list, of `count` items if given; items that are wrong are noted and left out."""

    def parse(value: Value) -> list[T]:
        if value.kind != reader.LIST:
            raise ValueError
        items = value.items()
        if count is not None and len(items) != count:
            raise ValueError
        missing = object()
        read = [element.read(item, missing) for element in items]
        return [element for element in read if element is not missing]  # type: ignore[misc]

    return Type(expected, parse, [])


def record(
    make: Callable[..., T],
    expected: str,
    required: Mapping[str, tuple[str, Type[Any]]],
    optional: Mapping[str, tuple[str, Type[Any]]] | None = None,
) -> Type[T]:
    """Return the type of a mapping whose keys are the keyword arguments of a class or function.

    Args:
        make: the class or function; its defaults replace optional keys that are missing or wrong.
        expected: what a message calls the mapping: "a mapping such as {after: 5s}".
        required: by key, the field and the type of its value.
        optional: the same for keys that may be missing.
    """
    missing = object()

    def parse(value: Value) -> T:
        if value.kind != reader.MAPPING:
            raise ValueError
        section = value.section()
        fields = {field: section.require(key, wanted) for key, (field, wanted) in required.items()}
        for key, (field, wanted) in (optional or {}).items():
            fields[field] = section.read(key, wanted, missing)
        section.finish()
        return make(**{field: content for field, content in fields.items() if content is not missing})

    return Type(expected, parse, make(**{field: wanted.placeholder for field, wanted in required.values()}))


def _text(value: Value) -> str:
    if value.kind != reader.TEXT:
        raise ValueError
    return value.text


def _flag(value: Value) -> bool:
    if value.kind != reader.FLAG:
        raise ValueError
    return value.text.lower() in {"true", "yes", "on"}


def _seconds(text: str) -> float:
    try:
        float(text)
    except ValueError:
        return _parse(parse_duration, text)
    return _not_negative(text, _MAX_SECONDS, "100 years")


def _positive_seconds(text: str) -> float:
    seconds = _seconds(text)
    if seconds < _MIN_POSITIVE_SECONDS:
        raise ValueError
    return seconds


def _not_negative(text: str, greatest: float = _LARGEST, maximum: str = "") -> float:
    value = float(text)
    _check_size(value, text, greatest, maximum)
    if not value >= 0:
        raise ValueError
    return value


def _check_size(value: float, text: str, greatest: float = _LARGEST, maximum: str = "") -> None:
    if value > greatest:
        raise MismatchError(
            f"{shorten(text, _SHOWN)} is too large", f"the maximum is {maximum or f'{greatest:g}'}"
        )


def _parse(parse: Callable[[str], T], text: str) -> T:
    try:
        return parse(text)
    except UsageError as error:
        raise ValueError from error


TEXT = Type("a text", _text, "")
"""A text, not a number or true."""
WORDS = scalar("a text", str, "")
"""Any single value, as it is written."""
FLAG = Type("true or false", _flag, placeholder=False)
WHOLE = whole()
NUMBER = number()
DURATION = scalar("a duration such as 500ms, 30s, 5m or 1h30m", _seconds, 0.0)
"""Seconds; a bare number is seconds."""
POSITIVE_DURATION = scalar("a duration above 0 such as 500ms, 30s, 5m or 1h30m", _positive_seconds, 1.0)
SIZE = scalar(
    "a size such as 512 MiB, 12 GiB or a number of bytes", lambda text: float(_parse(parse_size, text)), 0.0
)
PERCENT = scalar(
    "a number of percent such as 85 or 2.5%",
    lambda text: _not_negative(text.strip().removesuffix("%")),
    0.0,
)
