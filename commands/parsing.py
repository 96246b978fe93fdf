"""Command lines: options that several commands share, old spellings, and errors that suggest what was probably meant.

One idea has one spelling in all commands of ours. Old spellings are accepted, but no help or completion shows them.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from neurontools.base.text import did_you_mean
from neurontools.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Verbs = argparse._SubParsersAction[argparse.ArgumentParser]  # noqa: SLF001  argparse has no public name for it

MACHINE_HELP = "machine name (default: NEURONTOOLS_MACHINE or 'default')"
EXIT_CODES = "exit codes: 0 success, 1 failed, 2 usage error, 3 no machine, 4 daemon error, 130 interrupted"


def add_verb(
    verbs: Verbs, name: str, purpose: str, run: Callable[[argparse.Namespace], int]
) -> argparse.ArgumentParser:
    """Return the parser of a new verb, which is run with its parsed command line."""
    parser = verbs.add_parser(name, help=purpose, description=f"{purpose[0].upper()}{purpose[1:]}.")
    parser.set_defaults(run=run)
    return parser


def add_old_spelling(parser: argparse._ActionsContainer, option: argparse.Action, *spellings: str) -> None:
    """Accept old spellings of an option; neither help nor completion shows them."""
    parser._option_string_actions.update(dict.fromkeys(spellings, option))  # noqa: SLF001  argparse has no hidden names


def add_machine(parser: argparse._ActionsContainer, *, note: str = "") -> argparse.Action:
    """Add `--machine`; return the option."""
    return parser.add_argument("--machine", metavar="NAME", help=MACHINE_HELP + note)


def add_limit(parser: argparse._ActionsContainer, purpose: str, *, short: bool = True) -> argparse.Action:
    """Add `-n`, `--limit`: a number above 0; return the option.

    Args:
        parser: of the command.
        purpose: what is limited.
        short: whether `-n` is free.
    """
    names = ("-n", "--limit") if short else ("--limit",)
    return parser.add_argument(*names, type=positive, metavar="N", help=purpose)


def add_duration(
    parser: argparse._ActionsContainer, flag: str, purpose: str, default_s: float | None = None
) -> argparse.Action:
    """Add an option that takes a duration such as `500ms`, or seconds; return the option, whose value is in seconds."""
    return parser.add_argument(flag, type=duration_s, default=default_s, metavar="DURATION", help=purpose)


def positive(text: str) -> int:
    """Return a number above 0 of the command line, for `type=`."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return int(text)


def duration_s(text: str) -> float:
    """Return the seconds of a duration of the command line, for `type=`; a bare number is seconds."""
    from neurontools.base.units import parse_duration

    try:
        return parse_duration(text)
    except UsageError as error:
        raise argparse.ArgumentTypeError(f"{error.message} ({error.remedy})") from error


def add_json(parser: argparse._ActionsContainer, purpose: str = "print JSON") -> None:
    """Add `--json`."""
    parser.add_argument("--json", action="store_true", help=purpose)


def parse(
    parser: argparse.ArgumentParser, words: Sequence[str], base: argparse.Namespace | None = None
) -> argparse.Namespace:
    """Parse a command line.

    Args:
        parser: of the command.
        words: what follows the command's name.
        base: a namespace to put the values into.

    Raises:
        UsageError: the command line is invalid; the hint names the most similar command, option or value.
    """
    for subparser in family(parser):
        subparser.error = partial(_fail, parser, subparser, words)  # type: ignore[method-assign]
        subparser._check_value = partial(_check_choice, subparser)  # type: ignore[method-assign]  # noqa: SLF001
        subparser._get_option_tuples = partial(_abbreviated, subparser)  # type: ignore[method-assign]  # noqa: SLF001
    found, unknown = parser.parse_known_args(words, base)
    if unknown:
        raise unknown_words(_parser_of(parser, words), unknown)
    return found


def family(parser: argparse.ArgumentParser, *, hidden: bool = True) -> Iterator[argparse.ArgumentParser]:
    """Yield a parser and, recursively, the parsers of its verbs; old verbs only with `hidden`."""
    yield parser
    shown = visible_verbs(parser)
    for name, verb in verbs(parser).items():
        if hidden or name in shown:
            yield from family(verb, hidden=hidden)


def verbs(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the parsers of a parser's verbs by name."""
    for action in parser._actions:  # noqa: SLF001  argparse has no public list of sub-parsers
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            return dict(action.choices)
    return {}


def visible_verbs(parser: argparse.ArgumentParser) -> frozenset[str]:
    """Return the names of a parser's verbs without the old ones."""
    return frozenset(
        choice.dest
        for action in parser._actions  # noqa: SLF001
        if isinstance(action, argparse._SubParsersAction)  # noqa: SLF001
        for choice in action._choices_actions  # noqa: SLF001
    )


def visible_options(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """Return the options of a parser by their names, without old spellings."""
    return {
        name: action
        for action in parser._actions  # noqa: SLF001
        if action.help is not argparse.SUPPRESS
        for name in action.option_strings
    }


def unknown_words(parser: argparse.ArgumentParser, words: Sequence[str]) -> UsageError:
    """Return the error for words that a parser does not know."""
    option = next((word.partition("=")[0] for word in words if word.startswith("-")), "")
    return UsageError(
        f"unrecognized arguments: {' '.join(words)}",
        did_you_mean(option, visible_options(parser), otherwise=_see_help(parser)),
    )


def _abbreviated(parser: argparse.ArgumentParser, word: str) -> list[Any]:
    """Return the options that a word abbreviates; the spellings of one option are not ambiguous."""
    found = argparse.ArgumentParser._get_option_tuples(parser, word)  # noqa: SLF001
    return list({id(option[0]): option for option in found}.values())


def _parser_of(parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.ArgumentParser:
    """Return the parser of the verb in a command line."""
    for position, word in enumerate(words):
        if word in verbs(parser):
            return _parser_of(verbs(parser)[word], words[position + 1 :])
    return parser


def _check_choice(parser: argparse.ArgumentParser, action: argparse.Action, value: Any) -> None:
    """Replace argparse's check, which lists all choices and suggests none."""
    if action.choices is None or value in action.choices:
        return
    known = [str(choice) for choice in action.choices]
    if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
        names = sorted(visible_verbs(parser))
        remedy = did_you_mean(value, names, otherwise=_see_help(parser, " for the commands"))
        raise UsageError(f"unknown command {value!r}", remedy)
    name = argparse._get_action_name(action)  # noqa: SLF001
    remedy = did_you_mean(str(value), known, otherwise=f"choose from {', '.join(known)}")
    raise UsageError(f"argument {name}: invalid choice: {value!r}", remedy)


def _fail(
    root: argparse.ArgumentParser, parser: argparse.ArgumentParser, words: Sequence[str], message: str
) -> NoReturn:
    """Replace argparse's `error`, which prints the whole usage and misses unknown options where a word is missing."""
    if message.startswith("the following arguments are required"):
        if unknown := _unknown_options(root, parser, words):
            raise unknown_words(parser, unknown)
        if verbs(parser) and message.endswith(("COMMAND", "VERB")):
            raise UsageError("no command given", _see_help(parser, " for the commands"))
    raise UsageError(message, _see_help(parser))


def _unknown_options(
    root: argparse.ArgumentParser, parser: argparse.ArgumentParser, words: Sequence[str]
) -> list[str]:
    known = {*root._option_string_actions, *parser._option_string_actions}  # noqa: SLF001
    own = words[: words.index("--")] if "--" in words else words
    options = [word for word in own if word.startswith("-") and word[1:2].isalpha() | word.startswith("--")]
    return [
        word
        for word in options
        if not any(name.startswith(word.partition("=")[0]) for name in known)
        and not (word[1] != "-" and word[:2] in known)
    ]


def _see_help(parser: argparse.ArgumentParser, what: str = "") -> str:
    return f"see '{parser.prog} --help'{what}"
