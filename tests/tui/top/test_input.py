"""What a terminal sends: keys come through whatever stands before them, and nothing ends the program."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from textual import events

from neurontools.tui.widgets.start_screen import QUESTION
from neurontools.tui.widgets.terminal_driver import TerminalInput

if TYPE_CHECKING:
    from textual.message import Message

Open = Callable[..., Any]
LIGHT = "\x1b]11;rgb:ffff/fafa/f0f0\x1b\\"


def keys_of(messages: Iterable[Message]) -> list[str]:
    return [message.key for message in messages if isinstance(message, events.Key)]


@pytest.mark.parametrize(
    "nonsense",
    [
        "",
        "\x1b[99999999999u",
        "\x1b[1114112u",
        "\x1b[:1u",
        "\x1b[1:::A",
        "\x1b[:201~",
        "\x1b[1;99999999999999A",
    ],
)
def test_a_key_after_invalid_input_is_read(nonsense: str) -> None:
    typed = TerminalInput()
    list(typed.feed(nonsense))
    assert keys_of(typed.feed("p\x1b[B")) == ["p", "down"]


pieces = st.sampled_from(
    [
        "\x1b",
        "[",
        "<",
        "0",
        "1",
        "99999999999",
        ";",
        ":",
        "M",
        "m",
        "u",
        "~",
        "A",
        "?",
        "$",
        "y",
        "O",
        "\x00",
        "é",
        "",
    ]
)


@settings(max_examples=200)
@given(st.lists(st.lists(pieces, max_size=8).map("".join), max_size=5))
def test_no_input_ends_it(inputs: list[str]) -> None:
    typed = TerminalInput()
    for text in inputs:
        list(typed.feed(text))
    list(typed.feed("\x1b[201~" + " " * 40))
    assert keys_of(typed.feed("p"))[-1:] == ["p"]


@pytest.mark.parametrize(
    ("pasted", "text"),
    [
        ("tag~a\rK", "tag~a\rK"),
        ("ab\x1b[31mKy", "ab[31mKy"),
        ("\x1b\x1b[2\x1b[20", "[2[20"),
        ("", ""),
    ],
)
@pytest.mark.parametrize("cut", [1, 9, 200])
def test_a_paste_types_no_keys_whatever_is_in_it(pasted: str, text: str, cut: int) -> None:
    typed = TerminalInput()
    sent = f"\x1b[200~{pasted}\x1b[201~q"
    found = [message for part in (sent[:cut], sent[cut:]) for message in typed.feed(part)]
    assert [one.text for one in found if isinstance(one, events.Paste)] == [text]
    assert keys_of(found) == ["q"]


def test_the_mouse_position_outlives_invalid_input() -> None:
    typed = TerminalInput()
    list(typed.feed("\x1b[<0;10;5M\x1b[:1u"))
    moved = [one for one in typed.feed("\x1b[<35;12;6M") if isinstance(one, events.MouseEvent)]
    assert [(one.delta_x, one.delta_y) for one in moved] == [(2, 1)]


def test_an_unexpected_answer_and_invalid_input_do_not_end_it(terminal: Open) -> None:
    shown = terminal(TERM="xterm-256color", COLORTERM="truecolor")
    shown.read_until("trn1.32xlarge")
    assert QUESTION.encode() in shown.output
    shown.press(LIGHT)
    shown.read_until_bytes(b"48;2;255;255;255m")
    shown.press("\x1b[99999999999u")
    shown.press("p")
    shown.read_until("Processes (")
    shown.quit()
