"""What config.yaml means: plain lines and yaml mean the same, nonsense is named with its line and changes nothing."""

from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neurontools import env
from neurontools.configuration import KINDS, load, plain_entries
from neurontools.configuration_yaml import NotSettingsError, yaml_entries


def values(path):
    return {key: value for key, (value, _) in load(str(path)).values.items()}


def problems(path):
    return [(problem.line, problem.message) for problem in load(str(path)).problems]


GOOD = [
    ("machine: ci\n", {"machine": "ci"}),
    ("machine: 'ci'  # quoted\n", {"machine": "ci"}),
    ("{machine: ci, pace: true}", {"machine": "ci", "pace": "1"}),
    ("---\nmachine: ci\n", {"machine": "ci"}),
    ("# nothing\n\n", {}),
    ("", {}),
    ("machine:\ninstance: null\n", {}),
    ("emulate: 2.28", {"emulate": "2.28"}),
    ("emulate: '2.32'", {"emulate": "2.32"}),
    (
        "autostart: no\npace: ON\ncustomop_inprocess: 1\n",
        {"autostart": "0", "pace": "1", "customop_inprocess": "1"},
    ),
    ("host_memory: 25%", {"host_memory": "25%"}),
    ("host_memory: 8GiB", {"host_memory": "8GiB"}),
    ("runtime_dir: /srv/neuron", {"runtime_dir": "/srv/neuron"}),
    ("runtime_dir: /srv/with space/neuron", {"runtime_dir": "/srv/with space/neuron"}),
    ("machine: ci\r\ninstance: trn1.2xlarge\r\n", {"machine": "ci", "instance": "trn1.2xlarge"}),
    ("machine: größe\n", {"machine": "größe"}),
]


@pytest.mark.parametrize(("text", "expected"), GOOD)
def test_a_file_means_what_it_says(config, text, expected):
    path = config(text)
    assert values(path) == expected
    assert problems(path) == []


def test_a_path_may_start_with_the_home_directory(config, home):
    assert values(config("runtime_dir: ~/neuron")) == {"runtime_dir": f"{home}/neuron"}


BAD = [
    ("machin: ci", [(1, "unknown setting 'machin'")]),
    ("\n# c\nmachine: ci\ncolour: red", [(4, "unknown setting 'colour'")]),
    ("pace: maybe", [(1, "'pace' must be true or false, not 'maybe'")]),
    ("pace: [1]", [(1, "'pace' must be true or false, not a list or a mapping")]),
    ("emulate: 2.30", [(1, "'emulate' must be 2.32 or 2.28, not '2.30'")]),
    (
        "runtime_dir: here",
        [(1, "'runtime_dir' must be an absolute path, or one that starts with ~/, not 'here'")],
    ),
    (
        "host_memory: much",
        [(1, "'host_memory' must be a share such as 25% or a size such as 8GiB, not 'much'")],
    ),
    ("machine: a b", [(1, "'machine' must be a text without spaces, not 'a b'")]),
    ("machine: ci\nmachine: other", [(2, "'machine' is set in line 1 already")]),
    ("- machine", [(1, "holds no settings: lines such as 'machine: ci' are wanted")]),
    ("just words", [(1, "holds no settings: lines such as 'machine: ci' are wanted")]),
    ("machine: 'ci\npace: 1\n", [(3, "is not YAML: found unexpected end of stream")]),
    ("machine: ci\n\tpace: 1\n", [(2, "is not YAML: found character '\\t' that cannot start any token")]),
    ("? [a]\n: b\n", [(1, "unknown setting '?'")]),
    ("machine: ci\n---\nmachine: other\n", [(2, "is not YAML: but found another document")]),
    (b"\xff\xfe\xfd", None),
    ("machine: \x07", None),
    ("a: &a [*a]\n" + "[" * 5000, None),
]


@pytest.mark.parametrize(("text", "expected"), BAD)
def test_nonsense_is_named_with_its_line(config, text, expected):
    path = config(text)
    found = load(str(path))
    assert found.problems
    assert all("\n" not in problem.message and problem.remedy for problem in found.problems)
    if expected is not None:
        assert problems(path) == expected


def test_an_unknown_setting_comes_with_the_nearest_one(config):
    assert load(str(config("machin: ci"))).problems[0].remedy == "did you mean 'machine'?"
    assert load(str(config("xyzzy: ci"))).problems[0].remedy == "'neurontools config show' lists the settings"


def test_one_bad_line_leaves_the_others_alone(config):
    assert values(config("machine: ci\npace: maybe\nnonsense: 1\ninstance: inf2.xlarge\n")) == {
        "machine": "ci",
        "instance": "inf2.xlarge",
    }


def test_what_is_no_file_is_named(config, home):
    path = config("")
    path.unlink()
    assert not load(str(path)).exists
    path.mkdir()
    assert problems(path) == [(0, "is not a file")]
    path.rmdir()
    os.mkfifo(path)
    assert problems(path) == [(0, "is not a file")]
    path.unlink()
    path.symlink_to("/nowhere")
    assert problems(path) == []
    path.unlink()
    path.write_bytes(b"#" * (1 << 21))
    assert problems(path) == [(0, "is larger than 1048576 bytes")]


def test_a_file_that_may_not_be_read_is_named(config, monkeypatch):
    path = config("machine: ci")

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    assert problems(path) == [(0, "cannot be read: Permission denied")]


PIECES = st.sampled_from(
    [*KINDS, "machine: ci", "pace: yes", ": ", ":", " ", "  ", "\n", "\n\n", "#", " # ", "'", '"', "~", "~/x", "/a/b", "null", "-",
     "- ", "?", "&", "*", "!", "|", ">", "%", "@", "`", "{", "}", "[", "]", ",", "=", "<<", "\t", "\r\n", "---", "...", "1", "2.30", "0x1F", "é"]
)  # fmt: skip


@settings(max_examples=400)
@given(st.lists(PIECES, max_size=14).map("".join))
def test_what_is_read_without_yaml_means_the_same_to_yaml(text):
    plain = plain_entries(text.encode())
    if plain is None:
        return
    assert plain == yaml_entries(text.encode())


LINES = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from([*KINDS, "other_1"]),
            st.from_regex(r"[A-Za-z0-9/][A-Za-z0-9./_+%-]{0,8}", fullmatch=True),
        ).map(lambda pair: f"{pair[0]}: {pair[1]}"),
        st.sampled_from(["", "# comment: [", "machine: ci # why"]),
    ),
    max_size=6,
).map("\n".join)


@settings(max_examples=300)
@given(LINES)
def test_most_plain_files_need_no_yaml_and_mean_the_same(text):
    plain = plain_entries(text.encode())
    try:
        by_yaml = yaml_entries(text.encode())
    except NotSettingsError:
        by_yaml = None
    keys = [line.partition(":")[0] for line in text.split("\n") if line and line[0] != "#"]
    if len({*keys}) == len(keys) and not any(null in text for null in ("null", "Null", "NULL")):
        assert plain is not None
    assert plain is None or plain == by_yaml


SECTION = """\
top:  # of neuron-top
  theme: light                 # a comment
  interval: 2

  columns: [pid, tag, p99]
  keys:
    quit: Q
    # a comment: [
    processes.filter: [slash, ctrl+f]
  alerts:
      straggler: {threshold: 2, for: 10}
      ecc: false
"""


@pytest.mark.parametrize("text", [SECTION, f"machine: ci\n{SECTION}pace: no\n", SECTION + "# end"])
def test_the_section_of_a_tool_needs_no_yaml(text):
    assert plain_entries(text.encode()) == yaml_entries(text.encode())
    assert ("top", None) in [(key, value) for key, value, _ in plain_entries(text.encode())]


SECTION_LINES = st.tuples(
    st.sampled_from(["", " ", "  ", "    "]),
    st.sampled_from(
        ["a: b", "a:", "b: [x, y]", "c: {x: 1}", "# why", "", "- x", "a:b", "a: 'b'", "d: [", "e: b c", "- ", "a: *b", "[]", "x", "f: [,]",
         "g: b: c", "h: {x, y: }", "machine: ci", "top:", "a #: b", "i: b # why", "j: []", "null: 1", "k: -1", "1: 2", "l: ,", "\t"]
    ),
).map("".join)  # fmt: skip


@settings(max_examples=600)
@given(st.lists(SECTION_LINES, max_size=7))
def test_a_section_that_is_passed_over_means_the_same_to_yaml(lines):
    text = "\n".join(["top:", *lines]).encode()
    plain = plain_entries(text)
    if plain is not None:
        assert plain == yaml_entries(text)


@settings(max_examples=200)
@given(st.binary(max_size=60))
def test_no_file_makes_it_fail(home_file, data):
    home_file.write_bytes(data)
    load(str(home_file))


@pytest.fixture(scope="module")
def home_file(tmp_path_factory):
    return tmp_path_factory.mktemp("settings") / "config.yaml"


def test_every_setting_is_documented_and_every_documented_variable_is_a_setting():
    documented = {
        name.removeprefix(env.PREFIX).lower() for name, _, _ in env.DOCUMENTED if name not in env.FOR_CHILDREN
    }
    assert documented == {*KINDS}
