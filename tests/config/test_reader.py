"""The reader of files that people write: values with lines and keys, all mistakes at once, YAML and JSON alike."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neurontools.config import reader, types
from neurontools.config.reader import FileError, FormatError, Problem, in_order, read_json, read_yaml


def texts(root):
    return [(problem.line, problem.text) for problem in in_order(root.problems)]


def plain(value):
    match value.kind:
        case reader.LIST:
            return [plain(item) for item in value.items()]
        case reader.MAPPING:
            return {key: plain(item) for key, item in value.section()}
        case reader.TEXT:
            return value.text
    return json.loads(value.text)


plain_texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=6)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | plain_texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(plain_texts, inner, max_size=3),
    max_leaves=10,
)


@given(values, st.sampled_from([None, 0, 3]))
def test_json_is_read_as_json(value, indent):
    assert plain(read_json(json.dumps(value, indent=indent))) == value


@pytest.mark.parametrize("read", [read_yaml, read_json])
def test_values_know_their_line_and_key(read):
    root = read('{"a":\n  [1,\n {"b": "x"}],\n "c": true}').section()
    item = root.items("a")[1]
    inner = item.section().get("b")
    assert (item.line, item.key) == (3, "a[1]")
    assert (inner.line, inner.key, inner.kind, inner.text) == (3, "a[1].b", reader.TEXT, "x")
    assert root.read("c", types.FLAG, None) is True


def test_all_mistakes_are_found_in_one_pass():
    root = read_yaml("count: many\nname: 7\nnam: x\nlist: [1, x]\nname: y\n")
    section = root.section()
    assert section.read("count", types.WHOLE, 3) == 3
    assert section.require("missing", types.DURATION) == 0.0
    assert section.read("list", types.list_of(types.WHOLE, "a list of numbers"), None) == [1]
    assert section.read("name", types.TEXT, None) == "y"
    section.finish()
    assert texts(root) == [
        (1, "'missing' is missing"),
        (1, "count: expected a whole number, found 'many'"),
        (3, "nam: unknown key; did you mean 'name'?"),
        (4, "list[1]: expected a whole number, found 'x'"),
        (5, "name: duplicate key, first in line 2; the last one is used"),
    ]


@pytest.mark.parametrize(
    ("text", "wanted", "expected"),
    [
        ("7", types.WHOLE, 7),
        ("0.5", types.NUMBER, 0.5),
        ("yes", types.FLAG, True),
        ("off", types.FLAG, False),
        ("5", types.DURATION, 5.0),
        (".5", types.DURATION, 0.5),
        ("1h30m", types.DURATION, 5400.0),
        ("2 MB", types.SIZE, 2e6),
        ("2 MiB", types.SIZE, 2 * 2**20),
        ("2.5%", types.PERCENT, 2.5),
        ("7", types.WORDS, "7"),
        ("b", types.choice(["a", "b"], "letter"), "b"),
    ],
)
def test_types(text, wanted, expected):
    root = read_yaml(text)
    assert root.read(wanted, None) == expected
    assert root.problems == []


@pytest.mark.parametrize(
    ("text", "wanted", "problem"),
    [
        ("-1", types.WHOLE, "expected a whole number, found -1"),
        ("0", types.whole(1), "expected a whole number of at least 1, found 0"),
        ("9", types.whole(1, 5), "expected a whole number from 1 to 5, found 9"),
        (".nan", types.NUMBER, "expected a number of at least 0, found .nan"),
        ("0", types.number(exclusive=True), "expected a number above 0, found 0"),
        ("'true'", types.FLAG, "expected true or false, found 'true'"),
        ("7", types.TEXT, "expected a text, found 7"),
        ("soon", types.DURATION, "expected a duration such as 500ms, 30s, 5m or 1h30m, found 'soon'"),
        ("0s", types.POSITIVE_DURATION, "expected a duration above 0 such as 500ms, 30s, 5m or 1h30m, found '0s'"),
        ("1 XB", types.SIZE, "expected a size such as 512 MiB, 12 GiB or a number of bytes, found '1 XB'"),
        ("wihte", types.choice(["white", "black"], "colour"), "unknown colour 'wihte'; did you mean 'white'?"),
        ("[1]", types.list_of(types.WHOLE, "a list of 2 numbers", count=2), "expected a list of 2 numbers, found a list of 1"),
        ("{a: 1}", types.WHOLE, "expected a whole number, found a mapping"),
        ("x" * 99, types.WHOLE, f"expected a whole number, found '{'x' * 45}...'"),
    ],
)  # fmt: skip
def test_what_is_not_of_a_type_is_reported(text, wanted, problem):
    root = read_yaml(text)
    assert root.read(wanted, "default") == "default"
    assert texts(root) == [(1, problem)]


def test_null_is_the_same_as_a_missing_key():
    section = read_yaml("a:\nb: null\n").section()
    assert section.get("a") is None
    assert section.read("b", types.WHOLE, 4) == 4
    section.finish()
    assert section.value.problems == []


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        (types.NUMBER, "1e+308", "1e+308 is too large; the maximum is 1e+18"),
        (types.NUMBER, ".nan", "expected a number of at least 0"),
        (types.WHOLE, "9" * 400, "is too large; the maximum is 1e+18"),
        (types.PERCENT, "1e300%", "1e300 is too large; the maximum is 1e+18"),
        (types.DURATION, "1e+308", "1e+308 is too large; the maximum is 100 years"),
        (types.DURATION, "200 y", "expected a duration"),
        (types.POSITIVE_DURATION, "1e-308", "expected a duration above 0"),
    ],
)
def test_numbers_that_overflow_are_mistakes(kind, text, message):
    root = read_yaml(f"a: {text}")
    assert root.section().read("a", kind, None) is None
    assert message in root.problems[0].text


def test_merge_keys_and_aliases():
    root = read_yaml("base: &base {a: 1, b: 2}\nnext: {<<: *base, b: 3}\nboth: {<<: [*base, {a: 9, c: 8}]}\n")
    assert plain(root) == {
        "base": {"a": 1, "b": 2},
        "next": {"a": 1, "b": 3},
        "both": {"a": 1, "b": 2, "c": 8},
    }
    assert root.problems == []


def test_a_value_that_contains_itself_ends():
    root = read_yaml("a: &a [*a]\n")
    assert root.section().get("a").items()[0].items()[0].key == "a[0][0]"


@pytest.mark.parametrize(
    ("read", "text", "line", "message"),
    [
        (read_yaml, "a: [1", 1, "not YAML: expected ',' or ']'"),
        (read_yaml, "a: \x07", 0, "not YAML: unacceptable character"),
        (read_yaml, b"\xff\xfe\xfd", 0, "not YAML: "),
        (read_yaml, 'a: 1\nb: "\\ud800"', 2, "a text has NUL or a lone surrogate"),
        (read_yaml, 'a: 1\n"\\0": 2', 2, "a text has NUL or a lone surrogate"),
        (read_json, '{"a":\n"\\udc80"}', 2, "a text has NUL or a lone surrogate"),
        (read_yaml, 'a: "\\U99999999"', 0, "not YAML: not a character"),
        (read_yaml, 'a: "\\UFFFFFFFF"', 0, "not YAML: not a character"),
        (read_yaml, "{a: " * 200, 0, "not YAML: nested too deeply"),
        (read_yaml, "[" * 9000, 0, "not YAML: nested too deeply"),
        (read_json, '{"a":\n oops}', 2, "not JSON: Expecting value"),
        (read_json, "[" * 100_000, 0, "not JSON: nested too deeply"),
    ],
)
def test_what_is_not_a_document_is_an_error(read, text, line, message):
    with pytest.raises(FormatError) as caught:
        read(text)
    assert caught.value.problem.line == line
    assert caught.value.problem.text.startswith(message)


def test_an_error_of_a_file_lists_its_mistakes_by_line():
    error = FileError(
        "f", [Problem(3, "b", "no"), Problem(1, "", "no", "yes"), Problem(3, "b", "no")], "read it"
    )
    assert error.message == "f has 2 mistakes\nf:1: no; yes\nf:3: b: no"
    assert error.remedy == "read it"
    assert FileError("f", [Problem(0, "", "gone")]).message == "f: gone"
