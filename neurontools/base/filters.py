"""The language of filters: `state=failed`, `size>1GB`, `used>30d`, `command~'python train.py'`.

A condition is a field, an operator and values; comma-separated values match any of them, and quotes protect blanks and
commas. Text is compared without regard to case. Each program has its own table of fields. neuron-ls reads filters
through this module, so it imports nothing costly.
"""

from __future__ import annotations

import operator

from neurontools.base.text import printable, suggest
from neurontools.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    Value = str | int | float

WORD, TEXT, SIZE, AGE, COUNT, NUMBER, OWNER = "word", "text", "size", "age", "count", "number", "owner"

_ORDERED = ("=", "!=", "<", "<=", ">", ">=")
OPERATORS = {
    WORD: ("=", "!="),
    TEXT: ("=", "!=", "~", "!~"),
    SIZE: _ORDERED,
    AGE: ("<", "<=", ">", ">="),
    COUNT: _ORDERED,
    NUMBER: _ORDERED,
    OWNER: ("=", "!="),
}
"""The operators of each kind of field; a COUNT has digits alone, a NUMBER may be negative."""

_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "~": operator.contains,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_SIGNS = ("!=", "!~", "<=", ">=", "==", "=", "~", "<", ">")
_QUOTES = ("'", '"')


class FilterError(UsageError):
    """A filter is invalid. `position` counts characters from 0; the message points at it, the text is one line."""

    has_lines = True

    def __init__(self, text: str, position: int, reason: str, remedy: str) -> None:
        caret = " " * len(printable(text[:position])) + "^"
        message = f"invalid filter at character {position + 1}: {reason}\n  {printable(text)}\n  {caret}"
        super().__init__(message, remedy)
        self.position = position
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.reason}; {self.remedy}"


class FilterCondition:
    """One condition; its values are text, bytes, seconds, uids or numbers, depending on the field."""

    __slots__ = ("field", "operator", "values")

    def __init__(self, field: str, operator: str, values: tuple[Value, ...]) -> None:
        self.field = field
        self.operator = operator
        self.values = values

    def __str__(self) -> str:
        return f"{self.field}{self.operator}{','.join(map(_quote, self.values))}"

    def matches(self, *actual: Value) -> bool:
        """Return whether it holds for the values of its field: one, or several of which any may match."""
        sign = self.operator.removeprefix("!")
        return (sign != self.operator) != any(
            _compare(sign, left, right) for left in actual for right in self.values
        )


def _quote(value: Value) -> str:
    text = str(value)
    if text and all(map(_is_bare, text)):
        return text
    quote = next((quote for quote in _QUOTES if quote not in text), "")
    return f"{quote}{text}{quote}"


def _compare(sign: str, left: Value, right: Value) -> bool:
    if isinstance(left, str) or isinstance(right, str):
        left, right = str(left).casefold(), str(right).casefold()
    return _COMPARE[sign](left, right)


def looks_like_condition(word: str) -> bool:
    """Return whether a word has an operator of filters."""
    return any(sign in word for sign in _SIGNS)


class FilterParser:
    """Reads filters over a table of fields.

    Args:
        kinds: the kind of each field.
        words: all values of each WORD.
        example: filters that an error shows.
        aliases: other names of fields.
    """

    def __init__(
        self,
        kinds: Mapping[str, str],
        words: Mapping[str, tuple[str, ...]],
        example: str,
        aliases: Mapping[str, str] | None = None,
    ) -> None:
        self.kinds = kinds
        self.words = words
        self.example = f"for example {example}"
        self.aliases = aliases or {}

    def parse(self, text: str, *, is_single: bool = False) -> list[FilterCondition]:
        """Return the conditions of a text.

        Args:
            text: conditions that blanks separate.
            is_single: whether the text is one condition, whose values may have blanks without quotes.

        Raises:
            FilterError: the text is invalid.
        """
        scan = _Scan(self, text, is_single)
        conditions = [scan.condition()]
        while not scan.is_at_end():
            conditions.append(scan.condition())
        return conditions


class _Scan:
    """Reads one text from left to right."""

    def __init__(self, parser: FilterParser, text: str, is_single: bool) -> None:
        self._parser = parser
        self._text = text
        self._at = 0
        self._is_single = is_single
        self._take(str.isspace)

    def is_at_end(self) -> bool:
        return self._at >= len(self._text)

    def condition(self) -> FilterCondition:
        if self.is_at_end():
            raise self._error("the filter is empty")
        field = self._field()
        sign = self._operator(field)
        values = [self._value(field)]
        while self._text.startswith(",", self._at):
            self._at += 1
            values.append(self._value(field))
        if (not self._take(str.isspace) or self._is_single) and not self.is_at_end():
            raise self._error("expected a comma, a blank or the end of the filter")
        return FilterCondition(field, sign, tuple(values))

    def _field(self) -> str:
        start, fields = self._at, f"fields: {', '.join(self._parser.kinds)}"
        name = self._take(lambda letter: letter.isalnum() or letter in "_-")
        field = self._parser.aliases.get(name.lower(), name.lower())
        if not name:
            raise self._error("expected the name of a field", fields)
        if field not in self._parser.kinds:
            near = suggest(field, [*self._parser.kinds, *self._parser.aliases])
            raise self._error(f"unknown field {name!r}", f"did you mean {near}?" if near else fields, start)
        self._take(str.isspace)
        return field

    def _operator(self, field: str) -> str:
        sign = next((sign for sign in _SIGNS if self._text.startswith(sign, self._at)), "")
        allowed = OPERATORS[self._parser.kinds[field]]
        if sign.replace("==", "=") not in allowed:
            reason = f"{field} does not support {sign!r}" if sign else f"expected an operator after {field}"
            raise self._error(reason, f"operators of {field}: {' '.join(allowed)}")
        self._at += len(sign)
        return sign.replace("==", "=")

    def _value(self, field: str) -> Value:
        self._take(str.isspace)
        start, kind = self._at, self._parser.kinds[field]
        if self._text.startswith(_QUOTES, start):
            text = self._quoted()
        else:
            text = self._take(lambda letter: letter != "," if self._is_single else _is_bare(letter)).strip()
            if not text and (kind != TEXT or not self._is_single):
                raise self._error(f"expected a value for {field}")
        try:
            return _convert(kind, field, text, self._parser.words)
        except UsageError as error:
            raise self._error(error.message, error.remedy, start) from error

    def _quoted(self) -> str:
        quote, start = self._text[self._at], self._at + 1
        end = self._text.find(quote, start)
        if end < 0:
            raise self._error("unclosed quote", f"add {quote} after the value")
        self._at = end + 1
        return self._text[start:end]

    def _take(self, is_part: Callable[[str], bool]) -> str:
        start = self._at
        while not self.is_at_end() and is_part(self._text[self._at]):
            self._at += 1
        return self._text[start : self._at]

    def _error(self, reason: str, remedy: str = "", position: int | None = None) -> FilterError:
        at = self._at if position is None else position
        return FilterError(self._text, at, reason, remedy or self._parser.example)


def _is_bare(letter: str) -> bool:
    return letter not in {",", *_QUOTES} and not letter.isspace()


def _convert(kind: str, field: str, text: str, words: Mapping[str, tuple[str, ...]]) -> Value:
    if kind == WORD:
        if text.lower() not in words[field]:
            raise UsageError(f"unknown {field} {text!r}", f"choose from {', '.join(words[field])}")
        return text.lower()
    if kind in {COUNT, NUMBER}:
        try:
            if kind == NUMBER or (text.isascii() and text.isdigit()):
                return int(text)
        except ValueError:
            pass
        raise UsageError(f"invalid number {text!r}", "use for example 0 or 12")
    if kind == OWNER:
        return _uid(text)
    if kind == TEXT:
        return text
    from neurontools.base.units import parse_age, parse_size

    return parse_size(text) if kind == SIZE else parse_age(text)


def _uid(text: str) -> int:
    if text.isascii() and text.isdigit():
        return int(text)
    if text == "me":
        import os

        return os.getuid()
    import pwd

    try:
        return pwd.getpwnam(text).pw_uid
    except KeyError:
        raise UsageError(f"unknown user {text!r}", "use a user name, a uid or me") from None
