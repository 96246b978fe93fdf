import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neurontools.base import text
from neurontools.errors import NeuronToolsError


def test_columns_are_aligned_and_lines_end_without_blanks():
    printed = text.table(["NAME", "SIZE"], [["a", "1"], ["long", "22"]], "<>")
    assert printed.splitlines() == ["NAME  SIZE", "a        1", "long    22"]


def test_a_table_without_a_head_or_rows():
    assert text.table(None, [["a", "b"]], "<<") == "a  b"
    assert text.table(["A", "B"], [], "<<") == "A  B"


def test_text_columns_shrink_in_the_middle_before_optional_ones_are_dropped():
    rows = [["x" * 40, "1", "2"]]
    assert text.table(["NAME", "A", "B"], rows, "<>>", width=26, optional=[2]).splitlines() == [
        "NAME                  A  B",
        "xxxxxxxxx..xxxxxxxxx  1  2",
    ]
    assert text.table(["NAME", "A", "B"], rows, "<>>", width=19, optional=[2]).splitlines() == [
        "NAME              A",
        "xxxxxxx..xxxxxxx  1",
        "(too narrow for b)",
    ]


@given(st.text(), st.integers(0, 30))
def test_a_shortened_text_is_never_longer_than_its_width(value, width):
    assert len(text.shorten(value, width)) <= max(width, 0) or len(value) <= width


def test_shorten_keeps_both_ends():
    assert text.shorten("MODULE_1234567890+abcdef", 12) == "MODUL..bcdef"


def test_words_of_a_wrapped_text_stay_whole():
    assert text.wrap("see /a/very-long/path now", 10, first_indent="- ", indent="  ") == [
        "- see",
        "  /a/very-long/path",
        "  now",
    ]


def test_plural():
    assert [text.plural(n, "entry", "entries") for n in (0, 1, 2)] == ["0 entries", "1 entry", "2 entries"]
    assert text.plural(2, "core") == "2 cores"


@pytest.mark.parametrize(
    ("character", "shown"),
    [
        ("\x1b", "\\u001b"),
        ("\n", "\\n"),
        ("\t", "\\t"),
        ("\r", "\\r"),
        ("\x07", "\\u0007"),
        ("\x7f", "\\u007f"),
        ("\x9b", "\\u009b"),
        ("\u200b", "\\u200b"),
        ("\u2028", "\\u2028"),
        ("\u202e", "\\u202e"),
        ("\u2067", "\\u2067"),
        ("\ud800", "\\ud800"),
        ("\udcff", "\\udcff"),
        ("\U000e0001", "\\udb40\\udc01"),
    ],
)
def test_a_character_that_could_control_a_terminal_becomes_its_json_escape(character, shown):
    assert text.printable(f"a{character}b") == f"a{shown}b"
    assert json.loads(f'"{shown}"') == character


@pytest.mark.parametrize("harmless", ["", "plain", "a b", "a\\b", "naïve 訓練 🚀 e\u0301 a\xa0b c\u3000d"])
def test_harmless_text_stays(harmless):
    assert text.printable(harmless) == harmless
    assert text.printable_lines(harmless) == harmless


def test_lines_keep_newlines_and_tabs():
    assert text.printable_lines("a\n\tb\x1b]0;x\x07\r\n") == "a\n\tb\\u001b]0;x\\u0007\\r\n"


@given(st.text(st.characters(exclude_categories=())))
def test_the_bytes_of_a_line_hold_no_control_characters(drawn):
    shown = text.printable_lines(drawn).encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    assert not [c for c in shown if unicodedata.category(c) in {"Cc", "Cs"} and c not in "\n\t"]
    assert not [c for c in shown if "\u202a" <= c <= "\u202e" or "\u2066" <= c <= "\u2069"]


@pytest.mark.parametrize("raw", [b"\xc2\x9b", b"\xe2\x80\xae", b"\xd8\x9c", b"\xe2\x81\xa7"])
def test_surrogates_cannot_be_joined_to_a_control_character(raw):
    smuggled = "".join(chr(0xDC00 + byte) for byte in raw)
    assert (
        text.printable_lines(smuggled).encode("utf-8", "surrogateescape").decode(errors="replace")
        != raw.decode()
    )
    assert text.printable_lines("\udcff") == "\udcff"


def test_only_our_colours_stay_in_styled_lines():
    styled = "\x1b[1;31merror\x1b[0m \x1b[1m\x1b[8mhidden\x1b[2J\x1b[30m\n"
    assert text.printable_lines(styled, styled=True) == (
        "\x1b[1;31merror\x1b[0m \x1b[1m\\u001b[8mhidden\\u001b[2J\\u001b[30m\n"
    )
    assert "\x1b" not in text.printable_lines(styled)


def test_an_error_is_one_line_and_its_hint():
    error = NeuronToolsError("cannot read a\nhint: rm -rf /", "check \x1b[2J")
    assert text.format_error(error) == "error: cannot read a\\nhint: rm -rf /\nhint: check \\u001b[2J\n"
    assert text.format_error(NeuronToolsError("no")) == "error: no\n"


def test_an_error_of_several_lines_keeps_them():
    class LongError(NeuronToolsError):
        has_lines = True

    assert text.format_error(LongError("a\n  b\x9b", "c")) == "error: a\n  b\\u009b\nhint: c\n"


def test_suggestions():
    assert text.suggest("prnue", ["prune", "stats"]) == "prune"
    assert text.suggest("zzz", ["prune", "stats"]) is None
    assert text.suggest("foo", ["oom", "oob"]) is None
    assert text.did_you_mean("prnue", ["prune", "stats"]) == "did you mean 'prune'?"
    assert text.did_you_mean("zzz", ["prune", "stats"]) == "known: prune, stats"


def test_a_field_is_wrapped_below_its_value():
    assert (
        text.wrap_field("  name        one two three", 20)
        == "  name        one\n              two\n              three"
    )
    assert text.wrap_field("  name        one two three", None) == "  name        one two three"
    assert (
        text.wrap_field("  path        /a/long/path/in/one/piece", 20)
        == "  path        /a/long/path/in/one/piece"
    )
    assert text.did_you_mean("zzz", ["prune"], otherwise="see --help") == "see --help"


@pytest.mark.parametrize(
    ("variables", "shows"),
    [
        ({}, True),
        ({"LANG": "de_DE.UTF-8"}, True),
        ({"LC_ALL": "C.UTF-8", "LANG": "C"}, True),
        ({"LC_ALL": "C", "LANG": "de_DE.UTF-8"}, False),
        ({"LC_ALL": "POSIX"}, False),
        ({"LC_CTYPE": "C", "LANG": "de_DE.UTF-8"}, False),
        ({"LANG": "C"}, False),
        ({"LANG": "C", "LC_CTYPE": "C.UTF-8"}, False),  # set by Python
        ({"LC_CTYPE": "C.UTF-8"}, True),
    ],
)
def test_a_terminal_shows_utf8_unless_the_locale_says_otherwise(variables, shows):
    assert text.shows_utf8("utf-8", variables) is shows
    assert not text.shows_utf8("latin-1", variables)
    assert not text.shows_utf8(None, variables)
