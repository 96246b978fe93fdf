"""The terminal from a program's start until Textual takes it over: a first frame, and the question for its background.

Nothing waits for the answer: it is filtered out of the input whenever it arrives, so that it is never mistaken for keys.

Loading Textual takes as long as everything else that neuron-top does before its first frame. Nothing here imports it.
"""

from __future__ import annotations

import os
import re
import select
import signal
import sys
import termios
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

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


ENTER_SCREEN, LEAVE_SCREEN = "\x1b[?1049h", "\x1b[?1049l"
_BEGIN = f"{ENTER_SCREEN}\x1b[?25l\x1b[?7l"  # no cursor, no line wrap, as Textual sets them
_END = f"\x1b[?7h{LEAVE_SCREEN}\x1b[?25h"
CANCEL = "\x18"
"""Ends a sequence that was cut off."""

# The same input mode as Textual's, so that keys typed early are read by it as if typed later.
_LOCAL_OFF = termios.ECHO | termios.ICANON | termios.IEXTEN | termios.ISIG
_INPUT_OFF = termios.IXON | termios.IXOFF | termios.ICRNL | termios.INLCR | termios.IGNCR
_INPUT, _LOCAL, _CHARACTERS = 0, 3, 6  # positions in the settings of termios

_ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)
_READ_BYTES = 4096
_FULL_S = 0.05


class StartScreen:
    """The terminal's screen before Textual has it.

    On exit the signals' handlers are those from before, and so is the terminal unless it was handed over.
    """

    def __init__(self) -> None:
        self.is_dark: bool | None = None
        """What the terminal answered about its background."""
        self.is_drawn = False
        """Whether the frame stands in the alternate screen."""
        self._typed = b""
        self._output = -1
        self._settings: list[Any] | None = None
        self._own_settings: list[Any] = []
        self._frame = ""
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave(termios.TCSAFLUSH)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._release()

    def open(self) -> bool:
        """Take the terminal: no echo, keys wait for Textual, signals restore it and end the process.

        Returns:
            Whether it was taken; not in the background, and not where the terminal cannot be opened a second time.
        """
        try:
            if _is_in_background():
                return False
            self._output = open_output()
            settings = termios.tcgetattr(_input())
        except (OSError, termios.error):
            self._release()
            return False
        own = [*settings]
        own[_LOCAL] &= ~_LOCAL_OFF
        own[_INPUT] &= ~_INPUT_OFF
        own[_CHARACTERS] = [*own[_CHARACTERS]]
        own[_CHARACTERS][termios.VMIN] = 1
        self._settings, self._own_settings = settings, own
        for number in _ENDING:
            self._handlers[number] = signal.signal(number, self._end)
        self._handlers[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, self._stop)
        _set(own, termios.TCSANOW)
        return True

    def ask_background(self) -> None:
        """Ask for the colour of the background."""
        self._write(QUESTION)

    def wait_for_background(self, seconds: float) -> None:
        """Read input until the answer came, which sets `is_dark`.

        Args:
            seconds: how long to wait at most.
        """
        answers = BackgroundAnswers(lambda dark: setattr(self, "is_dark", dark))
        until_s = time.monotonic() + seconds
        while self.is_dark is None:
            left_s = max(0.0, until_s - time.monotonic())
            if not select.select([_input()], [], [], left_s)[0]:
                return
            data = os.read(_input(), _READ_BYTES)
            if not data:
                return
            self._typed += data
            answers.rest_of(data.decode("latin-1"))

    def take_typed(self) -> bytes:
        """Return, once, the input that was read while waiting for an answer."""
        typed, self._typed = self._typed, b""
        return typed

    def draw(self, text: str) -> None:
        """Enter the alternate screen and write the frame."""
        self.is_drawn, self._frame = True, text
        self._write(_BEGIN + text)

    def leave(self, when: int = termios.TCSANOW) -> None:
        """Restore the terminal, if it was taken and not handed over.

        Args:
            when: as `termios.tcsetattr` takes it.
        """
        if self.is_drawn:
            self.is_drawn = False
            self._write(_END, at_once=True)
        if self._settings is not None:
            _set(self._settings, when)

    def hand_over(self) -> list[Any] | None:
        """Leave the terminal as it is to Textual; returns its settings before the start, None if it was never taken."""
        settings, self._settings = self._settings, None
        self.is_drawn, self._frame = False, ""
        self._release()
        return settings

    def _end(self, number: int, _frame: object) -> None:
        # An exception would be lost, or become another one, where a module in C is just being imported.
        self.leave(termios.TCSAFLUSH)
        os._exit(128 + number)

    def _stop(self, _number: int, _frame: object) -> None:
        was_drawn = self.is_drawn
        self.leave()
        os.kill(os.getpid(), signal.SIGSTOP)
        _set(self._own_settings, termios.TCSANOW)  # in the background this stops again
        if was_drawn:
            self.draw(self._frame)

    def _write(self, text: str, *, at_once: bool = False) -> None:
        """Write a text; a terminal that accepts nothing drops what it has not shown yet for it, or gets nothing."""
        data = text.encode(errors="replace")
        while data:
            try:
                data = data[os.write(self._output, data) :]
            except BlockingIOError:
                # A terminal that accepts nothing gets no first frame; Textual waits for it in a thread.
                if select.select([], [self._output], [], _FULL_S)[1]:
                    continue
                if not at_once:
                    return
                at_once, data = False, f"{CANCEL}{text}".encode()
                drop_output(self._output)
            except OSError:
                return

    def _release(self) -> None:
        if self._output >= 0:
            os.close(self._output)
            self._output = -1


def open_output() -> int:
    """Open the terminal for output that never blocks; the standard streams are shared with other programs.

    Raises:
        OSError: it cannot be opened a second time.
    """
    path = os.ttyname(sys.__stderr__.fileno())  # type: ignore[union-attr]
    return os.open(path, os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)


def drop_output(fileno: int) -> None:
    """Drop what a terminal has not read yet."""
    with suppress(termios.error):
        termios.tcflush(fileno, termios.TCOFLUSH)


def _set(settings: list[Any], when: int) -> None:
    with suppress(termios.error):
        termios.tcsetattr(_input(), when, settings)


def _input() -> int:
    assert sys.__stdin__ is not None
    return sys.__stdin__.fileno()


def _is_in_background() -> bool:
    try:
        return os.tcgetpgrp(_input()) != os.getpgrp()
    except OSError:
        return False  # not the controlling terminal: nothing stops its readers
