"""What a command says about a command line that it cannot read: one line, and what was probably meant."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from neurontools.commands.help_text import family, verbs
from neurontools.errors import UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Sequence

_CHOICE = re.compile(
    r"argument (?P<argument>.+?): invalid choice: (?P<value>.+?) \(choose from (?P<known>.*)\)$"
)
_VERBS = ("COMMAND", "VERB")
# A letter too many, too few, wrong or elsewhere; not another word that has some of the letters.
_NEAR = 0.7


def parse(
    parser: argparse.ArgumentParser, words: Sequence[str], base: argparse.Namespace | None = None
) -> argparse.Namespace:
    """Parse a command line.

    Args:
        parser: the command's.
        words: what follows the command's name.
        base: where values are put, over those that are there.

    Raises:
        UsageError: it makes no sense; the hint names the nearest command, option or value.
    """
    for each in family(parser):
        each.error = partial(_refuse, each)  # type: ignore[method-assign]
    found, unknown = parser.parse_known_args(words, base)
    if unknown:
        raise _unknown(_parser_of(parser, words), unknown)
    return found


def _unknown(parser: argparse.ArgumentParser, words: Sequence[str]) -> UsageError:
    option = next((word.partition("=")[0] for word in words if word.startswith("-")), "")
    known = [name for action in parser._actions for name in action.option_strings]  # noqa: SLF001
    return UsageError(f"unrecognized arguments: {' '.join(words)}", _near(option, known) or _more(parser))


def _parser_of(parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.ArgumentParser:
    """Return the parser of the verb that a command line names, which knows the options that may follow."""
    for position, word in enumerate(words):
        if word in verbs(parser):
            return _parser_of(verbs(parser)[word], words[position + 1 :])
    return parser


def _refuse(parser: argparse.ArgumentParser, message: str) -> NoReturn:
    """Take the place of argparse's `error`, which prints the whole usage first."""
    if choice := _CHOICE.match(message):
        value = choice["value"].strip("'\"")
        known = [word.strip("'\" ") for word in choice["known"].split(",")]
        if choice["argument"] in _VERBS:
            message = f"unknown command {value!r}"
            remedy = _near(value, known) or _more(parser, "lists the commands")
        else:
            message = f"argument {choice['argument']}: invalid choice: {choice['value']}"
            remedy = _near(value, known) or f"choose from {', '.join(known)}"
        raise UsageError(message, remedy)
    if message.endswith(_VERBS):  # the following arguments are required: COMMAND
        raise UsageError("no command given", _more(parser, "lists the commands"))
    raise UsageError(message, _more(parser))


def _near(word: str, known: Iterable[str]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(word, known, n=1, cutoff=_NEAR)
    return f"did you mean '{near[0]}'?" if near else ""


def _more(parser: argparse.ArgumentParser, what: str = "says more") -> str:
    return f"'{parser.prog} --help' {what}"
