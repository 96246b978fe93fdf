"""The NEFF that a user names: a file, a directory with several, or an entry of the cache in use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from neurontools.cache.selection import NoSuchEntryError, find_neff
from neurontools.errors import NeuronToolsError

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cache.conftest import Tree


@pytest.fixture
def cache(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> Tree:
    monkeypatch.setenv("NEURON_COMPILE_CACHE_URL", str(tree.root))
    return tree


def test_a_file_is_itself_and_a_directory_its_largest_neff(tmp_path: Path) -> None:
    for name, size in (
        ("a.neff", 3),
        ("rank0/b.neff", 9),
        ("rank0/graphs/c.neff", 5),
        ("rank1/notes.txt", 99),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x" * size)
    assert find_neff(str(tmp_path / "a.neff")) == str(tmp_path / "a.neff")
    assert find_neff(f"{tmp_path}/") == str(tmp_path / "rank0" / "b.neff")
    with pytest.raises(NeuronToolsError, match="has no NEFF: the run loaded no graph"):
        find_neff(str(tmp_path / "rank1"))
    with pytest.raises(NeuronToolsError, match="does not exist"):
        find_neff(str(tmp_path / "gone.neff"))


def test_an_entry_of_the_cache_is_named_by_the_start_of_its_module(cache: Tree) -> None:
    path = cache.done(graph="123456")
    assert find_neff("1234") == f"{path}/model.neff"
    failed = cache.failed(graph="777777")
    with pytest.raises(NoSuchEntryError, match=r"MODULE_777777.* has no NEFF: its compile failed") as caught:
        find_neff(failed.name)
    assert caught.value.remedy == f"see 'neuron-cache show {failed.name}'"
