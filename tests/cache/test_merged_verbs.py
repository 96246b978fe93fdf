"""The verbs that took over from others: copy, `pin --delete`, `rm --all`, `prune --locks AGE`, `stats --path`."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from neurontools.cache import layouts
from neurontools.cache.entries import scan
from neurontools.commands.cache import main

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cache.trees import Tree


def names(root: Path | str) -> set[str]:
    return {os.path.basename(entry.path) for entry in scan(str(root)).entries}


def test_copy_to_an_archive_and_from_it(entry: Path, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    packed, other = str(home / "x.tar"), str(home / "other")
    assert main(["copy", "--to", packed]) == 0
    assert "1 entry copied" in capsys.readouterr().out
    assert main(["copy", "--from", packed, "--to", other]) == 0
    assert names(other) == {entry.name}
    third = str(home / "third")
    assert main(["copy", "--from", packed, "--cache-dir", third]) == 0
    assert names(third) == {entry.name}
    assert main(["copy", "--to", packed]) == 1  # it exists
    assert main(["copy", "--to", packed, "--force", entry.name, "--json"]) == 0
    assert main(["copy", "--from", other, "--to", str(home / "y.tgz"), "--filter", "name=nothing"]) == 1


def test_copy_between_caches(entry: Path, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here, other = str(entry.parents[1]), str(home / "other")
    assert main(["copy", "--to", other, "--dry-run"]) == 0
    assert not os.path.exists(other)
    assert main(["copy", "--to", other]) == 0
    assert names(other) == {entry.name}
    third = str(home / "third")
    assert main(["copy", "--from", here, "--to", third, "--jobs", "1", "--json"]) == 0
    capsys.readouterr()
    assert main(["rm", "--all", "-y", "--cache-dir", here]) == 0
    assert names(here) == set()
    assert main(["copy", "--from", third]) == 0
    assert names(here) == {entry.name}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no place named"),
        (["--to", ""], "a place must not be empty"),
        (["--from", "a", "--to", "b", "--cache-dir", "c"], "--cache-dir names no third place"),
        (["--from", "a.tar", "--to", "b.tgz"], "both places are archives"),
        (["--to", "a.tar", "--delete"], "--delete is for copying between caches"),
        (["--to", "a.tar", "--max-size", "1GB"], "--max-size is for copying from an archive"),
        (["--from", "a.tar", "--force"], "--force is for copying to an archive"),
        (["--from", "a.tar", "--dry-run"], "--dry-run is for copying from a cache"),
        (["--from", "a.tar", "--", "MODULE_1"], "ENTRY is for copying from a cache"),
        (["--to", "b", "--jobs", "0"], "'0' is not a number above 0"),
        (["--to", "b", "--grace", "1d"], "--grace needs --delete"),
    ],
)
def test_what_copy_refuses(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["copy", *words]) == 2
    assert f"error: {message}" in capsys.readouterr().err.replace("argument --jobs: ", "")


def test_a_pin_is_removed_by_delete(entry: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["pin", "--delete"], ["pin", "-d"]):
        assert main(["pin", entry.name]) == 0
        assert (entry / ".pinned").exists()
        assert main([*words, entry.name]) == 0
        assert not (entry / ".pinned").exists()
    assert "unpinned" in capsys.readouterr().out


def test_rm_wants_entries_or_all(entry: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rm"]) == 2
    assert main(["rm", "--all", entry.name]) == 2
    assert capsys.readouterr().err.count("error: give entries or --all") == 2
    assert main(["rm", "--all", "--dry-run"]) == 0
    assert entry.exists()
    assert main(["rm", "--all", "-y"]) == 0
    assert not entry.exists()


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        (["--locks", "1h"], True),
        (["--locks", "1m"], False),
        (["--locks"], True),
    ],
)
def test_the_age_of_locks(tree: Tree, words: list[str], kept: bool) -> None:
    lock = tree.entry() / layouts.LOCK
    lock.touch()
    before_s = lock.stat().st_mtime - 600
    os.utime(lock, (before_s, before_s))
    assert main(["prune", "-y", *words]) == 0
    assert lock.exists() is kept


def test_stats_name_the_cache(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nowhere = str(home / "nowhere")
    for words in (["stats", "--path"],):
        assert main([*words, "-q", "--cache-dir", nowhere]) == 0
        assert capsys.readouterr().out == f"{nowhere}\n"
        assert main([*words, "--json", "--cache-dir", nowhere]) == 0
        assert json.loads(capsys.readouterr().out)["source"] == "command line"
        assert main([*words, "--cache-dir", nowhere]) == 0
        assert "* command line" in capsys.readouterr().out
    assert main(["stats", "-q"]) == 2
    assert main(["stats", "--path", "--runs"]) == 2
