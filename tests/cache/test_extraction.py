"""Graphs that are stored for a later compile, with the libraries of custom operators that belong to them."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from neurontools import env
from neurontools.cache import extraction, layouts
from neurontools.cache.entries import scan
from neurontools.cache.entry_files import State
from neurontools.cache.extraction import ExtractionRecord, RecordKind
from neurontools.compiler.neff import NativePart
from tests.compiler.graphs import mlp

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.cache.store import CompileCache
    from tests.cache.conftest import Tree

FLAGS = ("--target=trn1",)


def part(name: str, data: bytes, *call_ns: tuple[int, int]) -> NativePart:
    return NativePart(name, hashlib.sha256(data).hexdigest(), data, call_ns)


@pytest.fixture
def entry(tree: Tree) -> str:
    name = layouts.module_name(mlp().module_hash(), FLAGS)
    return f"{tree.root}/{layouts.compiler_name('2.16')}/{name}"


def test_libraries_are_stored_beside_a_graph_and_read_again(tree: Tree, entry: str) -> None:
    libraries = (part("relu", b"one", (3, 1200), (7, 90)), part("gelu", b"two"))
    assert not extraction.extract(str(tree.root), entry, mlp(), FLAGS, libraries)
    assert set(extraction.read_libraries(entry)) == set(libraries)
    (found,) = scan(str(tree.root)).entries
    assert (found.state, found.flags) == (State.TODO, FLAGS)
    extraction.remove_libraries(entry)
    assert extraction.read_libraries(entry) == ()
    assert {path.name for path in Path(entry).iterdir()} >= {layouts.GRAPH, layouts.FLAGS}


def test_a_library_whose_content_has_changed_is_left_out(tree: Tree, entry: str) -> None:
    kept, changed = part("relu", b"one"), part("gelu", b"two")
    extraction.extract(str(tree.root), entry, mlp(), FLAGS, (kept, changed))
    Path(entry, f".library-{changed.digest}").write_bytes(b"tow")
    assert extraction.read_libraries(entry) == (kept,)


def test_each_extracted_graph_is_recorded(
    tree: Tree, entry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "extraction.log"
    monkeypatch.setenv(env.EXTRACTION_LOG, str(log))
    extraction.extract(str(tree.root), entry, mlp(), FLAGS, ())
    extraction.record(RecordKind.ON_CPU, "aten::nonzero", "train.py:3")
    with log.open("a") as file:
        file.write('["graph", "/cut')  # its writer was killed
    assert list(extraction.read_records(str(log))) == [
        ExtractionRecord(RecordKind.GRAPH, entry),
        ExtractionRecord(RecordKind.ON_CPU, "aten::nonzero", "train.py:3"),
    ]


def test_the_cache_of_an_extraction_is_recorded_when_it_is_opened(
    tree: Tree, tmp_path: Path, open_cache: Callable[..., CompileCache], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "extraction.log"
    log.touch()
    monkeypatch.setenv(env.EXTRACTION_LOG, str(log))
    open_cache(str(tree.root))
    assert list(extraction.read_records(str(log))) == []
    assert open_cache(str(tree.root), NEURON_EXTRACT_GRAPHS_ONLY="1").extracts_only
    assert list(extraction.read_records(str(log))) == [ExtractionRecord(RecordKind.ROOT, str(tree.root))]
