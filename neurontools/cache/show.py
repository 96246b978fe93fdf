"""Everything that an entry's files tell: `neuron-cache show`."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools.cache import layout
from neurontools.cache.entry_reader import EntryReader, read_stored_flags
from neurontools.cache.flags import FlagsRule, flags_rule
from neurontools.cache.generations import Generation
from neurontools.cache.naming import NoSuchEntryError
from neurontools.cache.origin import Origin, read_origin
from neurontools.cache.states import first_error_line
from neurontools.cache.tree import tree_of
from neurontools.compiler.neff_header import HEADER_BYTES, NeffError, NeffHeader, read_header

if TYPE_CHECKING:
    from collections.abc import Iterator

    from neurontools.cache.entries import Entry
    from neurontools.cache.graphs.graph_facts import GraphFacts
    from neurontools.cache.tree import Tree
    from neurontools.cache.walk import Place
    from neurontools.compiler.neff_file import NativeLibrary

_LOG_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class File:
    """A file of an entry, named from the entry's directory; `size_bytes` is its length."""

    name: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class GraphSummary:
    """What a stored graph is. `facts` are None for one that cannot be read; `problem` says why."""

    file: str
    size_bytes: int
    facts: GraphFacts | None
    problem: str = ""

    def operators(self) -> tuple[tuple[str, int], ...]:
        """Return the kinds of operators with their numbers, the most frequent first."""
        return () if self.facts is None else tuple(Counter(self.facts.names).most_common())


@dataclass(frozen=True, slots=True)
class Details:
    """An entry with all that is known of it. `neff_problem` says why there is no header although there is a NEFF.

    `libraries` are the libraries of custom operators in the NEFF, as far as it lies on this computer.
    """

    entry: Entry
    files: tuple[File, ...]
    rule: FlagsRule | None
    graph: GraphSummary | None
    header: NeffHeader | None
    neff_problem: str
    origin: Origin | None
    error_line: str
    log: str
    libraries: tuple[NativeLibrary, ...] = ()


def describe_entry(root: str, place: Place) -> Details:
    """Return what the files of an entry tell.

    Raises:
        NoSuchEntryError: it is gone.
    """
    tree = tree_of(root)
    entry = EntryReader(root, tree).read(place)
    if entry is None:
        raise NoSuchEntryError(f"the entry {place.path} is gone or cannot be read")
    files = tuple(sorted(_files(tree, place.path), key=lambda file: file.name))
    header, problem = _header(tree, place, files)
    flags = read_stored_flags(place.path, tree) if _has(files, layout.FLAGS) else None
    graph = _graph(tree, place, files)
    log = tree.read_ends_text(f"{place.path}/{layout.LOG}", _LOG_BYTES) if _has(files, layout.LOG) else ""
    return Details(
        entry=entry,
        files=files,
        rule=None if flags is None else flags_rule(entry.module, flags),
        graph=graph,
        header=header,
        neff_problem=problem,
        origin=read_origin(place.path, tree) if place.generation is Generation.CURRENT else None,
        error_line=first_error_line(log),
        log=log,
        libraries=_libraries(place, files)
        if graph is not None and graph.facts is not None and graph.facts.libraries
        else (),
    )


def _has(files: tuple[File, ...], name: str) -> bool:
    return any(file.name == name for file in files)


def _files(tree: Tree, path: str, inside: str = "") -> Iterator[File]:
    try:
        with tree.scandir(path) as items:
            found = list(items)
    except NotADirectoryError:
        yield File(os.path.basename(path), tree.lstat(path).st_size)
        return
    except OSError:
        return
    for item in found:
        name = f"{inside}{item.name}"
        if item.is_dir(follow_symlinks=False):
            yield from _files(tree, item.path, f"{name}/")
        else:
            with suppress(OSError):
                yield File(name, item.stat(follow_symlinks=False).st_size)


def _header(tree: Tree, place: Place, files: tuple[File, ...]) -> tuple[NeffHeader | None, str]:
    where = _neff(place, files)
    if not where:
        return None, ""
    try:
        return read_header(tree.read_start(where, HEADER_BYTES)), ""
    except NeffError as error:
        return None, error.message


def _libraries(place: Place, files: tuple[File, ...]) -> tuple[NativeLibrary, ...]:
    from neurontools.compiler.neff_file import read_neff_file

    where = _neff(place, files)
    try:
        return read_neff_file(where).libraries if where else ()
    except NeffError:
        return ()


def _neff(place: Place, files: tuple[File, ...]) -> str:
    neff = next((file.name for file in files if file.name.endswith(".neff")), "")
    if not neff or place.generation is Generation.TORCHNEURON:
        return place.path if neff else ""
    return f"{place.path}/{neff}"


def _graph(tree: Tree, place: Place, files: tuple[File, ...]) -> GraphSummary | None:
    stored = next((file for name in layout.GRAPH_NAMES for file in files if file.name == name), None)
    if stored is None:
        return None
    from neurontools.cache.graphs.graph_reading import MAX_GRAPH_BYTES, UnreadableGraphError, read_graph

    try:
        facts = read_graph(tree.read_start(f"{place.path}/{stored.name}", MAX_GRAPH_BYTES))
    except UnreadableGraphError as error:
        return GraphSummary(stored.name, stored.size_bytes, None, str(error))
    return GraphSummary(stored.name, stored.size_bytes, facts)
