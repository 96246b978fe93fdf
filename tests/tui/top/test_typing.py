"""Keys that come all at once are taken one after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Open = Callable[..., Any]


def test_what_is_typed_right_behind_the_key_of_a_prompt_is_in_the_prompt(terminal: Open) -> None:
    shown = terminal()
    shown.read_until("trn1.32xlarge")
    shown.press("p")
    shown.read_until("LAT50")
    shown.press("/abc")
    shown.read_until("abc")
    shown.quit("\x03", 130)


@pytest.mark.parametrize("end", ["\r", "\x1b[13u"])
def test_page_prompt_filter_and_the_keys_behind_it_in_one_write(terminal: Open, end: str) -> None:
    shown = terminal()
    shown.read_until("trn1.32xlarge")
    shown.press(f"p/tag~zebra{end}o?")
    shown.read_until("Keys")
    shown.press("\x1b")
    shown.read_until("Memory Details")
    shown.press("p")
    shown.read_until("tag~zebra")
    shown.quit()


def test_a_paste_goes_where_the_keys_before_it_lead(terminal: Open) -> None:
    shown = terminal()
    shown.read_until("trn1.32xlarge")
    shown.press("p/\x1b[200~tag~zebra\x1b[201~\r")
    shown.press("o")
    shown.read_until("Memory Details")
    shown.press("p")
    shown.read_until("tag~zebra")
    shown.quit()


def test_what_is_typed_into_the_palette_at_once_is_searched_for(terminal: Open) -> None:
    shown = terminal()
    shown.read_until("trn1.32xlarge")
    shown.press("\x10light")
    shown.read_until("theme: light")
    shown.quit("\x03", 130)


def test_the_last_of_many_keys_counts(terminal: Open) -> None:
    shown = terminal()
    shown.read_until("trn1.32xlarge")
    shown.quit("phdeoxf" * 20 + "q")
