"""JSON that may be hostile: what is returned can be held, printed and written; everything else is a ValueError."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neurontools.base.json_reader import load_json

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_characters="\0", codec="utf-8")),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.text(st.characters(exclude_characters="\0", codec="utf-8")), inner)
    ),
    max_leaves=20,
)


@given(plain, st.booleans())
def test_ordinary_values_come_back(value: object, is_ascii: bool) -> None:
    text = json.dumps(value, ensure_ascii=is_ascii)
    assert load_json(text) == load_json(text.encode()) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "NaN",
        "[Infinity]",
        "-Infinity",
        "1e400",
        "[-1e400]",
        str(2**63),
        str(-(2**63) - 1),
        pytest.param("9" * 5000, id="digits"),
        '"\\ud800"',
        '["a\\u0000"]',
        '{"\\udc00": 1}',
        '"a\0"',
        pytest.param("[" * 100_000, id="brackets"),
        pytest.param('{"a":' * 5000 + "0" + "}" * 5000, id="deep objects"),
        pytest.param("[" * 201 + "]" * 201, id="201 lists"),
        b'"\xff"',
        b'"\xed\xa0\x80"',
    ],
)
def test_everything_else_is_refused(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        load_json(text)


def test_command_lines_may_hold_any_bytes() -> None:
    assert load_json('["\\udcff", "a\\u0000"]', any_text=True) == ["\udcff", "a\0"]
    with pytest.raises(ValueError, match=r"too large"):
        load_json("1e400", any_text=True)


def test_what_programs_write_is_not_too_deep() -> None:
    wide, deep = [[{}] * 300] * 300, json.loads("[" * 200 + "]" * 200)
    assert load_json(json.dumps([wide])) == [wide]
    assert load_json(json.dumps(deep)) == deep
