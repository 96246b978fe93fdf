"""Command lines: the layout of `--help`, and errors that suggest what was probably meant."""

from __future__ import annotations

import argparse
import re
import textwrap
from functools import partial
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any, NoReturn

from neurontools.base.text import did_you_mean
from neurontools.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Verbs = argparse._SubParsersAction[argparse.ArgumentParser]  # noqa: SLF001  argparse has no public name for it

MACHINE_HELP = "machine name (default: NEURONTOOLS_MACHINE or 'default')"
EXIT_CODES = "exit codes: 0 success, 1 failed, 2 usage error, 3 no machine, 4 daemon error, 130 interrupted"

_EXAMPLES = "examples:"
_MIN_WIDTH = 24
_EXAMPLE = re.compile(r"  (?P<command>\S.*?)(?: {2,}(?P<purpose>\S.*))?$")
_CONTINUED = re.compile(r" {9,}(?P<purpose>\S.*)$")  # the purpose of the example above, on its own line
_COLUMNS = re.compile(r" +\S+(?: \S+)? {2,}| *")
_WORD = re.compile(r"(?:'[^']*'|\"[^\"]*\"|[^\s'\"])+")


def add_verb(
    verbs: Verbs, name: str, purpose: str, run: Callable[[argparse.Namespace], int]
) -> argparse.ArgumentParser:
    """Return the parser of a new verb, which is run with its parsed command line."""
    parser = verbs.add_parser(name, help=purpose, description=f"{purpose[0].upper()}{purpose[1:]}.")
    parser.set_defaults(run=run)
    return parser


def add_machine(parser: argparse._ActionsContainer, *aliases: str, note: str = "") -> None:
    """Add `--machine`; the first of its aliases names the value."""
    parser.add_argument(*aliases, "--machine", metavar="NAME", help=MACHINE_HELP + note)


def add_json(parser: argparse.ArgumentParser, purpose: str = "print JSON") -> None:
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
        subparser.error = partial(_fail, subparser)  # type: ignore[method-assign]
        subparser._check_value = partial(_check_choice, subparser)  # type: ignore[method-assign]  # noqa: SLF001
    found, unknown = parser.parse_known_args(words, base)
    if unknown:
        raise unknown_words(_parser_of(parser, words), unknown)
    return found


def family(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield a parser and, recursively, the parsers of its verbs."""
    yield parser
    for verb in verbs(parser).values():
        yield from family(verb)


def verbs(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the parsers of a parser's verbs by name."""
    for action in parser._actions:  # noqa: SLF001  argparse has no public list of sub-parsers
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            return dict(action.choices)
    return {}


def unknown_words(parser: argparse.ArgumentParser, words: Sequence[str]) -> UsageError:
    """Return the error for words that a parser does not know."""
    option = next((word.partition("=")[0] for word in words if word.startswith("-")), "")
    known = [name for action in parser._actions for name in action.option_strings]  # noqa: SLF001
    return UsageError(
        f"unrecognized arguments: {' '.join(words)}",
        did_you_mean(option, known, otherwise=_see_help(parser)),
    )


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
        remedy = did_you_mean(value, known, otherwise=_see_help(parser, " for the commands"))
        raise UsageError(f"unknown command {value!r}", remedy)
    name = argparse._get_action_name(action)  # noqa: SLF001
    remedy = did_you_mean(str(value), known, otherwise=f"choose from {', '.join(known)}")
    raise UsageError(f"argument {name}: invalid choice: {value!r}", remedy)


def _fail(parser: argparse.ArgumentParser, message: str) -> NoReturn:
    """Replace argparse's `error`, which prints the whole usage."""
    if verbs(parser) and message.endswith(
        ("COMMAND", "VERB")
    ):  # the following arguments are required: COMMAND
        raise UsageError("no command given", _see_help(parser, " for the commands"))
    raise UsageError(message, _see_help(parser))


def _see_help(parser: argparse.ArgumentParser, what: str = "") -> str:
    return f"see '{parser.prog} --help'{what}"


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Keeps lines as written, wraps those that are too long, and prints the purpose of examples as shell comments.

    Examples are written one a line: the command, two or more spaces, then its purpose.
    """

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=max(get_terminal_size().columns - 2, _MIN_WIDTH))

    def _format_action_invocation(self, action: argparse.Action) -> str:
        text = super()._format_action_invocation(action)
        if len(text) <= self._width - 2:
            return text
        lines = textwrap.wrap(
            text.replace(",", ", "), self._width - 2, subsequent_indent="    ", break_on_hyphens=False
        )
        return "\n".join(lines).replace(", ", ",")

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        before, heading, rest = text.partition(_EXAMPLES)
        examples, gap, after = rest.partition("\n\n")
        lines = list(_wrap_text(before, width))
        if heading:
            lines += [heading, *_format_examples(examples.strip("\n"), width)]
        lines += _wrap_text(gap + after, width)
        return "\n".join(indent + line if line else "" for line in lines)


def complete_help(parser: argparse.ArgumentParser) -> None:
    """Give a command and its verbs our layout, and each verb the exit codes and those examples that show it."""
    text = f"{parser.description or ''}\n{parser.epilog or ''}"
    codes = re.search(
        r"^exit codes: .*?(?=\n\n|\Z)|exit code is.*|Exit code .*", text, re.MULTILINE | re.DOTALL
    )
    examples = text.partition(_EXAMPLES)[2].partition("\n\n")[0].splitlines()
    for subparser in family(parser):
        own = [line for line in examples if subparser.prog in line]
        needs_nothing = all(action.option_strings and not action.required for action in subparser._actions)  # noqa: SLF001
        _complete_one(
            subparser, codes[0] if codes else EXIT_CODES, own or [f"  {subparser.prog}"] * needs_nothing
        )


def _complete_one(parser: argparse.ArgumentParser, codes: str, examples: list[str]) -> None:
    if parser.formatter_class is argparse.HelpFormatter and parser.description:
        parser.description = " ".join(parser.description.split())
    parser.formatter_class = HelpFormatter
    parts = [parser.epilog.strip("\n")] if parser.epilog else []
    if examples and _EXAMPLES not in (parser.epilog or ""):
        parts.insert(0, "\n".join((_EXAMPLES, *examples)))
    if "exit code" not in f"{parser.description} {parser.epilog}".lower():
        parts.append(codes)
    parser.epilog = "\n\n".join(parts)


def _wrap_text(text: str, width: int) -> Iterator[str]:
    """Yield a text in lines; indented lines stay on their own and continue below their second column."""
    for line in re.sub(r"(?m)(?<=\S)\n(?=[^\sA-Z])(?!exit codes:)", " ", text).splitlines():
        column = _COLUMNS.match(line)
        yield from textwrap.wrap(
            line,
            max(width, _MIN_WIDTH),
            subsequent_indent=" " * len(column[0] if column else ""),
            break_long_words=False,
            break_on_hyphens=False,
        ) or [""]


def _format_examples(text: str, width: int) -> Iterator[str]:
    examples = list(_split_examples(text))
    column = max((len(c) for c, purpose in examples if purpose and len(c + purpose) + 6 <= width), default=0)
    for command, purpose in examples:
        if purpose and len(command + purpose) + 6 <= width:
            yield f"  {command:<{min(column, width - 6 - len(purpose))}}  # {purpose}"
        else:
            yield from textwrap.wrap(purpose, width, initial_indent="  # ", subsequent_indent="  # ")
            yield from _wrap_command(command, width)


def _wrap_command(command: str, width: int) -> Iterator[str]:
    line = "  "
    for word in _WORD.findall(command):
        if len(line) + len(word) > width - 2 and line.strip():
            yield f"{line}\\"
            line = "    "
        line += f"{word} "
    yield line.rstrip()


def _split_examples(text: str) -> Iterator[tuple[str, str]]:
    """Yield each command and its purpose."""
    found: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if found and (more := _CONTINUED.match(line)):
            found[-1][1].append(more["purpose"])
        elif example := _EXAMPLE.match(line):
            found.append((example["command"], [example["purpose"] or ""]))
    for command, purposes in found:
        yield command, " ".join(purposes).strip()
