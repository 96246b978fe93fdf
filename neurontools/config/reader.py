"""Reader of YAML and JSON files: values that know their line and key, and all mistakes of a file at once.

`read_yaml` and `read_json` return the root `Value` of a file. A reading method that finds a mistake notes a `Problem`
and returns the default, so one pass finds every mistake. `root.problems` holds them at the end. The types of scalars
are in `neurontools.config.types`. neuron-ls reads config.yaml through this module, so it imports nothing costly.
"""

from __future__ import annotations

from neurontools.base.text import printable
from neurontools.errors import NeuronToolsError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from json import JSONDecoder
    from typing import Any, Protocol, TypeVar

    from yaml import SafeLoader
    from yaml.nodes import Node as YamlNode

    T = TypeVar("T")
    T_co = TypeVar("T_co", covariant=True)
    Default = TypeVar("Default")

    class ValueType(Protocol[T_co]):
        """A type of values: `neurontools.config.types.Type`."""

        @property
        def expected(self) -> str:
            """What a message calls it."""

        @property
        def parse(self) -> Callable[[Value], T_co]:
            """Returns the value; raises ValueError where it is not one."""

        @property
        def placeholder(self) -> T_co:
            """Stands in for a missing value."""


NULL, TEXT, NUMBER, FLAG, LIST, MAPPING = "null", "text", "number", "flag", "list", "mapping"
_SPACE = " \t\n\r"
_SCALAR_END = ",]}" + _SPACE
_WORDS = {"null": NULL, "true": FLAG, "false": FLAG}
_TAGS = {
    "tag:yaml.org,2002:null": NULL,
    "tag:yaml.org,2002:int": NUMBER,
    "tag:yaml.org,2002:float": NUMBER,
    "tag:yaml.org,2002:bool": FLAG,
}
_MERGE_TAG = "tag:yaml.org,2002:merge"
_MAX_SHOWN = 50
_MAX_DEPTH = 100


class FileNode:
    """A part of a file: what it is, its line, a scalar's text, a list's nodes, a mapping's (key, line, node)."""

    __slots__ = ("entries", "items", "kind", "line", "text")

    def __init__(self, kind: str, line: int, text: str = "") -> None:
        self.kind = kind
        self.line = line
        self.text = text
        self.items: list[FileNode] = []
        self.entries: list[tuple[str, int, FileNode]] = []


class Problem:
    """A mistake in a file.

    Args:
        line: from 1; 0 where the whole file is meant.
        key: the dotted path of the value, "" for the whole file.
        message: what is wrong.
        hint: what to write instead, or "".
    """

    __slots__ = ("hint", "key", "line", "message")

    def __init__(self, line: int, key: str, message: str, hint: str = "") -> None:
        self.line = line
        self.key = key
        self.message = message
        self.hint = hint

    @property
    def text(self) -> str:
        """Key, message and hint in one line."""
        text = f"{self.key}: {self.message}" if self.key else self.message
        return f"{text}; {self.hint}" if self.hint else text

    def located(self, file: str) -> str:
        """Return it in one line, with the file's name and the line."""
        place = f"{file}:{self.line}" if self.line else file
        return printable(f"{place}: {self.text}")


class FormatError(Exception):
    """A text is not YAML or JSON. `problem` says where and why, `column` counts from 1 (0: unknown)."""

    def __init__(self, line: int, message: str, column: int = 0) -> None:
        super().__init__(message)
        self.problem = Problem(line, "", message)
        self.column = column


class MismatchError(ValueError):
    """A value is not of its type, for a reason of its own."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class FileError(NeuronToolsError):
    """A file has mistakes. `problems` are all of them, by line."""

    has_lines = True

    def __init__(self, file: str, problems: Iterable[Problem], remedy: str = "") -> None:
        self.file = file
        self.problems = in_order(problems)
        lines = [problem.located(file) for problem in self.problems]
        head = "" if len(lines) == 1 else f"{printable(file)} has {len(lines)} mistakes\n"
        super().__init__(head + "\n".join(lines), remedy)


def in_order(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """Return problems by line, each once."""
    unique = {(problem.line, problem.key, problem.message): problem for problem in problems}
    return tuple(unique[key] for key in sorted(unique))


class Value:
    """A value of a file with its dotted key, and the list that takes the mistakes of the file."""

    __slots__ = ("_node", "key", "key_line", "problems")

    def __init__(self, node: FileNode, key: str, problems: list[Problem], key_line: int = 0) -> None:
        self._node = node
        self.key_line = key_line or node.line
        self.key = key
        self.problems = problems

    @property
    def line(self) -> int:
        """Its line, from 1."""
        return self._node.line

    @property
    def kind(self) -> str:
        """What it is: NULL, TEXT, NUMBER, FLAG, LIST or MAPPING."""
        return self._node.kind

    @property
    def text(self) -> str:
        """A scalar as it is written, without quotes; "" for a list or a mapping."""
        return self._node.text

    @property
    def is_scalar(self) -> bool:
        """Whether it is a single value other than null."""
        return self._node.kind in {TEXT, NUMBER, FLAG}

    def fail(self, message: str, hint: str = "") -> None:
        """Note a mistake of this value."""
        self.problems.append(Problem(self.line, self.key, message, hint))

    def fail_key(self, message: str, hint: str = "") -> None:
        """Note a mistake of this value's key."""
        self.problems.append(Problem(self.key_line, self.key, message, hint))

    def fail_expected(self, expected: str) -> None:
        """Note that the value is of another kind."""
        self.fail(f"expected {expected}, found {self.describe()}")

    def read(self, wanted: ValueType[T], default: Default) -> T | Default:
        """Return the value as a type, the default after noting why it is not one."""
        try:
            return wanted.parse(self)
        except MismatchError as error:
            self.fail(error.message, error.hint)
        except ValueError:
            self.fail_expected(wanted.expected)
        return default

    def items(self, expected: str = "a list") -> list[Value]:
        """Return the items of a list; none after noting that it is not one."""
        if self.kind != LIST:
            self.fail_expected(expected)
        return [
            Value(node, f"{self.key}[{index}]", self.problems) for index, node in enumerate(self._node.items)
        ]

    def section(self, expected: str = "a mapping") -> Section:
        """Return the keys and values of a mapping; none after noting that it is not one."""
        if self.kind != MAPPING:
            self.fail_expected(expected)
        values: dict[str, Value] = {}
        for name, line, node in self._node.entries:
            value = Value(node, f"{self.key}.{name}" if self.key else name, self.problems, line)
            if name in values:
                value.fail_key(
                    f"duplicate key, first in line {values[name].key_line}", "the last one is used"
                )
            values[name] = value
        return Section(self, values)

    def describe(self) -> str:
        """Return the value as a message shows it."""
        if self.kind == LIST:
            return f"a list of {len(self._node.items)}"
        if self.kind != TEXT:
            return {MAPPING: "a mapping", NULL: "nothing"}.get(self.kind) or self.text
        text = repr(self.text)
        return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 4]}...'"


class Section:
    """A mapping that is read key by key. An explicit null is the same as a missing key.

    `finish` notes the keys that were not read: misspellings.
    """

    __slots__ = ("_known", "_values", "value")

    def __init__(self, value: Value, values: dict[str, Value]) -> None:
        self.value = value
        self._values = values
        self._known: dict[str, None] = {}

    def __iter__(self) -> Iterator[tuple[str, Value]]:
        """Iterate over all keys with their values: for mappings whose keys are free."""
        self._known.update(dict.fromkeys(self._values))
        return iter(self._values.items())

    def merged(self, overrides: Section) -> Section:
        """Return this mapping with the values of another one over its own."""
        return Section(overrides.value, {**self._values, **overrides._values})

    def without(self, *names: str) -> Section:
        """Return the mapping without some keys, which stay known."""
        rest = Section(self.value, {key: value for key, value in self._values.items() if key not in names})
        rest._known.update(dict.fromkeys(names))
        return rest

    def has(self, name: str) -> bool:
        """Return whether a key exists, even if its value is null."""
        return name in self._values

    def get(self, name: str) -> Value | None:
        """Return the value of a key, None where it is missing."""
        self._known[name] = None
        value = self._values.get(name)
        return None if value is None or value.kind == NULL else value

    def need(self, name: str) -> Value | None:
        """Return the value of a key, None after noting that it is missing."""
        value = self.get(name)
        if value is None:
            self.value.fail(f"{name!r} is missing")
        return value

    def read(self, name: str, wanted: ValueType[T], default: Default) -> T | Default:
        """Return the value of a key as a type; the default where it is missing, or wrong, which is noted."""
        value = self.get(name)
        return default if value is None else value.read(wanted, default)

    def require(self, name: str, wanted: ValueType[T]) -> T:
        """Return the value of a key as a type; the type's placeholder after noting that it is missing or wrong."""
        value = self.need(name)
        return wanted.placeholder if value is None else value.read(wanted, wanted.placeholder)

    def section(self, name: str, expected: str = "a mapping") -> Section | None:
        """Return the mapping under a key, None where it is missing."""
        value = self.get(name)
        return None if value is None else value.section(expected)

    def items(self, name: str, expected: str = "a list") -> list[Value]:
        """Return the items of the list under a key, none where it is missing."""
        value = self.get(name)
        return [] if value is None else value.items(expected)

    def fail(self, name: str, message: str, hint: str = "") -> None:
        """Note a mistake of a key's value, or of the whole mapping where the key is missing."""
        self._values.get(name, self.value).fail(message, hint)

    def finish(self) -> None:
        """Note the keys that were not read."""
        for name, value in self._values.items():
            if name not in self._known:
                from neurontools.base.text import did_you_mean

                value.fail_key("unknown key", did_you_mean(name, self._known))


def read_yaml(text: str | bytes, *, trusted: bool = False) -> Value:
    """Return the content of a YAML document; an empty one is null.

    Args:
        text: the document.
        trusted: whether it is a file of ours: read by the faster parser in C, which deep nesting crashes.

    Raises:
        FormatError: it is not YAML, or more than one document.
    """
    import yaml

    try:
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader) if trusted else _bounded_loader()
        root = yaml.compose(text, Loader=loader)
        node = FileNode(NULL, 1) if root is None else _convert(root, {})
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (0, 0)
        raise FormatError(line, f"not YAML: {error.problem or error.context}", column) from error
    except yaml.YAMLError as error:
        raise FormatError(0, f"not YAML: {str(error).splitlines()[0]}") from error
    except UnicodeDecodeError as error:
        raise FormatError(0, f"not UTF-8 text: byte {error.start}") from error
    except (ValueError, OverflowError) as error:
        raise FormatError(0, "not YAML: not a character") from error
    return Value(node, "", [])


def _bounded_loader() -> type[SafeLoader]:
    """Return the parser in Python, which reads nested text in quadratic time, with a limit."""
    import yaml

    class BoundedLoader(yaml.SafeLoader):
        """Composes at most `_MAX_DEPTH` levels."""

        depth = 0

        def compose_node(self, parent: YamlNode | None, index: Any) -> YamlNode | None:
            """Compose a node and its content."""
            if self.depth == _MAX_DEPTH:
                raise yaml.YAMLError("nested too deeply")
            self.depth += 1
            try:
                return super().compose_node(parent, index)
            finally:
                self.depth -= 1

    return BoundedLoader


def _convert(node: YamlNode, done: dict[YamlNode, FileNode]) -> FileNode:
    # A node with several aliases is converted once, so a small file cannot become a large tree.
    import yaml

    if node in done:
        return done[node]
    line = node.start_mark.line + 1
    if isinstance(node, yaml.ScalarNode):
        _check_text(node.value, line)
        converted = done[node] = FileNode(_TAGS.get(node.tag, TEXT), line, node.value)
    elif isinstance(node, yaml.SequenceNode):
        converted = done[node] = FileNode(LIST, line)
        converted.items += [_convert(item, done) for item in node.value]
    else:
        converted = done[node] = FileNode(MAPPING, line)
        merged: dict[str, tuple[str, int, FileNode]] = {}
        for key, value in node.value:
            if key.tag == _MERGE_TAG:
                parts = value.value if isinstance(value, yaml.SequenceNode) else [value]
                for part in reversed(parts):
                    merged.update({entry[0]: entry for entry in _convert(part, done).entries})
            else:
                name = key.value if isinstance(key, yaml.ScalarNode) else "?"
                _check_text(name, key.start_mark.line + 1)
                converted.entries.append((name, key.start_mark.line + 1, _convert(value, done)))
        own = {name for name, _, _ in converted.entries}
        converted.entries[:0] = [entry for name, entry in merged.items() if name not in own]
    return converted


def _check_text(text: str, line: int) -> None:
    from neurontools.base.text import is_plain

    if not is_plain(text):
        raise FormatError(line, "a text has NUL or a lone surrogate")


def read_json(text: str) -> Value:
    """Return the content of a JSON document.

    Raises:
        FormatError: it is not JSON.
    """
    import json

    try:
        return Value(parse_json(text), "", [])
    except json.JSONDecodeError as error:
        raise FormatError(error.lineno, f"not JSON: {error.msg}", error.colno) from error
    except (ValueError, RecursionError) as error:
        raise FormatError(0, "not JSON: nested too deeply, or a number is too long") from error


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
        _check_text(string, self._current_line())
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
