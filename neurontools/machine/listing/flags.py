"""The command line of neuron-ls as its flag parser reads it (system-tools.md 1.1 and 1.2), and our two flags.

`--csv` and `--device` are ours; the real tool has neither. Imports nothing.
"""

from __future__ import annotations

_LONG = {
    "--wide": "wide",
    "--show-all-procs": "show_all",
    "--topology": "topology",
    "--json-output": "json",
    "--help": "help",
    "--csv": "csv",
}
_SHORT = {"w": "wide", "a": "show_all", "t": "topology", "j": "json", "h": "help"}
_OPTION_NAMES = {
    "wide": "-w, --wide",
    "show_all": "-a, --show-all-procs",
    "topology": "-t, --topology",
    "json": "-j, --json-output",
    "help": "-h, --help",
    "csv": "--csv",
}
_DEVICE = "--device"


class FlagError(Exception):
    """The command line is wrong; its text is what the tool prints."""


class Flags:
    """Which flags are given. `devices` are the devices to list, None for all."""

    __slots__ = ("csv", "devices", "help", "json", "show_all", "topology", "wide")

    def __init__(self) -> None:
        self.wide = False
        self.show_all = False
        self.topology = False
        self.json = False
        self.help = False
        self.csv = False
        self.devices: frozenset[int] | None = None


def parse(argv: list[str]) -> Flags:
    """Return the flags of a command line.

    Raises:
        FlagError: an unknown flag, a value too many or too few, or an argument that is no flag.
    """
    flags = Flags()
    words = iter(argv)
    for word in words:
        flag, equals, value = word.partition("=")
        if flag == _DEVICE:
            flags.devices = (flags.devices or frozenset()) | _devices(value if equals else next(words, ""))
        else:
            for name in _names(word):
                setattr(flags, name, True)
    return flags


def _names(word: str) -> list[str]:
    if word == "--":
        return []
    if word[:2] == "--":
        flag, equals, _ = word.partition("=")
        if flag not in _LONG:
            raise FlagError(f"unknown flag `{flag[2:]}'")
        if equals:
            raise FlagError(f"bool flag `{_OPTION_NAMES[_LONG[flag]]}' cannot have an argument")
        return [_LONG[flag]]
    if word[:1] != "-" or word == "-":
        raise FlagError(f"unexpected argument `{word}'")
    for letter in word[1:]:
        if letter not in _SHORT:
            raise FlagError(f"unknown flag `{letter}'")
    return [_SHORT[letter] for letter in word[1:]]


def _devices(text: str) -> frozenset[int]:
    devices: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        last = last if dash else first
        if not (_is_index(first) and _is_index(last)) or int(last) < int(first):
            raise FlagError(f"flag `{_DEVICE}' expects devices such as 0,2 or 0-3, not `{text}'")
        devices.update(range(int(first), int(last) + 1))
    return frozenset(devices)


def _is_index(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 4
