"""What an entry says that can explain a miss: compiler, flags, graph, NEFF header, who compiled it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools.cache import layouts
from neurontools.cache.entries import EntryReader, read_stored_flags
from neurontools.cache.graphs.graph_reading import (
    MAX_GRAPH_BYTES,
    UnreadableGraphError,
    facts_of_graph,
    read_graph,
)
from neurontools.cache.layouts import CacheLayout
from neurontools.cache.provenance import Provenance, read_provenance
from neurontools.cache.selection import NoSuchEntryError
from neurontools.cache.tree import exists, open_tree
from neurontools.compiler.neff_header import HEADER_BYTES, NeffError, NeffHeader, read_header

if TYPE_CHECKING:
    from neurontools.cache.entries import Entry
    from neurontools.cache.graphs.graph_facts import GraphFacts
    from neurontools.cache.tree import CacheTree
    from neurontools.cache.walk import EntryRef


@dataclass(frozen=True, slots=True)
class EntryFacts:
    """An entry as `why` sees it. `flags` and `graph` are None where they cannot be read; `unread` says what and why."""

    entry: Entry
    graph_hash: str
    flags: tuple[str, ...] | None
    graph: GraphFacts | None
    header: NeffHeader | None
    origin: Provenance | None
    unread: tuple[str, ...]


def read_facts(root: str, place: EntryRef, tree: CacheTree | None = None) -> EntryFacts:
    """Return what an entry says.

    Args:
        root: its cache.
        place: where it is.
        tree: reads the root; None for one of its own.

    Raises:
        NoSuchEntryError: it is gone.
    """
    tree = open_tree(root) if tree is None else tree
    entry = EntryReader(root, tree).read(place)
    if entry is None:
        raise NoSuchEntryError(f"the entry {place.path} is gone or cannot be read")
    unread: list[str] = []
    graph = _graph(tree, place, unread)
    if graph is not None:
        unread += graph.unread
    is_current = place.layout is CacheLayout.CURRENT
    flags = read_stored_flags(place.path, tree) if is_current else None
    if flags is None:
        is_there = is_current and exists(tree, f"{place.path}/{layouts.FLAGS}")
        why = (
            f"{layouts.FLAGS} is no JSON list of flags, or cannot be read"
            if is_there
            else f"no {layouts.FLAGS}"
        )
        unread.append(f"its flags: {why if is_current else 'this layout keeps none'}")
    split = layouts.split_module(place.module)
    return EntryFacts(
        entry=entry,
        graph_hash=split[0] if split else "",
        flags=flags,
        graph=graph,
        header=_header(tree, place),
        origin=read_provenance(place.path, tree) if is_current else None,
        unread=tuple(unread),
    )


def graph_file(tree: CacheTree, entry: str) -> str:
    """Return the path of an entry's graph file, "" where there is none."""
    return next((path for name in layouts.GRAPH_NAMES if exists(tree, path := f"{entry}/{name}")), "")


def _graph(tree: CacheTree, place: EntryRef, unread: list[str]) -> GraphFacts | None:
    stored = graph_file(tree, place.path)
    if stored:
        try:
            return read_graph(tree.read_start(stored, MAX_GRAPH_BYTES))
        except UnreadableGraphError as error:
            unread.append(f"its graph ({stored.rpartition('/')[2]}): {error}")
    found = _graph_of_neff(tree, place)
    if found is None and not stored:
        unread.append("its graph: no graph file is stored with it")
    return found


def _graph_of_neff(tree: CacheTree, place: EntryRef) -> GraphFacts | None:
    """Return the graph that a NEFF of ours carries."""
    from neurontools.compiler.neff import parse

    data = tree.read_start(f"{place.path}/{layouts.NEFF}", MAX_GRAPH_BYTES)
    try:
        return facts_of_graph(parse(data).graph) if data else None
    except NeffError:
        return None


def _header(tree: CacheTree, place: EntryRef) -> NeffHeader | None:
    where = place.path if place.layout is CacheLayout.TORCHNEURON else f"{place.path}/{layouts.NEFF}"
    try:
        return read_header(tree.read_start(where, HEADER_BYTES))
    except NeffError:
        return None
