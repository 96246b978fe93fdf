"""What is wrong with a scenario file: all of it, each with its line and key."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

from neurontools.errors import NeuronToolsError

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One thing that is wrong. `line` counts from 1; `key` is the dotted path of the value, "" for the whole file."""

    line: int
    key: str
    text: str

    def __str__(self) -> str:
        return f"{self.key}: {self.text}" if self.key else self.text


class ScenarioError(NeuronToolsError):
    """A scenario can't be played; `problems` are all that was found, by line."""

    def __init__(self, file: str, problems: Iterable[Problem]) -> None:
        self.file = file
        self.problems = tuple(sorted(set(problems)))
        lines = [f"{file}:{problem.line}: {problem}" for problem in self.problems]
        head = "" if len(lines) == 1 else f"{file} has {len(lines)} mistakes\n"
        super().__init__(head + "\n".join(lines), "docs/reference/scenarios.md describes every key")


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return the words that end a message about an unknown name: what was meant, or what there is."""
    names = sorted(str(name) for name in known)
    near = get_close_matches(word, names, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known are {', '.join(names)}"
