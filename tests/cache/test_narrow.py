"""Tables on narrow terminals: nothing wraps, names stay recognisable, and a pipe gets all of it."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neurontools.base.text import shorten, table, wrap_field
from neurontools.cache.layouts import display_path
from tests.cache.trees import lay_out
from tests.tui.terminal import read_to_end

VERBS = (
    "ls",
    "ls --columns state,size,path,flags,compiler",
    "ls --registry",
    "locks",
    "verify",
    "prune --failed --older-than 30d --dry-run",
)


def on_terminal(width: int, *arguments: str) -> list[str]:
    """Run neuron-cache on a terminal of so many columns and return its lines."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    command = [str(Path(sys.executable).parent / "neuron-cache"), *arguments]
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    with subprocess.Popen(command, stdin=follower, stdout=follower, env=environment):
        os.close(follower)
        shown = read_to_end(leader)
    os.close(leader)
    return shown.decode().split("\r\n")


@pytest.mark.parametrize("verb", VERBS)
def test_no_line_of_a_table_is_wider_than_the_terminal(home: Path, verb: str) -> None:
    root = str(lay_out("generations", home / "c"))
    for width in (80, 60):
        lines = on_terminal(width, *verb.split(), "--cache-dir", root)
        assert len(lines) > 3
        assert [line for line in lines if len(line) > width and root not in line] == []


def test_a_narrow_terminal_shows_what_matters_and_says_what_it_leaves_out(home: Path) -> None:
    lines = on_terminal(80, "ls", "--cache-dir", str(lay_out("generations", home / "c")))
    assert lines[0].split() == ["STATE", "SIZE", "AGE", "USED", "HITS", "NAME", "MODULE"]
    assert "(too narrow for compiler, flags)" in lines
    assert any(line.endswith("bert         MODULE_9219..986+e30acd3a") for line in lines)
    shown = on_terminal(50, "show", "9219", "--cache-dir", str(home / "c"))
    files = shown.index("  files       compile_flags.json 17 B, model.done")
    assert shown[files + 1].startswith(" " * 14 + "0 B,")


def test_a_wide_terminal_and_a_pipe_get_every_column() -> None:
    rows = [("done", "MODULE_9219523464496887986+e30acd3a", "12")]
    assert table(None, rows, "<<>") == "done  MODULE_9219523464496887986+e30acd3a  12"
    assert table(None, rows, "<<>", width=45) == table(None, rows, "<<>")


def test_text_gives_room_first_then_spare_columns_go() -> None:
    rows = [("a" * 30, "b" * 30, "123456")]
    assert table(None, rows, "<<>", width=50).splitlines() == [
        "a" * 9 + ".." + "a" * 9 + "  " + "b" * 9 + ".." + "b" * 9 + "  123456"
    ]
    assert table(("A", "B", "N"), rows, "<<>", width=30, optional=(0,)).splitlines()[1:] == [
        "b" * 10 + ".." + "b" * 10 + "  123456",
        "(too narrow for a)",
    ]


@given(st.lists(st.tuples(*[st.text("ab ", max_size=60)] * 3), min_size=1, max_size=4), st.integers(52, 120))
def test_a_table_fits_wherever_its_columns_can(rows: list[tuple[str, ...]], width: int) -> None:
    assert all(len(line) <= width for line in table(None, rows, "<<<", width=width).splitlines())


@given(st.text(max_size=40), st.integers(2, 50))
def test_a_shortened_text_keeps_its_ends(text: str, width: int) -> None:
    short = shorten(text, width)
    assert len(short) == min(len(text), width)
    assert short == text or (text.startswith(short.partition("..")[0]) and ".." in short)


def test_paths_stay_in_one_piece() -> None:
    line = "  path        /a/" + "long/" * 30
    assert wrap_field(line, 60) == line
    assert wrap_field("  operators   " + "relu x1, " * 12, None).count("\n") == 0
    assert display_path("/c/x/y", "/c", 80) == "x/y"
    assert display_path("/c/x/y", "/c", None) == "/c/x/y"
