"""The command line of neuron-ls as its flag parser reads it (system-tools.md 1.1 and 1.2). Imports nothing."""

from __future__ import annotations

_LONG = {
    "--wide": "wide",
    "--show-all-procs": "show_all",
    "--topology": "topology",
    "--json-output": "json",
    "--help": "help",
}
_SHORT = {"w": "wide", "a": "show_all", "t": "topology", "j": "json", "h": "help"}
_OPTION_NAMES = {
    "wide": "-w, --wide",
    "show_all": "-a, --show-all-procs",
    "topology": "-t, --topology",
    "json": "-j, --json-output",
    "help": "-h, --help",
}


class FlagError(Exception):
    """The command line is wrong; its text is what the tool prints."""


class Flags:
    """Which flags are given."""

    __slots__ = ("help", "json", "show_all", "topology", "wide")

    def __init__(self) -> None:
        self.wide = False
        self.show_all = False
        self.topology = False
        self.json = False
        self.help = False


def parse(argv: list[str]) -> Flags:
    """Return the flags of a command line.

    Raises:
        FlagError: an unknown flag, a value for a flag that takes none, or an argument that is no flag.
    """
    flags = Flags()
    for argument in argv:
        for name in _names(argument):
            setattr(flags, name, True)
    return flags


def _names(argument: str) -> list[str]:
    if argument == "--":
        return []
    if argument[:2] == "--":
        flag, equals, _ = argument.partition("=")
        if flag not in _LONG:
            raise FlagError(f"unknown flag `{flag[2:]}'")
        if equals:
            raise FlagError(f"bool flag `{_OPTION_NAMES[_LONG[flag]]}' cannot have an argument")
        return [_LONG[flag]]
    if argument[:1] != "-" or argument == "-":
        raise FlagError(f"unexpected argument `{argument}'")
    for letter in argument[1:]:
        if letter not in _SHORT:
            raise FlagError(f"unknown flag `{letter}'")
    return [_SHORT[letter] for letter in argument[1:]]
