"""What config.yaml means: mistakes are reported with line and key and change nothing."""

from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neurontools import env
from neurontools.config.settings import KINDS, load


def values(path):
    return {key: value for key, (value, _) in load(str(path)).values.items()}


def problems(path):
    return [(problem.line, problem.text) for problem in load(str(path)).problems]


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


IGNORED = "; its settings are not used"
DEFAULT = "; the default is used"
BAD = [
    ("machin: ci", [(1, "machin: unknown setting; did you mean 'machine'?")]),
    (
        "\n# c\nmachine: ci\ncolour: red",
        [(4, "colour: unknown setting; 'neurontools config show' lists the settings")],
    ),
    ("colour:\n  top: red", [(1, "colour: unknown setting; 'neurontools config show' lists the settings")]),
    ("pace: maybe", [(1, "pace: expected true or false, found 'maybe'" + DEFAULT)]),
    ("pace: [1]", [(1, "pace: expected true or false, found a list of 1" + DEFAULT)]),
    ("emulate: 2.30", [(1, "emulate: expected 2.32 or 2.28, found 2.30" + DEFAULT)]),
    (
        "runtime_dir: here",
        [
            (
                1,
                "runtime_dir: expected an absolute path, or a path that starts with ~/, found 'here'"
                + DEFAULT,
            )
        ],
    ),
    (
        "host_memory: much",
        [(1, "host_memory: expected a share such as 25% or a size such as 8GiB, found 'much'" + DEFAULT)],
    ),
    ("machine: a b", [(1, "machine: expected a text without spaces, found 'a b'" + DEFAULT)]),
    ("machine: ci\nmachine: other", [(2, "machine: duplicate key, first in line 1; the last one is used")]),
    ("- machine", [(1, "expected settings such as 'machine: ci'" + IGNORED)]),
    ("just words", [(1, "expected settings such as 'machine: ci'" + IGNORED)]),
    ("machine: 'ci\npace: 1\n", [(3, "not YAML: found unexpected end of stream" + IGNORED)]),
    (
        "machine: ci\n\tpace: 1\n",
        [(2, "not YAML: found character '\\t' that cannot start any token" + IGNORED)],
    ),
    ("? [a]\n: b\n", [(1, "?: unknown setting; 'neurontools config show' lists the settings")]),
    ("machine: ci\n---\nmachine: other\n", [(2, "not YAML: but found another document" + IGNORED)]),
    (b"\xff\xfe\xfd", None),
    ("machine: \x07", None),
    ("a: &a [*a]\n" + "[" * 5000, None),
]


@pytest.mark.parametrize(("text", "expected"), BAD)
def test_a_mistake_is_reported_with_its_line(config, text, expected):
    path = config(text)
    found = load(str(path))
    assert found.problems
    assert all("\n" not in problem.text and problem.hint for problem in found.problems)
    if expected is not None:
        assert problems(path) == expected


def test_one_bad_line_leaves_the_others_alone(config):
    assert values(config("machine: ci\npace: maybe\nnonsense: 1\ninstance: inf2.xlarge\n")) == {
        "machine": "ci",
        "instance": "inf2.xlarge",
    }


def test_a_path_that_is_not_a_file_is_reported(config, home):
    path = config("")
    path.unlink()
    assert not load(str(path)).exists
    path.mkdir()
    assert problems(path) == [(0, "cannot be read: not a regular file" + IGNORED)]
    path.rmdir()
    os.mkfifo(path)
    assert problems(path) == [(0, "cannot be read: not a regular file" + IGNORED)]
    path.unlink()
    path.symlink_to("/nowhere")
    assert problems(path) == []
    path.unlink()
    path.write_bytes(b"#" * (1 << 21))
    assert problems(path) == [(0, "cannot be read: larger than 1048576 bytes" + IGNORED)]


def test_a_file_that_cannot_be_read_is_reported(config, monkeypatch):
    path = config("machine: ci")

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        assert problems(path) == [(0, "cannot be read: Permission denied" + IGNORED)]


PIECES = st.sampled_from(
    [*KINDS, "machine: ci", "pace: yes", ": ", ":", " ", "  ", "\n", "\n\n", "#", " # ", "'", '"', "~", "~/x", "/a/b", "null", "-",
     "- ", "?", "&", "*", "!", "|", ">", "%", "@", "`", "{", "}", "[", "]", ",", "=", "<<", "\t", "\r\n", "---", "...", "1", "2.30", "0x1F", "é"]
)  # fmt: skip


@settings(max_examples=300)
@given(st.lists(PIECES, max_size=14).map("".join))
def test_every_value_that_is_used_is_valid(home_file, text):
    home_file.write_text(text)
    for key, (value, line) in load(str(home_file)).values.items():
        assert key in KINDS
        assert value
        assert line >= 1


SECTION = """\
top:  # of neuron-top
  theme: light
  keys: {quit: Q}
"""


@pytest.mark.parametrize("text", [f"machine: ci\n{SECTION}pace: no\n", SECTION + "machine: ci\npace: no"])
def test_the_section_of_a_tool_is_left_to_the_tool(config, text):
    path = config(text)
    assert values(path) == {"machine": "ci", "pace": "0"}
    assert problems(path) == []


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


def test_without_a_home_directory_no_settings_are_read_from_the_working_directory(config, monkeypatch, home):
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", "relative")
    path = config("machine: planted\n")
    assert path.resolve().is_relative_to(home / "relative")
    assert env.machine() == "default"
    assert env.configuration() is None
