"""Textual's terminal driver, but asleep while no key is pressed, and aware of the terminal's background.

Textual's own driver checks ten times a second whether to end, a fifth of the CPU time of an idle neuron-top.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import weakref
from codecs import getincrementaldecoder
from contextlib import suppress
from queue import Empty
from select import select
from typing import TYPE_CHECKING, Any

from textual import constants
from textual._ansi_sequences import SYNC_END
from textual._xterm_parser import XTermParser
from textual.drivers.linux_driver import LinuxDriver

from neurontools.base.text import shows_utf8
from neurontools.tui.widgets.lines import ascii_only
from neurontools.tui.widgets.start_screen import (
    CANCEL,
    ENTER_SCREEN,
    BackgroundAnswers,
    StartScreen,
    drop_output,
    open_output,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from queue import Queue

    from textual.app import App
    from textual.message import Message

_ESCAPE = "\x1b"
_PASTE_BEGINS, _PASTE_ENDS = "\x1b[200~", "\x1b[201~"

# State that is independent of the current sequence.
_LASTING = ("mouse_pixels", "terminal_size", "terminal_pixel_size", "last_x", "last_y")

# What ends a program by default, and would leave the terminal as it is.
_ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)
_READ_BYTES = 4096
_WRITE_BYTES = 1024
_MOST_WAITING = 3
_LAST_WRITES_S = 2.0
_LOOK_AGAIN_S = 0.5
_ESCAPE_S = constants.ESCAPE_DELAY + 0.01  # certainly longer than the parser waits


class AdaptiveApp:
    """An app that adapts to the terminal's background and character set."""

    start_screen: StartScreen | None = None
    """What has the terminal until the app runs."""

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


class TerminalInput:
    """Textual's input parser, made robust: invalid sequences and empty input do not end the program.

    Escape characters inside of a paste are dropped: Textual would type what follows them, as keys that do something.

    Args:
        debug: keep Textual's log of keys.
    """

    def __init__(self, *, debug: bool = False) -> None:
        self._debug = debug
        self._parser = XTermParser(debug)
        self._is_paste = False
        self._last = ""
        """The last characters: before a paste those that may begin it, in a paste those that may end it."""

    def feed(self, text: str) -> Iterator[Message]:
        """Yield the messages of some input; invalid sequences are skipped."""
        for character in self._without_escapes(text):
            try:
                yield from self._parser.feed(character)
            except Exception:  # noqa: BLE001  ValueError, OverflowError, ...: whatever a strange number leads to
                self._begin_again()

    def tick(self) -> Iterator[Message]:
        """Yield keys that are complete because nothing followed in time."""
        try:
            yield from self._parser.tick()
        except Exception:  # noqa: BLE001  as above
            self._begin_again()

    def _without_escapes(self, text: str) -> Iterator[str]:
        for character in text:
            last, self._last = self._last, self._last + character
            if not self._is_paste:
                self._is_paste = self._last.endswith(_PASTE_BEGINS)
                self._last = "" if self._is_paste else self._last[-len(_PASTE_BEGINS) :]
                yield character
            elif self._last == _PASTE_ENDS:
                self._is_paste, self._last = False, ""
                yield from _PASTE_ENDS
            elif not _PASTE_ENDS.startswith(self._last):
                self._last = character if character == _ESCAPE else ""
                yield from last[1:]
                yield from "" if self._last else character

    def _begin_again(self) -> None:
        before, self._parser = self._parser, XTermParser(self._debug)
        for name in _LASTING:
            setattr(self._parser, name, getattr(before, name))


class TerminalDriver(LinuxDriver):
    """Waits for keys without polling, restores the terminal on signals, ends as by SIGHUP when it is gone."""

    def __init__(self, app: App[Any], **options: Any) -> None:
        super().__init__(app, **options)
        # It is all that the driver's writer needs of a file.
        is_ascii = isinstance(app, AdaptiveApp) and app.is_ascii
        is_plain = is_ascii or not shows_utf8(sys.stdout.encoding, os.environ)
        self._screen = Screen(_output(), ascii_only=is_plain)
        self._file = self._screen  # type: ignore[assignment]
        self.exit_event = self._ending = SelectableEvent()
        self._is_started = False
        self._start = app.start_screen if isinstance(app, AdaptiveApp) and app.start_screen else StartScreen()
        for number in _ENDING:
            self._loop.add_signal_handler(number, app.exit, 128 + number)

    def run_input_thread(self) -> None:
        """Convert terminal input into messages until `exit_event`."""
        typed = TerminalInput(debug=self._debug)
        answers = BackgroundAnswers(self._report_background)
        decode = getincrementaldecoder("utf-8")(errors="replace").decode
        # An escape key and the start of a sequence look the same until some time has passed.
        patience_s: float | None = _ESCAPE_S
        for message in typed.feed(answers.rest_of(decode(self._start.take_typed()))):
            self.process_message(message)
        while not self.exit_event.is_set():
            ready = select([self.fileno, self._ending.fileno()], [], [], patience_s)[0]
            if self.fileno in ready:
                data = self._read()
                if not data:
                    self._app.call_later(self._app.exit, 128 + signal.SIGHUP)
                    return
                for message in typed.feed(answers.rest_of(decode(data))):
                    self.process_message(message)
            for message in typed.tick():
                self.process_message(message)
            patience_s = _ESCAPE_S if ready else None

    def start_application_mode(self) -> None:
        """Start once, and query the terminal's background if the theme depends on it.

        SIGCONT calls this, and not only after a stop: a closed terminal sends it after SIGHUP.
        """
        if self._is_started:
            return
        before = self._writer_thread
        super().start_application_mode()  # type: ignore[no-untyped-call]
        self._is_started = self._writer_thread is not before  # in the background it waits instead
        if not self._is_started:
            return
        if settings := self._start.hand_over():
            self.attrs_before = settings
        self._waiting.maxsize = (
            0  # drawing must not block when the terminal does; `is_behind` keeps the queue short
        )
        if isinstance(self._app, AdaptiveApp):
            self._app.ask_background()

    def write(self, data: str) -> None:
        """Write, but do not enter a screen that has its first frame: terminals would empty it."""
        if data != ENTER_SCREEN or not self._start.is_drawn:
            super().write(data)

    @property
    def is_started(self) -> bool:
        """Whether the program has the terminal's screen."""
        return self._is_started

    @property
    def is_behind(self) -> bool:
        """Whether the terminal is slow to accept output, so that more would only queue up."""
        return self._waiting.qsize() > _MOST_WAITING if self._writer_thread else False

    @property
    def _waiting(self) -> Queue[str | None]:
        assert self._writer_thread is not None
        return self._writer_thread._queue  # noqa: SLF001  has no other way to tell

    def close(self) -> None:
        """Wait until everything is written; a terminal that accepts nothing gets the end when it reads again."""
        if self._writer_thread is not None and self._writer_thread.is_alive():
            self._waiting.put(None)
            self._writer_thread.join(_LAST_WRITES_S)
            if self._writer_thread.is_alive():
                drop_output(self._screen.fileno())
                self._writer_thread.join(_LAST_WRITES_S)

    def stop_application_mode(self) -> None:
        """Restore the terminal once; frames that a slow terminal has not accepted yet are dropped."""
        if not self._is_started:
            self._start.leave()
            return
        self._is_started = False
        with suppress(Empty):
            while True:
                self._waiting.get_nowait()
        self._screen.drop()
        super().stop_application_mode()

    def _report_background(self, dark: bool) -> None:
        if isinstance(self._app, AdaptiveApp):
            self._app.call_later(self._app.set_background, dark)

    def _read(self) -> bytes:
        # Some closed terminals fail here instead of reporting the end of input.
        with suppress(OSError):
            return os.read(self.fileno, _READ_BYTES)
        return b""


class Screen:
    """Output to the terminal; it is discarded once the terminal is gone, so that the program can end.

    Args:
        fileno: of the terminal.
        ascii_only: write nothing but ASCII.
    """

    def __init__(self, fileno: int, *, ascii_only: bool = False) -> None:
        self._fileno = fileno
        self._ascii_only = ascii_only
        self._pieces: list[str] = []
        self._drops = 0

    def fileno(self) -> int:
        """Return the terminal's descriptor."""
        return self._fileno

    def write(self, text: str) -> None:
        """Keep a text until `flush`."""
        self._pieces.append(text)

    def drop(self) -> None:
        """Drop unwritten output; another thread may be in `flush`."""
        self._pieces.clear()
        self._drops += 1

    def flush(self) -> None:
        """Write everything."""
        text, drops = "".join(self._pieces), self._drops
        data = (ascii_only(text) if self._ascii_only else text).encode(errors="replace")
        self._pieces.clear()
        while data:
            try:
                data = data[os.write(self._fileno, data[:_WRITE_BYTES]) :]
            except BlockingIOError:
                select([], [self._fileno], [], _LOOK_AGAIN_S)  # it does not wake up when output is dropped
            except OSError:
                return
            if data and self._drops != drops:
                drops, data = self._drops, f"{CANCEL}{SYNC_END}".encode()


class SelectableEvent(threading.Event):
    """An event that `select` can wait for."""

    def __init__(self) -> None:
        super().__init__()
        self._reader, self._writer = os.pipe()
        weakref.finalize(self, _close, self._reader, self._writer)

    def fileno(self) -> int:
        """Return the readable bytes while the event is set."""
        return self._reader

    def set(self) -> None:
        """Set it."""
        if not self.is_set():
            super().set()
            os.write(self._writer, b".")

    def clear(self) -> None:
        """Take it back."""
        if self.is_set():
            super().clear()
            os.read(self._reader, 1)


def _output() -> int:
    try:
        return open_output()
    except OSError:
        assert sys.__stderr__ is not None
        return sys.__stderr__.fileno()


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
