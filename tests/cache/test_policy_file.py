"""A policy in config.yaml: an invalid value is reported with its place, and then nothing is removed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from neurontools import env
from neurontools.commands.cache import main
from neurontools.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.cache.store import CompileCache
    from tests.cache.trees import Tree

DAY = 86400.0


def write(text: str) -> str:
    path = Path(env.config_file())
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    env._configurations.clear()
    return str(path)


@pytest.mark.parametrize(
    ("lines", "place", "words"),
    [
        ("cache_max_size: 20x", 1, "cache_max_size: invalid size '20x'"),
        ("machine: ci\ncache_keep_last: ten", 2, "cache_keep_last: invalid number of entries"),
        ("cache_remove: lock", 1, "cache_remove: cannot remove 'lock'"),
        ("cache_older_than: 1s\ncache_keep_last: 3 entries", 2, "cache_keep_last: expected a text"),
        ("cache_older_than: 1s\ncache_keep_lst: 3", 2, "cache_keep_lst: unknown setting"),
    ],
)
def test_a_mistake_is_reported_by_file_line_and_key_and_nothing_is_removed(
    tree: Tree, capsys: pytest.CaptureFixture[str], lines: str, place: int, words: str
) -> None:
    entry = tree.done(unused_s=40 * DAY)
    path = write(lines + "\n")
    assert main(["prune", "--policy", "-y"]) == 2
    assert capsys.readouterr().err.startswith(f"error: {path}:{place}: {words}")
    assert entry.exists()


def test_the_environment_is_named_where_it_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    write("cache_max_size: 20GB\n")
    monkeypatch.setenv(env.CACHE_MAX_SIZE, "huge")
    assert env.source_of(env.CACHE_MAX_SIZE) == "NEURONTOOLS_CACHE_MAX_SIZE"
    assert env.source_of(env.CACHE_MAX_SIZE, {}).endswith("config.yaml:1: cache_max_size")
    assert env.source_of(env.CACHE_KEEP_LAST) == "NEURONTOOLS_CACHE_KEEP_LAST"


def test_a_sound_file_is_a_policy(tree: Tree) -> None:
    old, kept = tree.done(graph="1", unused_s=40 * DAY), tree.done(graph="2", unused_s=35 * DAY)
    write("cache_older_than: 30d\ncache_keep_last: 1\n")
    assert main(["prune", "--policy", "-y"]) == 0
    assert (old.exists(), kept.exists()) == (False, True)


def test_a_run_prunes_nothing_by_half_a_policy(
    tree: Tree, open_cache: Callable[..., CompileCache], caplog: pytest.LogCaptureFixture
) -> None:
    entry = tree.done(unused_s=40 * DAY)
    path = write("cache_auto_prune: true\ncache_older_than: 1d\ncache_keep_last: 3 entries\n")
    open_cache().close()
    assert entry.exists()
    assert f"{path}:3: cache_keep_last: expected" in caplog.text


def test_a_limit_of_waiting_that_is_invalid_is_reported_with_its_place(
    open_cache: Callable[..., CompileCache],
) -> None:
    write("cache_lock_timeout: 20\n")
    with pytest.raises(UsageError, match=r"config\.yaml:1: cache_lock_timeout: duration '20' needs a unit"):
        open_cache()
