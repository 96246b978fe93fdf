"""The terminal before Textual has it: a frame, early keys, the background, and a terminal that is always restored."""

from __future__ import annotations

import os
import pty
import signal
import sys
import termios
from typing import TYPE_CHECKING

import pytest

from neurontools.tui.widgets.start_screen import CANCEL, ENTER_SCREEN, LEAVE_SCREEN, QUESTION, StartScreen
from tests.tui.terminal import Terminal, read_through

if TYPE_CHECKING:
    from collections.abc import Iterator

SHOW_CURSOR = b"\x1b[?25h"
WAITING = """
import signal
from neurontools.tui.widgets.start_screen import StartScreen
with StartScreen() as screen:
    assert screen.open()
    screen.draw("first frame")
    while True:
        try:
            signal.pause()
        except BaseException:  # as the import of some modules in C does
            pass
"""


@pytest.fixture
def master(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A terminal's other end; this process has the terminal."""
    ours, theirs = pty.openpty()
    with open(theirs, "r+b", buffering=0) as stream:
        monkeypatch.setattr(sys, "__stdin__", stream)
        monkeypatch.setattr(sys, "__stderr__", stream)
        yield ours
    os.close(ours)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT])
def test_a_signal_before_textual_runs_restores_the_terminal(number: signal.Signals) -> None:
    shown = Terminal("-P", "-c", WAITING, program="python")
    shown.read_until("first frame")
    shown.process.send_signal(number)
    assert shown.exit_code() == 128 + number
    assert shown.is_restored()
    shown.close()


def test_what_is_typed_early_is_not_echoed_and_stays(master: int) -> None:
    handlers = signal.getsignal(signal.SIGINT)
    with StartScreen() as screen:
        assert screen.open()
        os.write(master, b"\x03q\r")
        screen.draw("first frame")
        drawn = read_through(master, b"first frame")
        assert drawn.startswith(ENTER_SCREEN.encode())
        assert drawn.endswith(b"first frame")
        assert screen.hand_over() is not None
        assert not screen.is_drawn
        assert os.read(sys.__stdin__.fileno(), 16) == b"\x03q\r"  # type: ignore[union-attr]
    os.write(master, b"x")
    assert LEAVE_SCREEN.encode() not in drawn
    assert not termios.tcgetattr(master)[3] & termios.ECHO
    assert signal.getsignal(signal.SIGINT) is handlers


def test_a_terminal_without_a_frame_leaves_no_screen(master: int) -> None:
    before = termios.tcgetattr(master)
    handlers = signal.getsignal(signal.SIGTERM)
    with StartScreen() as screen:
        assert screen.open()
        assert termios.tcgetattr(master) != before
    assert termios.tcgetattr(master) == before
    assert signal.getsignal(signal.SIGTERM) is handlers
    os.set_blocking(master, False)
    with pytest.raises(BlockingIOError):
        os.read(master, 16)


@pytest.mark.parametrize(("colour", "dark"), [("rgb:ffff/ffff/ffff", False), ("rgb:0/0/0", True)])
def test_the_answer_about_the_background_is_read_and_kept_for_textual(
    master: int, colour: str, dark: bool
) -> None:
    typed = f"a\x1b]11;{colour}\x1b\\b".encode()
    with StartScreen() as screen:
        assert screen.open()
        screen.ask_background()
        assert read_through(master, QUESTION.encode()) == QUESTION.encode()
        os.write(master, typed)
        screen.wait_for_background(10)
        assert screen.is_dark is dark
        assert screen.take_typed() == typed
        assert screen.take_typed() == b""


def test_nobody_waits_for_a_terminal_that_does_not_answer_or_accepts_nothing(master: int) -> None:
    with StartScreen() as screen:
        assert screen.open()
        screen.wait_for_background(0)
        assert screen.is_dark is None
        screen.draw("x" * (1 << 20))
        assert screen.is_drawn
    shown = read_through(master, LEAVE_SCREEN.encode())
    assert shown.startswith(ENTER_SCREEN.encode())
    assert CANCEL.encode() in shown


def test_a_stop_leaves_the_screen_and_comes_back_to_the_frame(
    master: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = termios.tcgetattr(master)
    drawn = False
    written: list[bytes] = []

    def stop(_pid: int, number: int) -> None:
        assert number == signal.SIGSTOP
        assert termios.tcgetattr(master) == before
        written.append(read_through(master, SHOW_CURSOR) if drawn else b"")

    monkeypatch.setattr(os, "kill", stop)
    with StartScreen() as screen:
        assert screen.open()
        signal.raise_signal(signal.SIGTSTP)  # nothing is drawn yet
        assert termios.tcgetattr(master) != before
        screen.draw("first frame")
        drawn = True
        signal.raise_signal(signal.SIGTSTP)
        assert screen.is_drawn
        assert termios.tcgetattr(master) != before
        written.append(read_through(master, b"first frame"))
    assert len(written) == 3
    assert written[1].startswith(ENTER_SCREEN.encode())  # so the first stop wrote nothing
    assert written[1].partition(b"first frame")[2] == b"\x1b[?7h" + LEAVE_SCREEN.encode() + SHOW_CURSOR
    assert written[2].startswith(ENTER_SCREEN.encode())
    assert signal.getsignal(signal.SIGTSTP) is signal.SIG_DFL


def test_in_the_background_the_terminal_is_left_alone(master: int, monkeypatch: pytest.MonkeyPatch) -> None:
    before = termios.tcgetattr(master)
    monkeypatch.setattr(os, "tcgetpgrp", lambda _: os.getpgrp() + 1)
    with StartScreen() as screen:
        assert not screen.open()
        assert termios.tcgetattr(master) == before
    monkeypatch.undo()
    with StartScreen() as screen:
        monkeypatch.setattr(os, "ttyname", lambda _: "/nonexistent/terminal")
        assert not screen.open()
