"""How the help of every command looks: it fits the terminal, its examples can be copied, each verb has its own."""

from __future__ import annotations

import argparse
import re
import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

EXIT_CODES = "exit codes: 0 fine, 1 failed, 2 usage, 3 no machine, 4 daemon trouble, 130 interrupted"

_EXAMPLES = "examples:"
_EXAMPLE = re.compile(r"  (?P<command>\S.*?)(?: {2,}(?P<purpose>\S.*))?$")
_CONTINUED = re.compile(r" {9,}(?P<purpose>\S.*)$")  # what the example above is for, on a line of its own


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Keeps lines as they were written, wraps those that are too long, and makes shell comments of examples' purposes.

    Texts are written with one example a line: the command, then two spaces or more, then what it is for.
    """

    def _format_action_invocation(self, action: argparse.Action) -> str:
        text = super()._format_action_invocation(action)
        if len(text) <= self._width - 2:
            return text
        words = text.replace(",", ", ")
        return "\n".join(
            textwrap.wrap(words, self._width - 2, subsequent_indent="    ", break_on_hyphens=False)
        ).replace(", ", ",")

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        before, heading, rest = text.partition(_EXAMPLES)
        examples, gap, after = rest.partition("\n\n")
        lines = list(_wrapped(before, width))
        if heading:
            lines += [heading, *_example_lines(examples.strip("\n"), width)]
        lines += _wrapped(gap + after, width)
        return "\n".join(indent + line if line else "" for line in lines)


def complete(parser: argparse.ArgumentParser) -> None:
    """Give a command and all its verbs our layout, and the verbs what the command's help says of them."""
    text = f"{parser.description or ''}\n{parser.epilog or ''}"
    said = re.search(
        r"^exit codes: .*?(?=\n\n|\Z)|exit code is.*|Exit code .*", text, re.MULTILINE | re.DOTALL
    )
    codes = said[0] if said else EXIT_CODES
    examples = text.partition(_EXAMPLES)[2].partition("\n\n")[0]
    for each in family(parser):
        own = [line for line in examples.splitlines() if each.prog in line]
        _complete_one(each, codes, own or [f"  {each.prog}"] * _takes_nothing(each))


def family(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield a parser, and the parsers of its verbs, and of theirs."""
    yield parser
    for verb in verbs(parser).values():
        yield from family(verb)


def verbs(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the parsers of a parser's verbs by their names."""
    for action in parser._actions:  # noqa: SLF001  argparse names its sub-parsers nowhere else
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            return dict(action.choices)
    return {}


def _takes_nothing(parser: argparse.ArgumentParser) -> bool:
    return all(action.option_strings and not action.required for action in parser._actions)  # noqa: SLF001


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


def _wrapped(text: str, width: int) -> Iterator[str]:
    for line in _paragraphs(text):
        # A line of two columns goes on below its second one.
        columns = re.match(r" +\S+(?: \S+)? {2,}| *", line)
        yield from textwrap.wrap(
            line,
            max(width, 24),
            subsequent_indent=" " * len(columns[0] if columns else ""),
            break_long_words=False,
            break_on_hyphens=False,
        ) or [""]


def _paragraphs(text: str) -> Iterator[str]:
    """Yield lines; one at the margin that begins no sentence goes on with the one before."""
    joined = ""
    for line in text.splitlines():
        goes_on = line[:1].strip() != "" and not line[0].isupper() and not line.startswith("exit codes:")
        if joined and goes_on:
            joined = f"{joined} {line}"
            continue
        if joined:
            yield joined
        joined = line if line[:1].strip() else ""
        if not joined:
            yield line
    if joined:
        yield joined


def _example_lines(text: str, width: int) -> Iterator[str]:
    examples = list(_examples(text))
    fitting = [
        len(command) for command, purpose in examples if purpose and len(command + purpose) + 6 <= width
    ]
    column = max(fitting, default=0)
    for command, purpose in examples:
        if not purpose:
            yield from _command_lines(command, width)
        elif len(command + purpose) + 6 > width:
            yield from textwrap.wrap(purpose, width, initial_indent="  # ", subsequent_indent="  # ")
            yield from _command_lines(command, width)
        else:
            yield f"  {command:<{min(column, width - 6 - len(purpose))}}  # {purpose}"


def _command_lines(command: str, width: int) -> Iterator[str]:
    line = "  "
    for word in re.findall(r"(?:'[^']*'|\"[^\"]*\"|[^\s'\"])+", command):
        if len(line) + len(word) > width - 2 and line.strip():
            yield f"{line}\\"
            line = "    "
        line += f"{word} "
    yield line.rstrip()


def _examples(text: str) -> Iterator[tuple[str, str]]:
    command, purposes = "", list[str]()
    for line in text.splitlines():
        if command and (more := _CONTINUED.match(line)):
            purposes.append(more["purpose"])
        elif found := _EXAMPLE.match(line):
            if command:
                yield command, " ".join(purposes)
            command, purposes = found["command"], [found["purpose"]] if found["purpose"] else []
    if command:
        yield command, " ".join(purposes)
