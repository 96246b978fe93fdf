"""The terminal from a program's start until Textual takes it over: a first frame stands while Textual still loads.

Loading Textual takes as long as everything else that neuron-top does before its first frame. Nothing here imports it.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import time
from contextlib import suppress
from typing import Any, Self

from neurontools.tui.widgets.background import QUESTION, BackgroundAnswers

ENTER_SCREEN, LEAVE_SCREEN = "\x1b[?1049h", "\x1b[?1049l"
_BEGIN = f"{ENTER_SCREEN}\x1b[?25l\x1b[?7l"  # no cursor, no line wrap, as Textual sets them
_END = f"\x1b[?7h{LEAVE_SCREEN}\x1b[?25h"

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
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_drawn:
            self._write(_END)
        if self._settings is not None:
            with suppress(termios.error):
                termios.tcsetattr(_input(), termios.TCSAFLUSH, self._settings)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._release()

    def open(self) -> bool:
        """Take the terminal: no echo, keys wait for Textual, signals end the program through `__exit__`.

        Returns:
            Whether it was taken; not in the background, and not where the terminal cannot be opened a second time.
        """
        try:
            if _is_in_background():
                return False
            # Opened again so that writing never blocks; the standard streams are shared with other programs.
            path = os.ttyname(sys.__stderr__.fileno())  # type: ignore[union-attr]
            self._output = os.open(path, os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK)
            settings = termios.tcgetattr(_input())
        except (OSError, termios.error):
            self._release()
            return False
        for number in _ENDING:
            self._handlers[number] = signal.signal(number, _end)
        self._settings = settings
        own = [*settings]
        own[_LOCAL] &= ~_LOCAL_OFF
        own[_INPUT] &= ~_INPUT_OFF
        own[_CHARACTERS] = [*own[_CHARACTERS]]
        own[_CHARACTERS][termios.VMIN] = 1
        with suppress(termios.error):
            termios.tcsetattr(_input(), termios.TCSANOW, own)
        return True

    def ask_background(self) -> None:
        """Ask for the colour of the background."""
        self._write(QUESTION)

    def wait_for_background(self, seconds: float) -> None:
        """Read input until the answer came, which sets `is_dark`.

        Args:
            seconds: how long to wait at most.
        """
        answers = BackgroundAnswers(self._take_background)
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
        self.is_drawn = True
        self._write(_BEGIN + text)

    def hand_over(self) -> list[Any] | None:
        """Leave the terminal as it is to Textual; returns its settings before the start, None if it was never taken."""
        settings, self._settings = self._settings, None
        self.is_drawn = False
        self._release()
        return settings

    def _take_background(self, dark: bool) -> None:
        self.is_dark = dark

    def _write(self, text: str) -> None:
        data = text.encode(errors="replace")
        while data:
            try:
                data = data[os.write(self._output, data) :]
            except BlockingIOError:
                # A terminal that accepts nothing gets no first frame; Textual waits for it in a thread.
                if not select.select([], [self._output], [], _FULL_S)[1]:
                    return
            except OSError:
                return

    def _release(self) -> None:
        if self._output >= 0:
            os.close(self._output)
            self._output = -1


def _input() -> int:
    assert sys.__stdin__ is not None
    return sys.__stdin__.fileno()


def _is_in_background() -> bool:
    try:
        return os.tcgetpgrp(_input()) != os.getpgrp()
    except OSError:
        return False  # not the controlling terminal: nothing stops its readers


def _end(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)
