from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neurontools.base.filters import AGE, OPERATORS, TEXT, WORD, FilterCondition, FilterError
from neurontools.base.text import table
from neurontools.cache.entry_files import State
from neurontools.cache.fields import ALIASES, FIELDS, EntryFilter, parse_filters
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
        ("hits>-1", 5),
        ("hits>x", 5),
        ("hits>1_0", 5),
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
    field = draw(st.sampled_from(list(FIELDS)))
    values = draw(st.lists(_values(field), min_size=1, max_size=3))
    return FilterCondition(field, draw(st.sampled_from(OPERATORS[FIELDS[field].kind])), tuple(values))


def written(condition: FilterCondition) -> str:
    """Return a condition as text that `parse_filters` reads."""
    if FIELDS[condition.field].kind != AGE:
        return str(condition)
    return f"{condition.field}{condition.operator}{','.join(f'{value}s' for value in condition.values)}"


@given(st.lists(conditions(), min_size=1, max_size=4))
def test_what_is_written_is_read_again(made: list[FilterCondition]) -> None:
    read = parse_filters([" ".join(map(written, made))]).conditions
    assert [(each.field, each.operator, each.values) for each in read] == [
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
