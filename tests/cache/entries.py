"""Entries as values, for what needs no files."""

from __future__ import annotations

from neurontools.cache.entries import Entry
from neurontools.cache.entry_files import State
from tests.cache.conftest import NOW


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
