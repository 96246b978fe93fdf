"""`why` for entries that a person names: two of them, or one and its nearest neighbour."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools.cache.collector import collector_paused
from neurontools.cache.selection import find_entries
from neurontools.cache.walk import parse_entry_path
from neurontools.cache.why.causes import causes_of
from neurontools.cache.why.compare import Comparison, compare
from neurontools.cache.why.entry_facts import EntryFacts, read_facts
from neurontools.cache.why.nearest import Neighbourhood, likeness
from neurontools.errors import NeuronToolsError

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.cache.walk import EntryRef
    from neurontools.cache.why.cause import Cause

    Progress = Callable[[int, int], None]

_DEEPEST = 5


@dataclass(frozen=True, slots=True)
class PairReport:
    """Why two entries are two. `likeness` is the share of operators that both have, 0..1."""

    comparison: Comparison
    likeness: float
    causes: tuple[Cause, ...]


@dataclass(frozen=True, slots=True)
class LoneReport:
    """An entry that no other one in its cache is like.

    `others` is how many there are, `unread` of how many that were looked at no graph can be read.
    """

    facts: EntryFacts
    others: int
    unread: int


@collector_paused()
def explain_pair(root: str, old: str, new: str, *, progress: Progress | None = None) -> PairReport:
    """Return why two entries are not one.

    Args:
        root: the cache in which names are looked up; paths may lie in other caches.
        old: the entry that might have been hit.
        new: the entry to explain.
        progress: is told how many graphs of how many are read.

    Raises:
        NoSuchEntryError: a name fits no entry, or several.
    """
    facts = []
    for name in (old, new):
        facts.append(_read(root, name))
        if progress is not None:
            progress(len(facts), 2)
    return _report(compare(*facts))


@collector_paused()
def explain_entry(root: str, name: str, progress: Progress | None = None) -> PairReport | LoneReport:
    """Return why an entry was compiled although its nearest neighbour in the cache is like it.

    Args:
        root: the cache in which the name is looked up; a path may lie in another cache.
        name: the entry.
        progress: is told at how many graphs of how many was looked.

    Raises:
        NoSuchEntryError: the name fits no entry, or several.
    """
    target_root, place = _place(root, name)
    target = read_facts(target_root, place)
    around = Neighbourhood(target_root)
    near = around.nearest(target, progress=progress)
    if near is None:
        return LoneReport(target, len(around.places) - 1, around.unread_count())
    return _report(compare(near.facts, target))


def _report(comparison: Comparison) -> PairReport:
    return PairReport(comparison, likeness(comparison.old, comparison.new), causes_of(comparison))


def _read(root: str, name: str) -> EntryFacts:
    return read_facts(*_place(root, name))


def _place(root: str, name: str) -> tuple[str, EntryRef]:
    """Return an entry's root and place; a path may lie in another cache, such as a mounted disk."""
    path = os.path.abspath(name)
    if (
        "/" in name
        and "://" not in name
        and os.path.exists(path)
        and not path.startswith(os.path.abspath(root) + "/")
    ):
        above = path
        for _ in range(_DEEPEST):
            above = os.path.dirname(above)
            place = parse_entry_path(above, path)
            if place is not None:
                return above, place
        raise NeuronToolsError(
            f"{name} is no entry of a compile cache", "'neuron-cache ls -q' prints paths of entries"
        )
    return root, find_entries(root, [name])[0]
