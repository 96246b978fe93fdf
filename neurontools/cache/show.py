"""Everything that an entry's files tell: `neuron-cache show`."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools.cache import layout
from neurontools.cache.entry_reader import EntryReader
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
    from neurontools.cache.tree import Tree
    from neurontools.cache.walk import Place
    from neurontools.compiler.graph import Graph, View
    from neurontools.compiler.neff_file import NativeLibrary

_MAX_GRAPH_BYTES = 1 << 26
_LOG_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class File:
    """A file of an entry, named from the entry's directory; `size_bytes` is its length."""

    name: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor that a graph gets or gives."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GraphSummary:
    """What a stored graph is; `readable` is False for an HLO module, of which only the size is known."""

    file: str
    size_bytes: int
    readable: bool
    operators: tuple[tuple[str, int], ...] = ()
    inputs: tuple[Tensor, ...] = ()
    outputs: tuple[Tensor, ...] = ()
    buffers_bytes: int = 0
    libraries: int = 0


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
    graph = _graph(tree, place, files)
    log = tree.read_ends_text(f"{place.path}/{layout.LOG}", _LOG_BYTES) if _has(files, layout.LOG) else ""
    return Details(
        entry=entry,
        files=files,
        rule=flags_rule(entry.module, entry.flags) if _has(files, layout.FLAGS) else None,
        graph=graph,
        header=header,
        neff_problem=problem,
        origin=read_origin(place.path, tree) if place.generation is Generation.CURRENT else None,
        error_line=first_error_line(log),
        log=log,
        libraries=_libraries(place, files) if graph is not None and graph.libraries else (),
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
    unread = GraphSummary(stored.name, stored.size_bytes, readable=False)
    data = tree.read_start(f"{place.path}/{stored.name}", _MAX_GRAPH_BYTES)
    # An HLO module is a protocol buffer, and ours is JSON: a brace says which.
    if not data.startswith(b"{"):
        return unread
    from neurontools.compiler.graph import GraphError, graph_from_bytes

    try:
        return _summary(stored, graph_from_bytes(data))
    except GraphError:
        return unread


def _summary(stored: File, graph: Graph) -> GraphSummary:
    from neurontools.compiler.graph import reads

    first_use: dict[int, View] = {}
    last_use: dict[int, View] = {}
    for node in graph.nodes:
        for view in (*reads(node), *(view for view in node.results if view is not None)):
            first_use.setdefault(view.slot, view)
            last_use[view.slot] = view
    return GraphSummary(
        file=stored.name,
        size_bytes=stored.size_bytes,
        readable=True,
        operators=tuple(Counter(node.op for node in graph.nodes).most_common()),
        inputs=_tensors(graph.inputs, first_use),
        outputs=_tensors(graph.outputs, last_use),
        buffers_bytes=sum(slot.nbytes for slot in graph.slots),
        libraries=len(graph.libraries),
    )


def _tensors(slots: tuple[int, ...], uses: dict[int, View]) -> tuple[Tensor, ...]:
    return tuple(Tensor(uses[slot].dtype, uses[slot].shape) for slot in slots if slot in uses)
