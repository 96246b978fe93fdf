import pytest
from hypothesis import given
from hypothesis import strategies as st

from neurontools.base import text


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


@pytest.mark.parametrize("character", ["\x1b", "\n", "\x07", "\x9b", "\u202e", "\ud800"])
def test_control_characters_are_replaced(character):
    assert text.printable(f"a{character}b") == "a?b"


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
