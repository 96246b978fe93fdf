from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neurontools.base.filters import OPERATORS, TEXT, WORD, FilterCondition, FilterError
from neurontools.base.text import table
from neurontools.base.units import format_age, format_size, format_size_both, parse_age, parse_size
from neurontools.cache.entry_files import State
from neurontools.cache.fields import AGE, ALIASES, FIELDS
from neurontools.cache.filters import EntryFilter, parse_filters
from neurontools.commands.cache import main
from neurontools.errors import UsageError
from tests.cache.conftest import DAY, NOW, Tree
from tests.cache.entries import an_entry


def matches(text: str, **changes: object) -> bool:
    return parse_filters([text]).matches(an_entry(**changes), NOW)


@pytest.mark.parametrize(
    ("text", "changes", "wanted"),
    [
        ("state=failed", {"state": State.FAILED}, True),
        ("state=failed,todo", {"state": State.TODO}, True),
        ("state!=failed,todo", {"state": State.TODO}, False),
        ("STATE = Done", {"state": State.DONE}, True),
        ("size>1GB", {"size_bytes": 10**9 + 1}, True),
        ("size>1GB", {"size_bytes": 10**9}, False),
        ("size>=1GiB", {"size_bytes": 1 << 30}, True),
        ("size>=1GiB", {"size_bytes": (1 << 30) - 1}, False),
        ("size<=5", {"size_bytes": 5}, True),
        ("size<5", {"size_bytes": 5}, False),
        ("size!=5", {"size_bytes": 5}, False),
        ("used>30d", {"used_unix_s": NOW - 30 * DAY}, False),
        ("used>=30d", {"used_unix_s": NOW - 30 * DAY}, True),
        ("used<30d", {"used_unix_s": NOW - 30 * DAY}, False),
        ("tags=a,b", {"tags": ("b",)}, True),
        ("tags=a", {"tags": ("a", "b")}, False),
        ("tag~a", {"tags": ("a", "b")}, True),
        ("ours=yes pinned=yes", {"ours": True, "pinned": True}, True),
        ("layout=current", {}, True),
        ("accessed>30d", {"used_unix_s": NOW - 31 * DAY}, True),
        ("used<=30d", {"used_unix_s": NOW - 31 * DAY}, False),
        ("age<1h30m", {"made_unix_s": NOW - 5000}, True),
        ("compiler~2.16", {"compiler": "2.16.372.0+4a9b2326"}, True),
        ("compiler!~2.16", {"compiler": "2.16.372.0+4a9b2326"}, False),
        ("model~BERT", {"name": "tiny-bert"}, True),
        (
            "flags~'--model-type=transformer --auto'",
            {"flags": ("--model-type=transformer", "--auto-cast=all")},
            True,
        ),
        ("name=''", {"name": ""}, True),
        ("hits=0 pinned=no", {"hits": 0}, True),
        ("hits>2 state=done", {"hits": 2}, False),
    ],
)
def test_filters_mean_what_they_say(text: str, changes: dict[str, object], wanted: bool) -> None:
    assert matches(text, **changes) is wanted


def test_several_filters_must_all_hold() -> None:
    chosen = parse_filters(["state=done", "size>5"])
    assert chosen.matches(an_entry(size_bytes=6), NOW)
    assert not chosen.matches(an_entry(size_bytes=5), NOW)
    assert parse_filters([]) == EntryFilter()


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("", 0),
        ("   ", 3),
        ("colour=red", 0),
        ("state", 5),
        ("state>failed", 5),
        ("state=", 6),
        ("state=broken", 6),
        ("state=done,", 11),
        ("state=done,failed,x", 18),
        ("size>>1GB", 5),
        ("size>1XB", 5),
        ("size>1GB used>30", 14),
        ("used=30d", 4),
        ("hits>x", 5),
        ("name='open", 5),
        ("state=done'x'", 10),
        ("=x", 0),
        ("state=done && size>1", 11),
    ],
)
def test_an_error_points_at_the_character(text: str, position: int) -> None:
    with pytest.raises(FilterError) as caught:
        parse_filters([text])
    assert caught.value.position == position
    lines = caught.value.message.splitlines()
    assert lines[0].startswith(f"invalid filter at character {position + 1}: ")
    assert lines[2].index("^") == position + 2
    assert caught.value.remedy


def test_the_command_points_too(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    tree.done()
    assert main(["ls", "--filter", "state=done", "size>huge"]) == 2
    assert capsys.readouterr().err == (
        "error: invalid filter at character 6: invalid size 'huge'\n  size>huge\n       ^\n"
        "hint: use bytes or a unit, for example 4096, 20GB or 512MiB\n"
    )


def trouble(text: str) -> int:
    """Return the place of a filter's first mistake, 0 where there is none."""
    try:
        parse_filters([text])
    except FilterError as error:
        return error.position
    return 0


@given(st.text(max_size=40))
def test_any_text_is_read_or_refused_with_a_place(text: str) -> None:
    assert 0 <= trouble(text) <= len(text)


@given(st.text(alphabet="stateizhnmdue=!~<>, '\"019GBk", max_size=30))
def test_texts_that_nearly_are_filters_too(text: str) -> None:
    assert 0 <= trouble(text) <= len(text)


def _values(name: str) -> st.SearchStrategy[str | int]:
    if FIELDS[name].kind == WORD:
        return st.sampled_from([str(word) for word in FIELDS[name].words])
    if FIELDS[name].kind == TEXT:
        return st.text(st.characters(exclude_characters="'", categories=["L", "N", "P", "Zs"]), max_size=12)
    return st.integers(0, 10**9)


@st.composite
def conditions(draw: st.DrawFn) -> FilterCondition:
    field = draw(st.sampled_from([name for name in FIELDS if FIELDS[name].kind != AGE]))
    values = draw(st.lists(_values(field), min_size=1, max_size=3))
    return FilterCondition(field, draw(st.sampled_from(OPERATORS[FIELDS[field].kind])), tuple(values))


@given(st.lists(conditions(), min_size=1, max_size=4))
def test_what_is_written_is_read_again(made: list[FilterCondition]) -> None:
    written = parse_filters([" ".join(map(str, made))]).conditions
    assert [(each.field, each.operator, each.values) for each in written] == [
        (each.field, each.operator, each.values) for each in made
    ]


@given(conditions())
def test_a_negation_matches_what_the_condition_does_not(made: FilterCondition) -> None:
    opposite = {"=": "!=", "!=": "=", "~": "!~", "!~": "~"}.get(made.operator)
    if opposite is not None:
        value = FIELDS[made.field].value(an_entry(), NOW)
        assert made.matches(value) is not FilterCondition(made.field, opposite, made.values).matches(value)


def test_other_names_are_names_of_fields() -> None:
    assert set(ALIASES.values()) <= set(FIELDS)
    assert not set(ALIASES) & set(FIELDS)


def describe_fields() -> str:
    """Return one line for each field: name, aliases, operators, meaning."""
    rows = []
    for field in FIELDS.values():
        aliases = [alias for alias, name in ALIASES.items() if name == field.name]
        names = field.name + (f" ({', '.join(aliases)})" if aliases else "")
        meaning = field.meaning + (f": {', '.join(field.words)}" if field.words else "")
        rows.append(("  " + names, " ".join(OPERATORS[field.kind]), meaning))
    return table(None, rows, "<<<")


def test_help_lists_every_field_as_the_table_of_fields_has_it(capsys: pytest.CaptureFixture[str]) -> None:
    from neurontools.commands.cache import entries

    assert describe_fields() in entries._LS_EXAMPLES


@pytest.mark.parametrize(
    ("text", "reason"),
    [("name>3", "name does not support '>'"), ("name", "expected an operator after name")],
)
def test_a_wrong_or_missing_operator_is_named(text: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        parse_filters([text])


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("0", 0),
        ("17", 17),
        ("17B", 17),
        ("20GB", 20 * 10**9),
        ("20G", 20 * 10**9),
        ("20GiB", 20 * 2**30),
        ("20gib", 20 * 2**30),
        ("1.5 MB", 1_500_000),
        ("2K", 2000),
        ("1TiB", 2**40),
    ],
)
def test_sizes(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize("text", ["", "GB", "-1", "1e9", "10 apples", "1iB", "9" * 40, "1.2.3G", "inf"])
def test_what_is_not_a_size_is_reported(text: str) -> None:
    with pytest.raises(UsageError, match="size"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30d", 2_592_000),
        ("12h", 43_200),
        ("90s", 90),
        ("2w", 1_209_600),
        ("1h30m", 5400),
        ("0", 0),
        ("1.5h", 5400),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_age(text) == seconds


@pytest.mark.parametrize("text", ["", "30", "d", "-3d", "3 apples", "1d2", "1e3s", "nan"])
def test_what_is_not_a_duration_is_reported(text: str) -> None:
    with pytest.raises(UsageError, match="duration"):
        parse_age(text)


@given(st.text(max_size=12))
def test_no_text_makes_another_error(text: str) -> None:
    for parse in (parse_size, parse_age):
        try:
            assert parse(text) >= 0
        except UsageError:
            continue


@given(st.integers(0, 10**17))
def test_a_printed_size_reads_back_within_its_digits(size_bytes: int) -> None:
    assert parse_size(format_size(size_bytes)) == pytest.approx(size_bytes, rel=0.006)


@given(st.integers(0, 10**17))
def test_a_printed_size_stays_short(size_bytes: int) -> None:
    assert len(format_size(size_bytes)) <= 8
    assert len(format_size_both(size_bytes)) <= 24


@given(st.floats(0, 10**9))
def test_a_printed_duration_is_not_longer_than_the_true_one(seconds: float) -> None:
    assert parse_age(format_age(seconds)) <= seconds


def test_sizes_are_shown_by_1000_and_by_1024() -> None:
    assert format_size_both(20 * 10**9) == "20.0 GB (18.63 GiB)"
    assert format_size_both(500) == "500 B"
