"""Caches made by hand, listed: golden texts, JSON, states, foreign names.

Tables on narrow terminals: nothing wraps, names stay recognisable, and a pipe gets all of it.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neurontools.base.text import shorten, table, wrap_field
from neurontools.cache import layouts
from neurontools.cache.entries import NotACacheError, scan
from neurontools.cache.entry_files import State
from neurontools.cache.events import Usage
from neurontools.cache.fields import parse_filters
from neurontools.cache.layouts import display_path
from neurontools.cache.listing import list_entries, parse_order
from neurontools.cache.location import resolve
from neurontools.cache.lock_owner import new_lock_owner
from neurontools.commands.cache import main
from tests.cache.conftest import DAY, NOW, Tree
from tests.cache.golden_files import compare
from tests.cache.trees import lay_out
from tests.tui.terminal import read_to_end

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str], home: Path) -> Callable[..., str]:
    """Run neuron-cache and return its whole result: exit code, stdout, stderr, with the home directory's name out."""

    def run(*arguments: str) -> str:
        code = main(arguments)
        captured = capsys.readouterr()
        text = f"$ neuron-cache {' '.join(arguments)}\n{captured.out}{captured.err}[exit {code}]\n"
        return re.sub(r"process \d+ on \S+", "process PID on HOST", text.replace(str(home), "HOME"))

    return run


@pytest.fixture
def full(tree: Tree) -> Tree:
    """One entry of every state, two compilers, and things of other tools."""
    done = tree.done(unused_s=3 * DAY)
    Usage(str(tree.root)).count("misses")
    for _ in range(2):
        Usage(str(tree.root)).count_hit(str(done))
    (done / layouts.STAMP).unlink()
    _settle(tree.root)
    tree.done(graph="8068656800389078395", unused_s=40 * DAY, compiler="2.12.68.0+4480452af")
    tree.failed(graph="111", flags=("--target=trn1", "--model-type=transformer"), unused_s=5000)
    tree.failed("died with <Signals.SIGKILL: 9>\n", graph="222", unused_s=90000)
    tree.entry(graph="333", unused_s=10)
    half = tree.entry(graph="444", files={layouts.NEFF: b"half"}, unused_s=7 * DAY)
    locked = tree.entry(graph="555", unused_s=20)
    (locked / layouts.LOCK).touch()
    dead = replace(new_lock_owner(), start_ticks=1)
    left = tree.entry(graph="666", files={layouts.LOCK: dead.to_bytes()}, unused_s=2 * DAY)
    assert half.exists()
    assert left.exists()
    tree.entry(graph="0123456789abcdef0123", flags=(), unused_s=100)
    compiler = tree.root / "neuronxcc-2.12.68.0+4480452af"
    (compiler / "0_REGISTRY" / "0.0.16").mkdir(parents=True)
    (compiler / "MODULE_alias+e30acd3a").symlink_to(done)
    oldest = tree.root / "USER_neuroncc-1.0.47218.0+162039557" / "MODULE_1"
    oldest.mkdir(parents=True)
    os.utime(oldest, (NOW - 900 * DAY, NOW - 900 * DAY))
    (tree.root / "notes.txt").write_text("mine")
    return tree


def _settle(root: Path) -> None:
    """Give the counters' files a fixed time."""
    from neurontools import paths

    for directory, _, names in os.walk(f"{paths.state_dir()}/compile-cache"):
        for name in names:
            os.utime(f"{directory}/{name}", (NOW - 3 * DAY, NOW - 3 * DAY))


@pytest.mark.usefixtures("frozen")
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("ls", ["ls"]),
        ("ls_failed", ["ls", "--failed"]),
        ("ls_by_size", ["ls", "--sort", "size", "--limit", "2"]),
        ("prune_dry_run", ["prune", "--older-than", "30d", "--failed", "--interrupted", "--dry-run"]),
        ("prune_max_size", ["prune", "--max-size", "60kB", "--dry-run"]),
        ("prune_locks", ["prune", "--locks", "4h", "--dry-run"]),
    ],
)
def test_golden_texts(name: str, arguments: list[str], full: Tree, shown: Callable[..., str]) -> None:
    locks = full.root.glob(f"*/*/{layouts.LOCK}")
    for lock in locks:
        os.utime(lock, (NOW - 20, NOW - 20))
    compare(name, shown(*arguments))


@pytest.mark.usefixtures("frozen", "full")
def test_golden_stats(shown: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    compare("stats", shown("stats"))


def test_states_are_those_of_the_reference(full: Tree) -> None:
    found = {entry.module.partition("+")[0]: entry.state for entry in scan(str(full.root)).entries}
    assert found == {
        "MODULE_9219523464496887986": State.DONE,
        "MODULE_8068656800389078395": State.DONE,
        "MODULE_111": State.FAILED,
        "MODULE_222": State.INTERRUPTED,
        "MODULE_333": State.TODO,
        "MODULE_444": State.INTERRUPTED,
        "MODULE_555": State.LOCKED,
        "MODULE_666": State.INTERRUPTED,
        "MODULE_0123456789abcdef0123": State.TODO,
        "MODULE_1": State.TODO,
    }


def test_names_of_other_tools_are_counted_and_left_alone(full: Tree) -> None:
    assert scan(str(full.root)).skipped == 2


def test_json_is_complete_and_in_base_units(full: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    rows = {row["path"]: row for row in shown["entries"]}
    for entry in scan(str(full.root)).entries:
        row = rows.pop(entry.path)
        assert (row["state"], row["size_bytes"], row["hits"]) == (entry.state, entry.size_bytes, entry.hits)
        assert row["flags"] == list(entry.flags)
    assert rows == {}
    assert main(["stats", "--json"]) == 0
    stats = json.loads(capsys.readouterr().out)
    assert stats["total"]["count"] == 10
    assert stats["total"]["size_bytes"] == sum(row["size_bytes"] for row in shown["entries"])
    assert stats["usage"]["hit_share"] == pytest.approx(2 / 3)


def test_quiet_prints_paths_that_exist(full: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", "-q", "--failed"]) == 0
    paths = capsys.readouterr().out.splitlines()
    assert len(paths) == 4
    assert all(Path(path).is_dir() for path in paths)


def test_looking_changes_nothing(full: Tree) -> None:
    def times() -> dict[str, tuple[int, int]]:
        return {
            str(path): (path.lstat().st_mtime_ns, path.name == layouts.NEFF and path.lstat().st_atime_ns)
            for path in full.root.rglob("*")
        }

    before = times()
    assert main(["ls"]) == main(["stats"]) == main(["prune", "--max-size", "0", "--dry-run"]) == 0
    assert times() == before


def test_hard_links_count_once(tree: Tree) -> None:
    first, second = tree.done(), tree.done(graph="2")
    (second / layouts.NEFF).unlink()
    os.link(first / layouts.NEFF, second / layouts.NEFF)
    sizes = [entry.size_bytes for entry in scan(str(tree.root)).entries]
    neff = (first / layouts.NEFF).stat().st_blocks * 512
    assert (
        sum(sizes)
        == sum(path.stat().st_blocks * 512 for path in tree.root.glob("*/*/*") if path.name != layouts.NEFF)
        + neff
    )


def test_links_in_an_entry_are_not_followed(tree: Tree, tmp_path: Path) -> None:
    path, large = tree.done(), tmp_path / "large"
    large.write_bytes(b"x" * 1_000_000)
    (path / "parts").mkdir()
    for folder in (path, path / "parts"):
        (folder / "also").symlink_to(large)
        (folder / "away").symlink_to("nowhere")  # following it would end the reading of the folder
        (folder / "zz").write_bytes(b"x" * 10_000)
    (entry,) = scan(str(tree.root)).entries
    own = (item.lstat().st_blocks for item in path.rglob("*") if item.is_symlink() or not item.is_dir())
    assert entry.size_bytes == sum(own) * 512


def test_a_filter_reads_what_it_needs_whatever_is_shown(tree: Tree) -> None:
    tree.done()
    tree.done(graph="2", flags=("--target=trn2",))
    tree.entry(graph="3")
    where = resolve(url=str(tree.root))
    for chosen, known in (("name=mlp", 2), ("flags~trn1", 2), ("state=done", 2), ("name=other", 0)):
        _, rows = list_entries(where, parse_order("size"), parse_filters([chosen]), now=NOW, details=False)
        assert len(rows) == known


@pytest.mark.parametrize("name", ["model.hlo.pb", "model.hlo_module.pb.gz"])
def test_older_graph_names_are_accepted(tree: Tree, name: str) -> None:
    path = tree.entry()
    (path / layouts.GRAPH).rename(path / name)
    assert [entry.state for entry in scan(str(tree.root)).entries] == [State.TODO]


@pytest.mark.parametrize("content", [b"", b"{", b'"text"', b"[" * 5000, b"\xff", b'{"a": 1}'])
def test_damaged_flags_are_no_reason_to_fail(tree: Tree, content: bytes) -> None:
    (tree.done() / layouts.FLAGS).write_bytes(content)
    assert [entry.flags for entry in scan(str(tree.root)).entries] == [()]


def test_a_special_file_in_an_entry_does_not_stop_the_listing(tree: Tree) -> None:
    path = tree.done()
    (path / layouts.FLAGS).unlink()
    os.mkfifo(path / layouts.FLAGS)
    (path / layouts.NEFF).unlink()
    (path / layouts.NEFF).symlink_to("/dev/zero")
    (entry,) = scan(str(tree.root)).entries
    assert (entry.flags, entry.name) == ((), "")


def test_a_directory_that_is_not_a_cache_is_refused(home: Path, shown: Callable[..., str]) -> None:
    (home / "thesis.tex").touch()
    for arguments in (["ls"], ["stats"], ["prune", "--max-size", "0", "-y"]):
        text = shown(*arguments, "--cache-dir", str(home))
        assert "error: HOME is not a compile cache" in text
        assert "[exit 1]" in text
    assert (home / "thesis.tex").exists()


def test_a_file_is_not_a_cache(home: Path) -> None:
    (home / "file").touch()
    with pytest.raises(NotACacheError, match="it is a file"):
        scan(str(home / "file"))


def test_a_cache_that_does_not_exist_yet_is_empty_unless_it_was_named(
    home: Path, shown: Callable[..., str]
) -> None:
    assert shown("ls") == "$ neuron-cache ls\n0 entries, 0 B in HOME/compile-cache\n[exit 0]\n"
    assert "no such directory" in shown("ls", "--cache-dir", str(home / "tyop"))


@pytest.mark.parametrize(
    "arguments", [["ls", "--sort", "colour"], ["ls", "--sort", "size:up"], ["ls", "--limit", "-1"]]
)
def test_invalid_input_is_a_usage_error(arguments: list[str], shown: Callable[..., str]) -> None:
    text = shown(*arguments)
    assert "hint: " in text
    assert "[exit 2]" in text


def test_many_entries_can_be_sorted_and_cut(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(200):
        tree.entry(graph=str(number), unused_s=number)
    assert main(["ls", "-q", "--sort", "used:asc", "--limit", "2"]) == 0
    names = [Path(line).name.partition("+")[0] for line in capsys.readouterr().out.splitlines()]
    assert names == ["MODULE_199", "MODULE_198"]


def test_times_that_no_clock_here_has_shown_yet_are_reported_as_in_the_future(
    tree: Tree, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = tree.done()
    for path in (*entry.iterdir(), entry):
        os.utime(path, (2**33, 2**33))
    assert main(["ls", "--columns", "age,used,module"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[:2] == ["future", "future"]
    assert main(["show", str(entry)]) == 0
    assert capsys.readouterr().out.count("(in the future)") == 2


@pytest.mark.parametrize("number", ["1e400", "-1e400", "NaN", "1e300"])
def test_numbers_that_are_none_in_what_others_wrote_are_survived(
    tree: Tree, capsys: pytest.CaptureFixture[str], number: str
) -> None:
    entry = tree.done()
    (entry / layouts.ORIGIN).write_text(
        f'{{"compile_s": {number}, "started_unix_s": {number}, "host": "h", "pid": 1, "user": "0", "program": "p"}}'
    )
    assert main(["show", str(entry)]) == 0
    capsys.readouterr()
    assert main(["show", str(entry), "--json"]) == 0

    def refuse(name: str) -> None:
        raise AssertionError(name)

    json.loads(capsys.readouterr().out, parse_constant=refuse)


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
