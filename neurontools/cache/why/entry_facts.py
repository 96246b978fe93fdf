"""What an entry says that can explain a miss: compiler, flags, graph, NEFF header, who compiled it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools.cache import layout
from neurontools.cache.entry_reader import EntryReader, read_stored_flags
from neurontools.cache.generations import Generation
from neurontools.cache.graphs.graph_reading import (
    MAX_GRAPH_BYTES,
    UnreadableGraphError,
    facts_of_graph,
    read_graph,
)
from neurontools.cache.naming import NoSuchEntryError
from neurontools.cache.origin import Origin, read_origin
from neurontools.cache.tree import exists, tree_of
from neurontools.compiler.neff_header import HEADER_BYTES, NeffError, NeffHeader, read_header

if TYPE_CHECKING:
    from neurontools.cache.entry_reader import Entry
    from neurontools.cache.graphs.graph_facts import GraphFacts
    from neurontools.cache.tree import Tree
    from neurontools.cache.walk import Place


@dataclass(frozen=True, slots=True)
class EntryFacts:
    """An entry as `why` sees it. `flags` and `graph` are None where they cannot be read; `unread` says what and why."""

    entry: Entry
    graph_hash: str
    flags: tuple[str, ...] | None
    graph: GraphFacts | None
    header: NeffHeader | None
    origin: Origin | None
    unread: tuple[str, ...]


def read_facts(root: str, place: Place, tree: Tree | None = None) -> EntryFacts:
    """Return what an entry says.

    Args:
        root: its cache.
        place: where it is.
        tree: reads the root; None for one of its own.

    Raises:
        NoSuchEntryError: it is gone.
    """
    tree = tree_of(root) if tree is None else tree
    entry = EntryReader(root, tree).read(place)
    if entry is None:
        raise NoSuchEntryError(f"the entry {place.path} is gone or cannot be read")
    unread: list[str] = []
    graph = _graph(tree, place, unread)
    if graph is not None:
        unread += graph.unread
    is_current = place.generation is Generation.CURRENT
    flags = read_stored_flags(place.path, tree) if is_current else None
    if flags is None:
        is_there = is_current and exists(tree, f"{place.path}/{layout.FLAGS}")
        why = (
            f"{layout.FLAGS} is no JSON list of flags, or cannot be read"
            if is_there
            else f"no {layout.FLAGS}"
        )
        unread.append(f"its flags: {why if is_current else 'this layout keeps none'}")
    split = layout.split_module(place.module)
    return EntryFacts(
        entry=entry,
        graph_hash=split[0] if split else "",
        flags=flags,
        graph=graph,
        header=_header(tree, place),
        origin=read_origin(place.path, tree) if is_current else None,
        unread=tuple(unread),
    )


def graph_file(tree: Tree, entry: str) -> str:
    """Return the path of an entry's graph file, "" where there is none."""
    return next((path for name in layout.GRAPH_NAMES if exists(tree, path := f"{entry}/{name}")), "")


def _graph(tree: Tree, place: Place, unread: list[str]) -> GraphFacts | None:
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


def _graph_of_neff(tree: Tree, place: Place) -> GraphFacts | None:
    """Return the graph that a NEFF of ours carries."""
    from neurontools.compiler.neff import parse

    data = tree.read_start(f"{place.path}/{layout.NEFF}", MAX_GRAPH_BYTES)
    try:
        return facts_of_graph(parse(data).graph) if data else None
    except NeffError:
        return None


def _header(tree: Tree, place: Place) -> NeffHeader | None:
    where = place.path if place.generation is Generation.TORCHNEURON else f"{place.path}/{layout.NEFF}"
    try:
        return read_header(tree.read_start(where, HEADER_BYTES))
    except NeffError:
        return None
