"""JSON documents as nodes with lines, for the reader of configuration files."""

from __future__ import annotations

import json
import re

from neurontools.config.reader import FLAG, LIST, MAPPING, NULL, NUMBER, TEXT, FileNode

_SPACE = re.compile(r"[ \t\n\r]*")
_SCALAR = re.compile(r"[^\s,\]}]+")
_WORDS = {"null": NULL, "true": FLAG, "false": FLAG}


def parse_nodes(text: str) -> FileNode:
    """Return the root node of a JSON document.

    Raises:
        json.JSONDecodeError: it is not JSON.
        ValueError: a number is too long.
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

    def value(self) -> FileNode:
        letter = self._next()
        line = self._current_line()
        if letter == "{":
            return self._mapping(line)
        if letter == "[":
            return self._list(line)
        if letter == '"':
            return FileNode(TEXT, line, self._string())
        match = _SCALAR.match(self._text, self._at)
        assert match is not None
        self._at = match.end()
        return FileNode(_WORDS.get(match[0], NUMBER), line, match[0])

    def _mapping(self, line: int) -> FileNode:
        node = FileNode(MAPPING, line)
        self._at += 1
        while self._next() != "}":
            self._skip(",")
            self._next()
            key_line = self._current_line()
            key = self._string()
            self._next()
            self._skip(":")
            node.entries.append((key, key_line, self.value()))
        self._at += 1
        return node

    def _list(self, line: int) -> FileNode:
        node = FileNode(LIST, line)
        self._at += 1
        while self._next() != "]":
            self._skip(",")
            node.items.append(self.value())
        self._at += 1
        return node

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

    def _current_line(self) -> int:
        self._line += self._text.count("\n", self._counted, self._at)
        self._counted = self._at
        return self._line
