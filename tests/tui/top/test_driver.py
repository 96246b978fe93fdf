"""How neuron-top reads its terminal."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable
from typing import Any

from textual._ansi_sequences import SYNC_END

from neurontools.tui.widgets.start_screen import CANCEL
from neurontools.tui.widgets.terminal_driver import Screen, SelectableEvent

Open = Callable[..., Any]


def is_readable(event: SelectableEvent | int) -> bool:
    return bool(select.select([event], [], [], 0)[0])


def test_an_event_is_readable_while_it_is_set() -> None:
    event = SelectableEvent()
    assert not is_readable(event)
    event.set()
    event.set()
    assert is_readable(event)
    event.clear()
    event.clear()
    assert not is_readable(event)


def test_frames_that_a_slow_terminal_has_not_accepted_are_dropped() -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    screen = Screen(writer)
    screen.write("x" * (1 << 20))
    thread = threading.Thread(target=screen.flush)
    thread.start()
    shown = os.read(reader, 4096)
    screen.drop()
    while thread.is_alive():
        shown += os.read(reader, 1 << 16) if is_readable(reader) else b""
    screen.write("the end")
    screen.flush()
    os.close(writer)
    while data := os.read(reader, 1 << 16):
        shown += data
    os.close(reader)
    assert len(shown) < 1 << 20
    assert shown.endswith(f"x{CANCEL}{SYNC_END}the end".encode())


def test_escape_alone_is_a_key_and_the_begin_of_a_sequence_is_not(terminal: Open) -> None:
    shown = terminal()
    shown.read_until("trn1.32xlarge")
    shown.press("p/")
    shown.read_until("filter (like")
    shown.press("abc")
    shown.read_until("filter: abc")
    shown.press("\x1b[D\x1b")
    shown.press("[Dx")
    shown.read_until("filter: axbc")
    shown.press("\x1b")
    shown.read_until("no process uses a device")
    shown.quit()


def test_letters_cut_in_two_are_read(terminal: Open) -> None:
    shown = terminal()
    shown.read_until("trn1.32xlarge")
    shown.send(b"p/\xc3")
    shown.send(b"\xa9t\xc3\xa9")
    shown.read_until("\u00e9t\u00e9")
    shown.quit("\x03", 130)
