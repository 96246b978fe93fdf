"""JSON whose values know the line on which they stand, for errors about a file that a person wrote."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_SPACE = re.compile(r"[ \t\n\r]*")
_SCALAR = re.compile(r"[^\s,\]}]+")


@dataclass(frozen=True, slots=True)
class Located:
    """A JSON value and the line (from 1) on which it begins. Lists and objects hold located values."""

    value: str | float | bool | list[Located] | Mapping[str, Located] | None
    line: int


def parse_located(text: str) -> Located:
    """Return the value of a JSON document.

    Raises:
        json.JSONDecodeError: it is none.
        RecursionError: it is nested too deeply.
    """
    json.loads(text)  # from here on the text is known to be well formed
    return _Parser(text).value()


class _Parser:
    """Walks over a well-formed document once."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._decoder = json.JSONDecoder()
        self._at = 0
        self._counted = 0
        self._line = 1

    def value(self) -> Located:
        letter = self._next()
        line = self._line_here()
        if letter == "{":
            return Located(self._members(), line)
        if letter == "[":
            return Located(self._items(), line)
        if letter == '"':
            return Located(self._string(), line)
        match = _SCALAR.match(self._text, self._at)
        assert match is not None
        self._at = match.end()
        scalar: float | bool | None = json.loads(match[0])
        return Located(scalar, line)

    def _members(self) -> dict[str, Located]:
        members = {}
        self._at += 1
        while self._next() != "}":
            self._skip(",")
            self._next()
            key = self._string()
            self._next()
            self._skip(":")
            members[key] = self.value()
        self._at += 1
        return members

    def _items(self) -> list[Located]:
        items = []
        self._at += 1
        while self._next() != "]":
            self._skip(",")
            items.append(self.value())
        self._at += 1
        return items

    def _string(self) -> str:
        string, self._at = self._decoder.raw_decode(self._text, self._at)
        return str(string)

    def _skip(self, letter: str) -> None:
        if self._text[self._at] == letter:
            self._at += 1

    def _next(self) -> str:
        match = _SPACE.match(self._text, self._at)
        assert match is not None
        self._at = match.end()
        return self._text[self._at]

    def _line_here(self) -> int:
        self._line += self._text.count("\n", self._counted, self._at)
        self._counted = self._at
        return self._line
