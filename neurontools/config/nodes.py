"""The parts of a configuration file with their lines, and JSON documents as such parts.

neuron-ls loads this module, so it imports nothing costly.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from json import JSONDecoder

NULL, TEXT, NUMBER, FLAG, LIST, MAPPING = "null", "text", "number", "flag", "list", "mapping"
_SPACE = " \t\n\r"
_SCALAR_END = ",]}" + _SPACE
_WORDS = {"null": NULL, "true": FLAG, "false": FLAG}


class FileNode:
    """A part of a file: what it is, its line, a scalar's text, a list's nodes, a mapping's (key, line, node)."""

    __slots__ = ("entries", "items", "kind", "line", "text")

    def __init__(self, kind: str, line: int, text: str = "") -> None:
        self.kind = kind
        self.line = line
        self.text = text
        self.items: list[FileNode] = []
        self.entries: list[tuple[str, int, FileNode]] = []


def parse_json(text: str) -> FileNode:
    """Return the root node of a JSON document.

    Raises:
        json.JSONDecodeError: it is not JSON.
        ValueError: a number is too long.
        RecursionError: it is nested too deeply.
    """
    import json

    json.loads(text)  # from here on the text is known to be well formed
    return _Parser(text, json.JSONDecoder()).value()


class _Parser:
    """Walks over a well-formed document once."""

    def __init__(self, text: str, decoder: JSONDecoder) -> None:
        self._text = text
        self._decoder = decoder
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
        begin = self._at
        while self._at < len(self._text) and self._text[self._at] not in _SCALAR_END:
            self._at += 1
        word = self._text[begin : self._at]
        return FileNode(_WORDS.get(word, NUMBER), line, word)

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
        while self._text[self._at] in _SPACE:
            self._at += 1
        return self._text[self._at]

    def _current_line(self) -> int:
        self._line += self._text.count("\n", self._counted, self._at)
        self._counted = self._at
        return self._line
