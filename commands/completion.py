"""neurontools completion: scripts that complete the tools' command lines, made from the tools' own parsers."""

from __future__ import annotations

import argparse
from importlib import import_module
from typing import TYPE_CHECKING

from neurontools.commands import console
from neurontools.commands.neurontools import COMMANDS
from neurontools.errors import MissingDependencyError
from neurontools.machine.faults.kinds import EccType, FaultKind
from neurontools.tui.top_names import PAGE_NAMES, THEME_NAMES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import ModuleType

EXAMPLES = """examples:
  eval "$(neurontools completion bash)"
  eval "$(neurontools completion zsh)"
  neurontools completion fish > ~/.config/fish/completions/neurontools.fish
"""


def build_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = argparse.ArgumentParser(
        prog="neurontools completion",
        description="Print a completion script for every tool.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", choices=["bash", "zsh", "fish"])
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    return console.run(lambda: _run(argv))


def umbrella_parser() -> argparse.ArgumentParser:
    """Return a parser of `neurontools` with every tool as a sub-command."""
    umbrella = argparse.ArgumentParser(prog="neurontools")
    commands = umbrella.add_subparsers()
    for name, (module, _, purpose) in COMMANDS.items():
        own = _parser_of(module)
        commands.add_parser(
            name, parents=[own], conflict_handler="resolve", help=purpose, prog=f"neurontools {name}"
        )
    return umbrella


def _parser_of(module: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = import_module(f"neurontools.commands.{module}").build_parser()
    if module == "fault":
        _offer(_sub_parser(parser, "inject"), kind=FaultKind, type=EccType)
    elif module == "top":
        _offer(parser, page=PAGE_NAMES, theme=THEME_NAMES)
    return parser


def _offer(parser: argparse.ArgumentParser, **values: Iterable[str]) -> None:
    # The command itself takes any word, to say something better than argparse about a wrong one.
    for action in parser._actions:  # noqa: SLF001  argparse names its actions nowhere else
        if action.dest in values:
            action.choices = [str(value) for value in values[action.dest]]


def _sub_parser(parser: argparse.ArgumentParser, name: str) -> argparse.ArgumentParser:
    actions = parser._actions  # noqa: SLF001
    verbs = next(action for action in actions if isinstance(action, argparse._SubParsersAction))  # noqa: SLF001
    chosen: argparse.ArgumentParser = verbs.choices[name]
    return chosen


def _run(argv: Sequence[str] | None) -> int:
    arguments = console.parse(build_parser(), argv)
    shtab = _shtab()
    parsers = [_parser_of(module) for module, program, _ in COMMANDS.values() if program]
    for parser in [*parsers, umbrella_parser()]:
        console.out(shtab.complete(parser, shell=arguments.shell))
    return 0


def _shtab() -> ModuleType:
    try:
        return import_module("shtab")
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            "shell completion needs shtab", "pip install 'neurontools[completion]'"
        ) from error
