"""What killed imports and removals left: found, told, removed when nobody works on it, and never before."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from neurontools.cache import layouts
from neurontools.cache.entries import scan
from neurontools.cache.pruning import removal
from neurontools.cache.pruning.prune import prepare_pruning
from neurontools.cache.pruning.removal import remove_orphan
from neurontools.cache.pruning.rules import NETWORK_GRACE_S, PruneRules
from neurontools.commands.cache import main

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cache.conftest import Tree

# Stops in the middle of an import, after the first file of an entry is written.
HALTED_IMPORT = """
import sys, time
from neurontools.cache.copy import archive
real = archive._entry_of
def halted(*arguments):
    halted.calls = getattr(halted, "calls", 0) + 1
    if halted.calls == 2:
        print("half", flush=True)
        time.sleep(600)
    return real(*arguments)
archive._entry_of = halted
from neurontools.commands.cache import main
main(["copy", "--from", *sys.argv[1:]])
"""


@pytest.fixture
def halted(tree: Tree, home: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """An import that is half done, and its root."""
    tree.done(compiler="2.16.372.0+4a9b2326")
    assert main(["copy", "--to", str(home / "x.tar"), "--cache-dir", str(tree.root)]) == 0
    root = str(home / "other")
    command = [sys.executable, "-c", HALTED_IMPORT, str(home / "x.tar"), "--cache-dir", root]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "half\n"
        yield process, root
        process.kill()


def test_what_a_link_leads_to_is_not_counted(tree: Tree, tmp_path: Path) -> None:
    (tmp_path / "large").mkdir()
    (tmp_path / "large" / "file").write_bytes(b"x" * (1 << 20))
    path = tree.root / "left"
    path.mkdir()
    (path / "file").write_bytes(b"x" * 5000)
    before = removal._size_bytes(str(path))
    (path / "link").symlink_to(tmp_path / "large")
    assert 5000 <= before <= removal._size_bytes(str(path)) < before + (1 << 16)
    assert removal._size_bytes(str(tmp_path / "large")) > 1 << 20
    assert removal._size_bytes(str(tmp_path / "none")) == 0


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    capsys.readouterr()
    code = main(list(arguments))
    return code, capsys.readouterr().out


@pytest.mark.parametrize("remove", [["prune", "--failed"], ["rm", "--all"], ["verify", "--fix"]])
def test_what_a_killed_import_left_goes_once_it_is_dead(
    halted: tuple[subprocess.Popen[str], str], remove: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    process, root = halted
    options = ["--cache-dir", root, *([] if "verify" in remove else ["-y"])]
    assert run(capsys, "verify", "--cache-dir", root)[0] == 0
    assert run(capsys, *remove, *options)[0] == 0
    (left,) = Path(root, layouts.IMPORTING).iterdir()
    process.send_signal(signal.SIGKILL)
    process.wait()
    code, shown = run(capsys, "verify", "--json", "--cache-dir", root)
    assert code == 1
    assert [(row["problem"], row["path"]) for row in json.loads(shown)["problems"]] == [
        ("leftover", str(left))
    ]
    assert run(capsys, *remove, *options)[0] == 0
    assert os.listdir(left.parent) == []
    assert run(capsys, "verify", "--cache-dir", root)[0] == 0


def test_prune_says_what_it_would_remove_of_it(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    tree.done()
    left = tree.root / layouts.IMPORTING / "1-ab"
    (left / "neuronxcc-1").mkdir(parents=True)
    (left / "neuronxcc-1" / "half").write_bytes(b"x" * 5000)
    assert run(capsys, "prune", "--failed", "--dry-run")[1].splitlines()[0] == (
        f"left by a killed copy: {left}, 16.4 kB"
    )
    shown = json.loads(run(capsys, "prune", "--failed", "--dry-run", "--json")[1])
    assert [(row["path"], row["size_bytes"]) for row in shown["leftovers"]] == [(str(left), 16384)]
    assert (shown["removed"], left.exists()) == ([], True)
    done = json.loads(run(capsys, "prune", "--failed", "-y", "--json")[1])
    assert [row["path"] for row in done["leftovers"]] == [str(left)]
    assert not left.exists()


def test_rm_removes_what_is_named_and_no_leftovers(tree: Tree) -> None:
    entry = tree.done()
    left = tree.root / layouts.TRASH / "1-ab"
    (tree.root / layouts.IMPORTING / "1-ab").mkdir(parents=True)
    assert main(["rm", entry.name, "-y", "--grace", "0s"]) == 0
    assert not entry.exists()
    assert (tree.root / layouts.IMPORTING / "1-ab").exists()
    assert not left.exists()


def test_nothing_is_taken_from_a_removal_that_may_put_it_back(
    tree: Tree, capsys: pytest.CaptureFixture[str]
) -> None:
    aside = tree.root / layouts.TRASH / "1-ab"
    aside.mkdir(parents=True)
    descriptor = os.open(aside.parent, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    assert run(capsys, "verify", "--fix")[0] == 0
    assert not remove_orphan(str(tree.root), str(aside))
    assert aside.exists()
    os.close(descriptor)
    assert run(capsys, "verify")[0] == 1
    assert run(capsys, "verify", "--fix")[0] == 0
    assert not aside.exists()


def test_where_flock_shows_nothing_only_age_counts(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    tree.done()
    left = tree.root / layouts.IMPORTING / "1-ab"
    left.mkdir(parents=True)
    monkeypatch.setattr(removal, "is_network_root", lambda _: True)
    assert removal.find_orphans(str(tree.root)) == ()
    now = left.lstat().st_ctime
    monkeypatch.setattr(removal.time, "time", lambda: now + NETWORK_GRACE_S + 1)
    assert [item.path for item in removal.find_orphans(str(tree.root))] == [str(left)]


def test_a_plan_of_any_rules_clears_them(tree: Tree) -> None:
    tree.done()
    left = tree.root / layouts.IMPORTING / "1-ab"
    left.mkdir(parents=True)
    prepare_pruning(scan(str(tree.root)), PruneRules(failed=True)).carry_out()
    assert not left.exists()
