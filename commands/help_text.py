"""The layout and the colours of `--help`."""

from __future__ import annotations

import argparse
import re
import textwrap
from shutil import get_terminal_size
from typing import TYPE_CHECKING

from neurontools.commands.parsing import EXIT_CODES, family

if TYPE_CHECKING:
    from collections.abc import Iterator

_EXAMPLES = "examples:"
_MIN_WIDTH = 24
_EXAMPLE = re.compile(r"  (?P<command>\S.*?)(?: {2,}(?P<purpose>\S.*))?$")
_CONTINUED = re.compile(r" {9,}(?P<purpose>\S.*)$")  # the purpose of the example above, on its own line
_COLUMNS = re.compile(r" +\S+(?: \S+)? {2,}| *")
_WORD = re.compile(r"(?:'[^']*'|\"[^\"]*\"|[^\s'\"])+")

# What gets a colour in a help text: headings bold, options and verbs cyan, comments of examples dim.
_COLOURED = (
    (re.compile(r"^(?:usage:|exit codes?:|[A-Za-z][^:]*:$)"), "1"),
    (re.compile(r"^  -(?:(?! {2}).)+"), "36"),
    (re.compile(r"^ {2,4}[a-z][\w-]*(?= {2,}\S)"), "36"),
    (re.compile(r"# .*$"), "2"),
)


def paint_help(text: str) -> str:
    """Return a help text with colours: headings, options, verbs and the comments of examples."""
    return "\n".join(map(_paint_line, text.split("\n")))


def _paint_line(line: str) -> str:
    for pattern, code in _COLOURED:
        if found := pattern.search(line):
            words = found[0].lstrip(" ")
            start = found.end() - len(words)
            return f"{line[:start]}\x1b[{code}m{words}\x1b[0m{line[found.end() :]}"
    return line


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
    """Give a command and its verbs our layout, the command its exit codes, and each verb those examples that show it."""
    text = f"{parser.description or ''}\n{parser.epilog or ''}"
    examples = text.partition(_EXAMPLES)[2].partition("\n\n")[0].splitlines()
    for subparser in family(parser):
        own = [line for line in examples if subparser.prog in line]
        needs_nothing = all(action.option_strings and not action.required for action in subparser._actions)  # noqa: SLF001
        _complete_one(subparser, own or [f"  {subparser.prog}"] * needs_nothing)
    if "exit code" not in text.lower():
        parser.epilog = f"{parser.epilog}\n\n{EXIT_CODES}".lstrip()


def _complete_one(parser: argparse.ArgumentParser, examples: list[str]) -> None:
    if parser.formatter_class is argparse.HelpFormatter and parser.description:
        parser.description = " ".join(parser.description.split())
    parser.formatter_class = HelpFormatter
    parts = [parser.epilog.strip("\n")] if parser.epilog else []
    if examples and _EXAMPLES not in (parser.epilog or ""):
        parts.insert(0, "\n".join((_EXAMPLES, *examples)))
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
