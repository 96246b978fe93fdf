"""Command lines of ours that a text shows: which program, which verb, which options."""

from __future__ import annotations

import argparse
import re
import shlex
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from neurontools.commands import parsing
from neurontools.commands.console import add_common_options
from neurontools.commands.help_text import complete_help
from neurontools.commands.neurontools import COMMANDS

if TYPE_CHECKING:
    from collections.abc import Iterator

PROGRAMS = {program: name for name, (_, program, _) in COMMANDS.items() if program}
PROGRAMS |= {"neuron-monitor-prometheus.py": "monitor-prometheus", "neuron-explorer": "profile"}
DOCS = Path(__file__).parents[2] / "docs"
_OPERATORS = {"|", "||", "&", "&&", ";", "|&", "(", ")", "$("}


@cache
def parser_of(command: str) -> argparse.ArgumentParser:
    """Return the parser of a sub-command of the umbrella, with what every command has."""
    parser: argparse.ArgumentParser = import_module(
        f"neurontools.commands.{COMMANDS[command][0]}"
    ).build_parser()
    add_common_options(parser)
    complete_help(parser)
    return parser


def commands_in(line: str) -> Iterator[list[str]]:
    """Yield each command of a shell line that is one of ours, as its words."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;()")
    lexer.whitespace_split = True
    lexer.commenters = "#"
    words: list[str] = []
    for word in [*lexer, ";"]:
        if word not in _OPERATORS:
            words.append(word)
            continue
        while words and re.match(r"[A-Z_]+=|sudo$|if$|then$|do$|!$", words[0]):
            words = words[1:]
        if words and (words[0] in PROGRAMS or words[0] == "neurontools"):
            yield words
        words = []


def wrong_words(words: list[str]) -> list[str]:
    """Return the verb or the options of a command that there are not."""
    program, *rest = words
    if program == "neurontools":
        if not rest or rest[0].startswith("-"):
            return [word for word in rest if word not in {"--help", "--version", "-V"}]
        if rest[0] == "help":
            topics = {"topics", "TOPIC", *COMMANDS, *(page.stem for page in DOCS.glob("*/*.md"))}
            return [word for word in rest[1:] if word not in topics]
        if rest[0] not in COMMANDS:
            return [] if rest[0].isupper() else [rest[0]]
        parser, rest = parser_of(rest[0]), rest[1:]
    else:
        parser = parser_of(PROGRAMS[program])
    return list(_wrong(parser, rest))


def _wrong(parser: argparse.ArgumentParser, words: list[str]) -> Iterator[str]:
    verbs = {name: parsing.verbs(parser)[name] for name in parsing.visible_verbs(parser)}
    own_line = any(action.nargs == argparse.REMAINDER for action in parser._actions)
    takes_value = False
    for position, word in enumerate(words):
        if word == "--" or (own_line and not word.startswith("-") and not takes_value):
            return
        if word.startswith("-") and len(word) > 1 and not word[1].isdigit():
            action = _option(parser, word)
            if action is None:
                yield word
            takes_value = action is not None and action.nargs is None and "=" not in word
        elif takes_value:
            takes_value = False
        elif verbs:
            if word == "help":
                yield from _wrong(parser, words[position + 1 :])
            elif word in verbs:
                yield from _wrong(verbs[word], words[position + 1 :])
            elif not word.isupper():
                yield word
            return


def _option(parser: argparse.ArgumentParser, word: str) -> argparse.Action | None:
    known = parsing.visible_options(parser)
    if word.startswith("--"):
        return known.get(word.partition("=")[0])
    return known.get(word) or (
        known.get(word[:2]) if all(f"-{letter}" in known for letter in word[1:2]) else None
    )
