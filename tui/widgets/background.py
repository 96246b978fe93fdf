"""Whether the terminal is dark or light: what its environment says, and what it answers when it is asked (OSC 11).

Nobody waits for the answer: it is taken out of what the terminal sends whenever it comes, so that it is never mistaken
for keys, and until then the screen has the look that the environment hints at.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

QUESTION = "\x1b]11;?\x1b\\"
"""Asks a terminal for the colour of its background."""

_ANSWER = re.compile(r"\x1b\]11;([^\x07\x1b]{0,64})(?:\x07|\x1b\\)")
# Of an answer that has not come whole yet. Two characters alone may also be a key, alt+].
_BEGUN = re.compile(r"\x1b\]1(?:1(?:;[^\x07\x1b]{0,64}\x1b?)?)?\Z")
_CHANNEL = re.compile(r"[0-9a-fA-F]{1,4}")
_HALF = 0.5
_LIGHT_ANSI = frozenset({"7", *map(str, range(9, 16))})


class AdaptiveApp:
    """An app that adapts to the terminal: to its background, and to one that shows only ASCII."""

    @property
    def is_ascii(self) -> bool:
        """Whether only ASCII is drawn."""
        return False

    def ask_background(self) -> None:
        """Ask the terminal for its background colour."""
        raise NotImplementedError

    def set_background(self, dark: bool) -> None:
        """Take the terminal's answer."""
        raise NotImplementedError


class BackgroundAnswers:
    """Takes answers out of a terminal's input.

    Args:
        tell: gets whether the background is dark, each time that the terminal says it.
    """

    def __init__(self, tell: Callable[[bool], None]) -> None:
        self._tell = tell
        self._held = ""

    def rest_of(self, text: str) -> str:
        """Return what is left of a piece of input; the begin of an answer is held back until the next piece."""
        if self._held:
            text, self._held = self._held + text, ""
        if "\x1b]1" not in text:
            return text
        text = _ANSWER.sub(self._take, text)
        begun = _BEGUN.search(text)
        if begun is None:
            return text
        self._held = begun.group()
        return text[: begun.start()]

    def _take(self, answer: re.Match[str]) -> str:
        dark = is_dark(answer.group(1))
        if dark is not None:
            self._tell(dark)
        return ""


def is_dark(colour: str) -> bool | None:
    """Return whether a colour as X11 writes it (`rgb:ffff/ffff/ffff`) is dark, None when it is none."""
    kind, _, values = colour.partition(":")
    channels = values.split("/")[:3]
    if kind not in {"rgb", "rgba"} or len(channels) < 3 or not all(map(_CHANNEL.fullmatch, channels)):
        return None
    red, green, blue = (int(text, 16) / (16 ** len(text) - 1) for text in channels)
    brightness: float = 0.299 * red + 0.587 * green + 0.114 * blue
    return brightness < _HALF


def hinted_dark(environment: Mapping[str, str]) -> bool:
    """Return what COLORFGBG (`foreground;background`, numbers of the 16 colours) says; dark where it says nothing."""
    return environment.get("COLORFGBG", "").rpartition(";")[2] not in _LIGHT_ANSI


def may_be_asked(environment: Mapping[str, str]) -> bool:
    """Return whether a terminal understands the question or ignores it; old Linux consoles print a part of it."""
    return environment.get("TERM", "") not in {"", "dumb", "linux"}
