"""Filters on entries: `state=failed`, `size>1GB`, `used>30d`, `compiler~2.16`.

An entry matches if all conditions hold. A condition is a field, an operator and values; comma-separated values match any
of them, and quotes protect blanks and commas. Text is compared without regard to case.
"""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools.base.text import printable, suggest
from neurontools.base.units import parse_age, parse_size
from neurontools.cache.fields import ALIASES, FIELDS, Field, FieldKind, find_field
from neurontools.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from neurontools.cache.entries import Entry

_NAME = re.compile(r"[A-Za-z_]+")
_OPERATOR = re.compile(r"!=|!~|<=|>=|==|[=~<>]")
_BARE = re.compile(r"""[^\s,"']+""")
_BLANKS = re.compile(r"\s*")
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_OPERATORS = {
    FieldKind.WORD: ("=", "!="),
    FieldKind.TEXT: ("=", "!=", "~", "!~"),
    FieldKind.SIZE: tuple(_COMPARE),
    FieldKind.AGE: ("<", "<=", ">", ">="),
    FieldKind.NUMBER: tuple(_COMPARE),
}
_EXAMPLE = "for example state=failed 'size>1GB' 'used>30d' compiler~2.16"


class FilterSyntaxError(UsageError):
    """A filter with a syntax error; `position` counts characters from 0."""

    has_lines = True

    def __init__(self, text: str, position: int, reason: str, remedy: str) -> None:
        caret = " " * len(printable(text[:position])) + "^"
        message = f"invalid filter at character {position + 1}: {reason}\n  {printable(text)}\n  {caret}"
        super().__init__(message, remedy)
        self.position = position


@dataclass(frozen=True, slots=True)
class FilterCondition:
    """One condition; its values are text, bytes, seconds or numbers, depending on the field."""

    field: Field
    operator: str
    values: tuple[str | float, ...]

    def matches(self, entry: Entry, now: float) -> bool:
        """Return whether an entry matches at a time (Unix seconds)."""
        value = self.field.value(entry, now)
        if self.operator.startswith("!"):
            return not any(self._matches_value(value, wanted) for wanted in self.values)
        return any(self._matches_value(value, wanted) for wanted in self.values)

    def _matches_value(self, value: str | float, wanted: str | float) -> bool:
        if isinstance(value, str):
            text, sought = value.casefold(), str(wanted).casefold()
            return sought in text if self.operator.endswith("~") else text == sought
        positive = "=" if self.operator == "!=" else self.operator
        return _COMPARE[positive](value, float(wanted))


@dataclass(frozen=True, slots=True)
class EntryFilter:
    """Conditions that must all hold; without conditions, every entry matches."""

    conditions: tuple[FilterCondition, ...] = ()

    @property
    def needs_details(self) -> bool:
        """Whether a field is read from the content of files."""
        return any(condition.field.details for condition in self.conditions)

    def matches(self, entry: Entry, now: float) -> bool:
        """Return whether an entry matches every condition at a time (Unix seconds)."""
        return all(condition.matches(entry, now) for condition in self.conditions)


def parse_filters(texts: Iterable[str]) -> EntryFilter:
    """Return the filter with the conditions of all texts.

    Raises:
        FilterSyntaxError: a text is invalid; the message points at the character.
    """
    return EntryFilter(tuple(condition for text in texts for condition in _Parser(text).conditions()))


class _Parser:
    """Reads one text from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def conditions(self) -> list[FilterCondition]:
        found = []
        self._skip_blanks()
        if self._is_at_end():
            raise self._error("the filter is empty", _EXAMPLE)
        while not self._is_at_end():
            found.append(self._condition())
            before = self._at
            self._skip_blanks()
            if self._at == before and not self._is_at_end():
                raise self._error("expected a blank or the end of the filter", _EXAMPLE)
        return found

    def _condition(self) -> FilterCondition:
        field = self._field()
        self._skip_blanks()
        sign = self._operator(field)
        self._skip_blanks()
        values = [self._value(field)]
        while self._text[self._at : self._at + 1] == ",":
            self._at += 1
            values.append(self._value(field))
        return FilterCondition(field, sign, tuple(values))

    def _field(self) -> Field:
        start = self._at
        name = self._take(_NAME)
        if not name:
            raise self._error("expected the name of a field", _field_names())
        field = find_field(name.lower())
        if field is None:
            near = suggest(name.lower(), [*FIELDS, *ALIASES])
            remedy = f"did you mean {near}?" if near else _field_names()
            raise self._error(f"unknown field {name!r}", remedy, start)
        return field

    def _operator(self, field: Field) -> str:
        start = self._at
        sign = self._take(_OPERATOR).replace("==", "=")
        allowed = _OPERATORS[field.kind]
        if sign in allowed:
            return sign
        reason = (
            f"{field.name} does not support {sign!r}" if sign else f"expected an operator after {field.name}"
        )
        raise self._error(reason, f"operators of {field.name}: {' '.join(allowed)}", start)

    def _value(self, field: Field) -> str | float:
        start = self._at
        text = self._quoted() if self._text[start : start + 1] in {'"', "'"} else self._take(_BARE)
        if not text and self._at == start:
            raise self._error(f"expected a value for {field.name}", _EXAMPLE)
        try:
            return _convert_value(field, text)
        except UsageError as error:
            raise self._error(error.message, error.remedy, start) from error

    def _quoted(self) -> str:
        quote, start = self._text[self._at], self._at
        end = self._text.find(quote, start + 1)
        if end < 0:
            raise self._error("unclosed quote", f"add {quote} after the value")
        self._at = end + 1
        return self._text[start + 1 : end]

    def _take(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self._text, self._at)
        if found is None:
            return ""
        self._at = found.end()
        return found[0]

    def _skip_blanks(self) -> None:
        self._take(_BLANKS)

    def _is_at_end(self) -> bool:
        return self._at >= len(self._text)

    def _error(self, reason: str, remedy: str, position: int | None = None) -> FilterSyntaxError:
        return FilterSyntaxError(self._text, self._at if position is None else position, reason, remedy)


def _field_names() -> str:
    return f"fields: {', '.join(FIELDS)}"


def _convert_value(field: Field, text: str) -> str | float:
    match field.kind:
        case FieldKind.SIZE:
            return parse_size(text)
        case FieldKind.AGE:
            return parse_age(text)
        case FieldKind.NUMBER:
            if not text.isascii() or not text.isdigit():
                raise UsageError(f"invalid number {text!r}", "use for example 0 or 12")
            return float(text)
        case FieldKind.WORD if text.lower() not in field.words:
            raise UsageError(f"unknown {field.name} {text!r}", f"choose from {', '.join(field.words)}")
        case FieldKind.WORD:
            return text.lower()
        case _:
            return text
