"""What `--dry-run` says is what the removal then does, whatever rules meet in a cache of every kind of entry."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from neurontools.cache import layouts
from neurontools.cache.lock_owner import new_lock_owner
from neurontools.commands.cache import main
from neurontools.commands.parallel_compile import main as parallel_compile
from neurontools.compiler.options import COMPILER_VERSION
from tests.cache.conftest import Tree  # noqa: TC001  needed by pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

DAY = 86400.0
OLD = "2.10.1.0+4a9b2326"
RULES = (
    ["--interrupted", "--locks"],
    ["--failed", "--incomplete", "--locks", "1m"],
    ["--older-than", "1d", "--keep-last", "1", "--grace", "0"],
    ["--max-size", "30kB", "--grace", "0"],
    ["--max-size", "0", "--keep-last", "2", "--locks"],
    ["--old-compilers"],
    ["--keep-last", "0"],
)


def set_age(path: Path, age_s: float) -> None:
    moment = time.time() - age_s
    for inner in (*path.glob("*"), path):
        os.utime(inner, (moment, moment))


@pytest.fixture
def mixed(tree: Tree) -> Iterator[Tree]:
    """Every state at several ages, pinned, in use, under locks of every kind; leftovers."""
    me, numbers = new_lock_owner(), itertools.count(10)
    dead = replace(me, pid=2**22 - 3, start_ticks=1)
    locks = {
        "none": (b"", 100.0),
        "none, old": (b"", 5 * 3600.0),
        "dead": (dead.to_bytes(), 0.0),
        "far": (replace(me, boot_id="x", host="far").to_bytes(), 0.0),
        "far, silent": (replace(me, boot_id="x", host="far").to_bytes(), 1000.0),
        "mine": (me.to_bytes(), 0.0),
    }

    def one(make: Callable[..., Path], age_s: float, compiler: str = COMPILER_VERSION) -> Path:
        path = make(graph=str(next(numbers)), compiler=compiler)
        set_age(path, age_s)
        return path

    for age_s, compiler in itertools.product((30.0, 3 * DAY, 40 * DAY), (OLD, COMPILER_VERSION)):
        one(tree.done, age_s, compiler)
        one(tree.failed, age_s, compiler)
        one(tree.entry, age_s, compiler)
        broken = one(tree.done, age_s, compiler)
        (broken / layouts.DONE).unlink()
        set_age(broken, age_s)
    for content, silent_s in locks.values():
        for make in (tree.done, tree.entry, tree.failed):
            path = one(make, 3 * DAY)
            (path / layouts.LOCK).write_bytes(content)
            moment = time.time() - silent_s
            os.utime(path / layouts.LOCK, (moment, moment))
    (one(tree.failed, 40 * DAY) / layouts.PIN).touch()
    used = os.open(one(tree.done, 40 * DAY), os.O_RDONLY)
    fcntl.flock(used, fcntl.LOCK_SH)
    for left in (layouts.TRASH, layouts.IMPORTING):
        (tree.root / left / "1-x").mkdir(parents=True)
        (tree.root / left / "1-x" / "file").write_text("x")
    yield tree
    os.close(used)


def said(run: Callable[[list[str]], int], words: list[str], capsys: pytest.CaptureFixture[str]) -> set[str]:
    """Return every path that a command says that it removes or would remove."""
    assert run([*words, "--json"]) == 0
    form = json.loads(capsys.readouterr().out)
    rows = [*form.get("removed", ()), *form.get("locks", ()), *form.get("leftovers", ())]
    return {row if isinstance(row, str) else row["path"] for row in rows}


def content(tree: Tree) -> set[str]:
    return {str(path) for path in tree.root.rglob("*")}


def check(
    tree: Tree,
    run: Callable[[list[str]], int],
    words: list[str],
    capsys: pytest.CaptureFixture[str],
    yes: tuple[str, ...] = ("-y",),
) -> set[str]:
    before = content(tree)
    planned = said(run, [*words, "--dry-run"], capsys)
    assert content(tree) == before
    assert said(run, [*words, *yes], capsys) == planned
    gone = before - content(tree)
    assert planned <= gone
    return gone


@pytest.mark.parametrize("rules", RULES, ids=" ".join)
def test_prune_does_what_it_announced(
    mixed: Tree, capsys: pytest.CaptureFixture[str], rules: list[str]
) -> None:
    assert check(mixed, main, ["prune", *rules], capsys)


def test_locks_do_what_they_announced(mixed: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(check(mixed, main, ["prune", "--locks", "4h"], capsys)) == 13  # with the leftovers
    assert len(check(mixed, main, ["prune", "--locks", "0"], capsys)) == 3


@pytest.mark.parametrize("command", ["clear-locks", "clear-neffs", "clean"])
def test_the_parallel_compile_does_what_it_announced(
    mixed: Tree, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert check(mixed, parallel_compile, ["--command", command], capsys, yes=())


def test_what_dead_compiles_left_goes_at_once_with_its_lock(
    tree: Tree, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tree.done()
    (path / layouts.LOCK).write_bytes(replace(new_lock_owner(), pid=2**22 - 3, start_ticks=1).to_bytes())
    (path / layouts.DONE).unlink()
    assert main(["prune", "--locks", "--interrupted", "-y"]) == 0
    assert not path.exists()
    assert "1 entry removed" in capsys.readouterr().out
