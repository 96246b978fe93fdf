"""Typed reading of YAML with line numbers: what is wrong is noted and a stand-in returned, so that all is found at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import yaml
from yaml.nodes import MappingNode, ScalarNode, SequenceNode

from neurontools.scenario.problems import Problem, ScenarioError, suggestion

if TYPE_CHECKING:
    from collections.abc import Callable

    from yaml.nodes import Node

T = TypeVar("T")
Default = TypeVar("Default")

_NULL = "tag:yaml.org,2002:null"


@dataclass(frozen=True, slots=True)
class Item:
    """A value of the file: its place, and the list that takes what is wrong with it."""

    node: Node
    key: str
    problems: list[Problem]

    @property
    def line(self) -> int:
        """Its line, from 1."""
        return int(self.node.start_mark.line) + 1

    @property
    def is_scalar(self) -> bool:
        """Whether it is a single value."""
        return isinstance(self.node, ScalarNode)

    @property
    def is_list(self) -> bool:
        """Whether it is a list."""
        return isinstance(self.node, SequenceNode)

    def wrong(self, text: str) -> None:
        """Note what is wrong with it."""
        self.problems.append(Problem(self.line, self.key, text))

    def scalar(self, convert: Callable[[str], T], expected: str, default: Default) -> T | Default:
        """Return a single value, or the default after noting that it is not what is expected."""
        if self.is_scalar and self.node.tag != _NULL:
            try:
                return convert(self.node.value)
            except ValueError:
                pass
        self.wrong(f"expected {expected}, found {_shown(self.node)}")
        return default

    def items(self, expected: str) -> list[Item]:
        """Return the items of a list."""
        if not self.is_list:
            self.wrong(f"expected {expected}, found {_shown(self.node)}")
            return []
        return [
            Item(node, f"{self.key}[{index}]", self.problems) for index, node in enumerate(self.node.value)
        ]

    def section(self, expected: str) -> Section:
        """Return its keys and values, none of them after noting that it has none."""
        if not isinstance(self.node, MappingNode):
            self.wrong(f"expected {expected}, found {_shown(self.node)}")
            return Section(self, {})
        values: dict[str, Item] = {}
        for key_node, node in self.node.value:
            name = str(key_node.value)
            item = Item(node, f"{self.key}.{name}" if self.key else name, self.problems)
            if name in values:
                line = int(key_node.start_mark.line) + 1
                self.problems.append(
                    Problem(line, item.key, f"is there twice, first in line {values[name].line}")
                )
            values[name] = item
        return Section(self, values)


class Section:
    """A mapping that is read key by key; `finish` notes the keys that nobody asked for."""

    def __init__(self, item: Item, values: dict[str, Item]) -> None:
        self.item = item
        self._values = values
        self._asked: set[str] = set()

    def merged(self, other: Section) -> Section:
        """Return this mapping with another one's values over its own."""
        return Section(other.item, {**self._values, **other._values})

    def without(self, *names: str) -> Section:
        """Return the mapping without some keys, which stay known."""
        rest = Section(self.item, {key: value for key, value in self._values.items() if key not in names})
        rest._asked |= set(names)
        return rest

    def all(self) -> dict[str, Item]:
        """Return every key with its value: for mappings whose keys are not given."""
        self._asked |= set(self._values)
        return dict(self._values)

    def get(self, name: str) -> Item | None:
        """Return the value of a key, None where it is not there."""
        self._asked.add(name)
        return self._values.get(name)

    def need(self, name: str) -> Item | None:
        """Return the value of a key, None after noting that it is missing."""
        found = self.get(name)
        if found is None:
            self.item.wrong(f"{name!r} is missing")
        return found

    def scalar(self, name: str, convert: Callable[[str], T], expected: str, default: T) -> T:
        """Return a single value, the default where the key is not there."""
        found = self.get(name)
        return default if found is None else found.scalar(convert, expected, default)

    def finish(self) -> None:
        """Note the keys that nobody asked for: misspellings."""
        for name, value in self._values.items():
            if name not in self._asked:
                value.wrong(f"unknown key; {suggestion(name, self._asked)}")


def read_yaml(file: str, text: str) -> Item:
    """Return the content of a YAML file.

    Raises:
        ScenarioError: it is no YAML, empty, or more than one document.
    """
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = 1 if mark is None else mark.line + 1
        raise ScenarioError(file, [Problem(line, "", f"no YAML: {error.problem or error}")]) from error
    except yaml.YAMLError as error:
        what = " ".join(str(error).split())
        raise ScenarioError(file, [Problem(1, "", f"no YAML: {what}")]) from error
    if node is None:
        raise ScenarioError(file, [Problem(1, "", "the file is empty")])
    return Item(node, "", [])


def _shown(node: Node) -> str:
    if isinstance(node, MappingNode):
        return "a mapping"
    if isinstance(node, SequenceNode):
        return f"a list of {len(node.value)}"
    if node.tag == _NULL:
        return "nothing"
    text = repr(str(node.value))
    return text if len(text) <= 50 else text[:46] + "...'"
