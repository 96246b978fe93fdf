"""Damaged traces of other programs: damage costs the events that it hits, and no others."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neurontools.profiler.exchange import chrome_text
from neurontools.profiler.exchange.chrome_text import ChromeText

if TYPE_CHECKING:
    from pathlib import Path


def event(number: int, **more: Any) -> dict[str, Any]:
    place = {"pid": 1, "tid": 2, "ts": number, "dur": 1}
    return {"ph": "X", "cat": "cpu_op", "name": f"op {number}", **place, **more}


def read(path: Path, data: bytes) -> tuple[list[str | None], ChromeText, int]:
    """Return the names of the events of a file, what else its reader says, and the longest text it decoded."""
    path.write_bytes(data)
    text = ChromeText(str(path))
    names: list[str | None] = []
    longest = 0
    for events, source in text.events():
        names += [each.name for each in events]
        longest = max(longest, len(source))
    return names, text, longest


@pytest.mark.parametrize(
    "layout",
    [
        '{{\n    "ph": "X",\n    "name": "{}",\n    "pid": 1,\n    "tid": 2,\n    "ts": 3.000,\n    "dur": 1.000\n  }}',
        '{{\n    "ph": "X", "cat": "c", "name": "{}", "pid": 1, "tid": 2,\n    "ts": 3.000, "dur": 1.000\n  }}',
    ],
    ids=["torch 2.13", "before"],
)
def test_quotes_in_names_that_torch_does_not_escape_are_read(home: Path, layout: str) -> None:
    texts = [layout.format(name) for name in ("a", 'step "x"', r"say \"yes\"", 'f("k", "v")', "b")]
    for count in (1, 2, 5):
        names, text, _ = read(home / "t.json", f'{{"traceEvents": [{",".join(texts[-count:])}]}}'.encode())
        assert names == ["a", 'step "x"', 'say "yes"', 'f("k", "v")', "b"][-count:]
        assert (text.damaged, text.truncated) == (0, False)


def test_damage_is_dealt_with_in_the_piece_that_has_it(home: Path) -> None:
    texts = [json.dumps(event(number)) for number in range(30_000)]
    texts[12_345] = texts[12_345].replace('"cat":', '"cat"')
    names, text, longest = read(home / "t.json", f"[{','.join(texts)}]".encode())
    assert names == [f"op {number}" for number in range(30_000) if number != 12_345]
    assert text.damaged == 1
    assert longest < 3 * chrome_text._PIECE


def test_an_event_longer_than_many_pieces_is_read(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chrome_text, "_PIECE", 100)
    long = event(1, args={"inner": [{"a": number} for number in range(5000)]})
    names, text, _ = read(home / "t.json", json.dumps([event(0), long, event(2)]).encode())
    assert names == ["op 0", "op 1", "op 2"]
    assert not text.damaged


@given(
    st.lists(
        st.sampled_from([{}, {"args": {"list": [{}, {"a": 1}, {}]}}, {"args": "}, {"}]),
        min_size=3,
        max_size=9,
    ),
    st.data(),
    st.sampled_from([None, 2]),
    st.sampled_from([1, 64, 1 << 16]),
    st.sampled_from(
        [('"pid": 1', '"pid" 1'), ('"ts": ', '"ts": ,'), ('"dur": 1', '"dur": {}'), (": 2", ": 2}")]
    ),
)
def test_one_damaged_event_costs_itself(
    tmp_path_factory: pytest.TempPathFactory,
    more: list[dict[str, Any]],
    data: st.DataObject,
    indent: int | None,
    piece: int,
    damage: tuple[str, str],
) -> None:
    texts = [json.dumps(event(number + 10, **each), indent=indent) for number, each in enumerate(more)]
    place = data.draw(st.integers(1, len(texts) - 2))
    if more[place]:
        return  # an inner object may look like an event after damage
    texts[place] = texts[place].replace(*damage, 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chrome_text, "_PIECE", piece)
        file = tmp_path_factory.mktemp("json") / "t.json"
        names, text, _ = read(file, f'{{"traceEvents": [{", ".join(texts)}], "s": [{{}}, {{}}]}}'.encode())
    assert names == [f"op {number + 10}" for number in range(len(more)) if number != place]
    assert (text.damaged, text.truncated) == (1, False)


@pytest.mark.parametrize(
    ("end", "damaged", "truncated"),
    [
        ("]", 0, False),
        ('], "traceName": "t.json"}', 0, False),
        ("", 0, True),
        ('] {"ph": "X"}, {}', 1, False),
        (', {"ph": "X", "name" "x"}]', 1, False),
        (', {"ph": "X", "na', 0, True),
    ],
    ids=["array", "object", "no end", "text after the end", "damaged last event", "cut last event"],
)
def test_what_the_end_of_a_file_is_like(home: Path, end: str, damaged: int, truncated: bool) -> None:
    start = f'{{"traceEvents": [{json.dumps(event(1))}, {json.dumps(event(2))}'
    names, text, _ = read(home / "t.json", (start + end).encode())
    assert names == ["op 1", "op 2"]
    assert (text.damaged, text.truncated) == (damaged, truncated)


@given(st.text('{}[]",:\\ \n1ae', max_size=40), st.integers(1, 3), st.sampled_from([1, 64, 1 << 16]))
def test_junk_after_events_costs_no_event_before_it(
    tmp_path_factory: pytest.TempPathFactory, junk: str, before: int, piece: int
) -> None:
    good = ", ".join(json.dumps(event(number)) for number in range(before + 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chrome_text, "_PIECE", piece)
        names, _, _ = read(tmp_path_factory.mktemp("json") / "t.json", f"[{good}, {junk}".encode())
    assert names[:before] == [f"op {number}" for number in range(before)]
