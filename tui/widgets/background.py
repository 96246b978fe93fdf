"""Whether a terminal is dark or light: a hint of its environment, the question OSC 11, and its answer.

Nothing waits for the answer: it is filtered out of the input whenever it arrives, so that it is never mistaken for keys.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

QUESTION = "\x1b]11;?\x1b\\"
"""Asks a terminal for the colour of its background."""

_ANSWER = re.compile(r"\x1b\]11;([^\x07\x1b]{0,64})(?:\x07|\x1b\\)")
# An incomplete answer. Two characters alone may also be a key, alt+].
_BEGUN = re.compile(r"\x1b\]1(?:1(?:;[rgba:/#\dA-Fa-f]{0,64}\x1b?)?)?\Z")
# An answer that was cut off: a key follows it.
_CUT = re.compile(r"\x1b\]11;[rgba:/#\dA-Fa-f]{0,64}")
_CHANNEL = re.compile(r"[0-9a-fA-F]{1,4}")
_HALF = 0.5
_LIGHT_ANSI = frozenset({"7", *map(str, range(9, 16))})


class BackgroundAnswers:
    """Filters background answers out of a terminal's input.

    Args:
        on_answer: called with whether the background is dark.
    """

    def __init__(self, on_answer: Callable[[bool], None]) -> None:
        self._on_answer = on_answer
        self._held = ""

    def rest_of(self, text: str) -> str:
        """Return the input without answers; an incomplete one is kept until the next call, and dropped if a key follows."""
        if self._held:
            text, self._held = self._held + text, ""
        if "\x1b]1" not in text:
            return text
        text = _ANSWER.sub(self._take, text)
        begun = _BEGUN.search(text)
        if begun is not None:
            self._held = begun.group()
            text = text[: begun.start()]
        return _CUT.sub("", text)

    def _take(self, answer: re.Match[str]) -> str:
        dark = is_dark(answer.group(1))
        if dark is not None:
            self._on_answer(dark)
        return ""


def is_dark(colour: str) -> bool | None:
    """Return whether an X11 colour (`rgb:ffff/ffff/ffff`) is dark, None if it is not a valid colour."""
    kind, _, values = colour.partition(":")
    channels = values.split("/")[:3]
    if kind not in {"rgb", "rgba"} or len(channels) < 3 or not all(map(_CHANNEL.fullmatch, channels)):
        return None
    red, green, blue = (int(text, 16) / (16 ** len(text) - 1) for text in channels)
    brightness: float = 0.299 * red + 0.587 * green + 0.114 * blue
    return brightness < _HALF


def hinted_dark(environment: Mapping[str, str]) -> bool:
    """Return whether COLORFGBG (`foreground;background`, ANSI colour numbers) means dark; dark if it is not set."""
    return environment.get("COLORFGBG", "").rpartition(";")[2] not in _LIGHT_ANSI


def may_be_asked(environment: Mapping[str, str]) -> bool:
    """Return whether a terminal understands or ignores the query; old Linux consoles print part of it."""
    return environment.get("TERM", "") not in {"", "dumb", "linux"}
