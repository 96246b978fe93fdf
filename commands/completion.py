"""neurontools completion: completion scripts generated from the tools' parsers, and the values they ask for."""

from __future__ import annotations

import argparse
from importlib import import_module
from typing import TYPE_CHECKING

from neurontools.commands import console, parsing
from neurontools.commands.neurontools import COMMANDS
from neurontools.errors import MissingDependencyError, NeuronToolsError
from neurontools.machine.faults.kinds import EccType, FaultKind
from neurontools.tui.names import PAGE_NAMES, THEME_NAMES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import ModuleType

_BY_OPTION = {"--machine": "machines", "--instance": "instances"}
_BY_METAVAR = {"ENTRY": "entries", "NAME|FILE": "scenarios"}
_DIRECTORIES = ("DIR",)
_FILES = ("FILE", "LIB", "NEFF", "PROGRAM", "FROM", "TO")
_MAX_VALUES = 500  # more would not help, and take too long at each Tab

EXAMPLES = """examples:
  eval "$(neurontools completion bash)"
  eval "$(neurontools completion zsh)"
  neurontools completion fish > ~/.config/fish/completions/neurontools.fish
"""


def values_of(kind: str) -> list[str]:
    """Return the possible values of a kind, none if they cannot be found out.

    Args:
        kind: a key of `KINDS`.
    """
    try:
        return list(KINDS[kind]())[:_MAX_VALUES]
    except (NeuronToolsError, OSError):
        return []


def _machines() -> Iterable[str]:
    from neurontools.machine import launch

    return [info.machine for info in launch.list_machines()]


def _instances() -> Iterable[str]:
    from neurontools.machine.instances.catalogue import instance_names

    return instance_names()


def _scenarios() -> Iterable[str]:
    from neurontools.scenario.schema import scenario_names

    return scenario_names()


def _entries() -> Iterable[str]:
    """Return the modules of the configured cache and their numbers; none of a bucket, which is too slow."""
    from neurontools.cache.location import resolve
    from neurontools.cache.walk import walk

    location = resolve()
    if location.is_remote:
        return []
    modules = [place.module for place in walk(location.root).places if place.module]
    numbers = [module.removeprefix("MODULE_").partition("+")[0] for module in modules]
    return dict.fromkeys(name for pair in zip(modules, numbers, strict=True) for name in pair)


KINDS: dict[str, Callable[[], Iterable[str]]] = {
    "machines": _machines,
    "instances": _instances,
    "scenarios": _scenarios,
    "entries": _entries,
}


def build_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = argparse.ArgumentParser(
        prog="neurontools completion",
        description="Print a completion script for every tool.",
        epilog=EXAMPLES,
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("shell", nargs="?", choices=["bash", "zsh", "fish"])
    what.add_argument(
        "--values",
        choices=sorted(KINDS),
        help=argparse.SUPPRESS,  # the scripts ask for the values of a word
    )
    return parser


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
        _offer(parsing.verbs(parser)["inject"], kind=FaultKind, ecc=EccType)
    elif module == "top":
        _offer(parser, page=PAGE_NAMES, theme=THEME_NAMES)
    return parser


def _offer(parser: argparse.ArgumentParser, **values: Iterable[str]) -> None:
    # The command itself accepts any word, to report a better error than argparse.
    for action in parser._actions:  # noqa: SLF001  argparse names its actions nowhere else
        if action.dest in values:
            action.choices = [str(value) for value in values[action.dest]]


def _set_completers(parser: argparse.ArgumentParser, shtab: ModuleType) -> None:
    """Set the completer of each option and argument, by its name or its metavar."""
    for action in parser._actions:  # noqa: SLF001
        if action.nargs == 0 or action.choices is not None:
            continue
        metavar = action.metavar if isinstance(action.metavar, str) else ""
        options = {name for name in action.option_strings if name in _BY_OPTION}
        kind = _BY_OPTION[options.pop()] if options else _BY_METAVAR.get(metavar)
        if kind is not None:
            action.complete = shtab.cmd(f"neurontools completion --values {kind} 2>/dev/null")  # type: ignore[attr-defined]
        elif any(word in metavar for word in _DIRECTORIES):
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
        elif any(word in metavar for word in _FILES):
            action.complete = shtab.FILE  # type: ignore[attr-defined]


def _run(arguments: argparse.Namespace) -> int:
    if arguments.values:
        for value in values_of(arguments.values):
            console.out(value)
        return 0
    try:
        shtab = import_module("shtab")
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            "shell completion needs shtab", "pip install 'neurontools[completion]'"
        ) from error
    parsers = [_parser_of(module) for module, program, _ in COMMANDS.values() if program]
    for parser in [*parsers, umbrella_parser()]:
        for subparser in parsing.family(parser):
            _set_completers(subparser, shtab)
        console.out(shtab.complete(parser, shell=arguments.shell))
    return 0


main = console.command(build_parser, _run)
