"""Colours of neuron-ls, only on `--color`: the text without them is what it is without the flag."""

from __future__ import annotations

import os

_RESET = "\x1b[0m"
HEADER = "\x1b[1m"
BUSY = "\x1b[32m"
PROCESS = "\x1b[36m"


def painted(text: str, colour: str) -> str:
    """Return a text in a colour; blanks around it and an empty colour change nothing."""
    inner = text.strip(" ")
    if not inner or not colour:
        return text
    left = len(text) - len(text.lstrip(" "))
    return text[:left] + colour + inner + _RESET + text[left + len(inner) :]


def wanted(choice: str | None, *, terminal: bool) -> bool:
    """Return whether there are colours.

    Args:
        choice: the flag's value: "always", "never", "auto" (on a terminal unless NO_COLOR is set, anywhere with
            FORCE_COLOR), None without the flag.
        terminal: whether standard output is one.
    """
    if choice != "auto":
        return choice == "always"
    if os.environ.get("NO_COLOR"):
        return False
    return terminal or bool(os.environ.get("FORCE_COLOR"))
