"""Entries as values, for what needs no files, and their paths."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.cache.entries import Entry
from neurontools.cache.entry_files import State
from tests.cache.conftest import NOW, TRN1

if TYPE_CHECKING:
    from neurontools.cache.store import CompileCache
    from neurontools.compiler.graph import Graph


def entry_path(cache: CompileCache, graph: Graph) -> str:
    """Return the directory of a graph's entry."""
    return cache._entry(graph.digest(), cache.flags_for(TRN1))


def an_entry(**changes: object) -> Entry:
    values: dict[str, object] = {
        "path": "/c/neuronxcc-2.16/MODULE_1+e30acd3a",
        "compiler": "2.16",
        "module": "MODULE_1+e30acd3a",
        "state": State.DONE,
        "size_bytes": 100,
        "made_unix_s": NOW,
        "used_unix_s": NOW,
        "hits": 0,
        "flags": (),
        "name": "",
        "ours": True,
        "note": "",
        "lock": None,
    }
    return Entry(**(values | changes))  # type: ignore[arg-type]
