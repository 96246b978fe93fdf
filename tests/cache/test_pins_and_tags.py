"""Pins and tags: what a person marked stays and is found again."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from neurontools.cache.layouts import CacheLayout
from neurontools.cache.pins_and_tags import TagError, set_pin
from neurontools.cache.walk import EntryRef
from neurontools.commands.cache import main
from tests.cache.conftest import DAY, Tree

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def chosen(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURON_COMPILE_CACHE_URL", str(tree.root))


def shown(capsys: pytest.CaptureFixture[str], *conditions: str) -> list[str]:
    capsys.readouterr()
    assert main(["ls", "-q", "--filter", *conditions]) == 0
    return [os.path.basename(line) for line in capsys.readouterr().out.split()]


def test_a_pinned_entry_outlives_prune_rm_and_clean(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    kept = tree.done(unused_s=90 * DAY)
    other = tree.done(graph="77", unused_s=90 * DAY)
    assert main(["pin", kept.name[:12]]) == 0
    assert capsys.readouterr().out == f"pinned {kept}\n"
    assert main(["pin", kept.name]) == 0
    assert capsys.readouterr().out == "1 entry needs no change\n"
    assert shown(capsys, "pinned=yes") == [kept.name]
    for command in (["prune", "--older-than", "30d", "-y"], ["rm", kept.name, "-y"], ["rm", "--all", "-y"]):
        main(command)
    assert (kept.exists(), other.exists()) == (True, False)
    assert main(["pin", "--delete", kept.name]) == 0
    assert main(["rm", kept.name, "-y"]) == 0
    assert not kept.exists()


def test_tags_are_found_and_taken_away(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = tree.done(), tree.failed(graph="77")
    assert main(["tag", "nightly", "--filter", "state=done"]) == 0
    assert main(["tag", "v2.1", first.name, second.name]) == 0
    assert shown(capsys, "tag~nightly") == [first.name]
    assert sorted(shown(capsys, "tags~v2.1")) == sorted([first.name, second.name])
    assert main(["show", first.name, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["tags"] == ["nightly", "v2.1"]
    assert main(["show", first.name]) == 0
    assert "tags        nightly v2.1\n" in capsys.readouterr().out
    assert main(["tag", "-d", "nightly", first.name, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"untagged": [str(first)], "unchanged": 0}


@pytest.mark.parametrize("tag", ["", "../evil", "a/b", ".hidden", "a b", "x" * 65, "new\nline"])
def test_a_tag_that_is_not_a_name_is_refused(tree: Tree, tag: str) -> None:
    entry = tree.done()
    before = sorted(os.listdir(entry))
    assert main(["tag", tag, entry.name]) == 2
    assert sorted(os.listdir(entry)) == before


def test_invalid_input_is_refused(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    tree.done()
    assert main(["pin"]) == 2
    assert main(["pin", "nowhere"]) == 1
    assert main(["pin", "--filter", "state=failed"]) == 1
    assert "matches the filter" in capsys.readouterr().err
    assert main(["pin", "--filter", "stat=failed"]) == 2


def test_an_entry_that_is_a_file_or_gone_cannot_be_pinned(tmp_path: Path) -> None:
    with pytest.raises(TagError, match="single file"):
        set_pin(str(tmp_path), EntryRef(str(tmp_path / "x.neff"), CacheLayout.TORCHNEURON, "", "x"))
    with pytest.raises(TagError, match="gone"):
        set_pin(str(tmp_path), EntryRef(str(tmp_path / "x"), CacheLayout.CURRENT, "", "x"))
