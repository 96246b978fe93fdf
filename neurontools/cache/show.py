"""Everything that an entry's files contain: `neuron-cache show`."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from neurontools.base.text import plural, printable, wrap_field
from neurontools.base.units import format_age, format_size, format_size_both, format_time
from neurontools.cache import layouts
from neurontools.cache.entries import EntryReader, read_stored_flags
from neurontools.cache.entry_files import first_error_line
from neurontools.cache.entry_io import Provenance, read_provenance
from neurontools.cache.fields import FUTURE, entry_json, format_elapsed
from neurontools.cache.flags import FlagsRule, flags_rule
from neurontools.cache.graph_facts import GraphForm
from neurontools.cache.layouts import CacheLayout
from neurontools.cache.selection import NoSuchEntryError
from neurontools.cache.walk import CacheTree, EntryRef, open_tree
from neurontools.compiler.neff_header import HEADER_BYTES, NeffError, NeffHeader, read_header

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from neurontools.cache.entries import Entry
    from neurontools.cache.graph_facts import GraphFacts, TensorType
    from neurontools.compiler.neff_file import NativeLibrary


_LOG_BYTES = 1 << 16
_MOST_OPERATORS = 10
_MOST_TENSORS = 8
_LOG_LINES = 40


@dataclass(frozen=True, slots=True)
class EntryFile:
    """A file of an entry: its path below the entry's directory, and its length."""

    name: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class GraphSummary:
    """A stored graph. `facts` is None if it cannot be read; `problem` says why."""

    file: str
    size_bytes: int
    facts: GraphFacts | None
    problem: str = ""

    def operators(self) -> tuple[tuple[str, int], ...]:
        """Return the operators with their counts, most frequent first."""
        return () if self.facts is None else tuple(Counter(self.facts.names).most_common())


@dataclass(frozen=True, slots=True)
class EntryDetails:
    """All details of an entry. `neff_problem` says why the header of its NEFF cannot be read.

    `libraries` are the libraries of custom operators in the NEFF, known only for a NEFF on this computer.
    """

    entry: Entry
    files: tuple[EntryFile, ...]
    rule: FlagsRule | None
    graph: GraphSummary | None
    header: NeffHeader | None
    neff_problem: str
    origin: Provenance | None
    error_line: str
    log: str
    libraries: tuple[NativeLibrary, ...] = ()


def read_details(root: str, place: EntryRef) -> EntryDetails:
    """Return the details of an entry.

    Raises:
        NoSuchEntryError: it is gone.
    """
    tree = open_tree(root)
    entry = EntryReader(root, tree).read(place)
    if entry is None:
        raise NoSuchEntryError(f"the entry {place.path} is gone or cannot be read")
    files = tuple(sorted(_files(tree, place.path), key=lambda file: file.name))
    header, problem = _header(tree, place, files)
    flags = read_stored_flags(place.path, tree) if _has(files, layouts.FLAGS) else None
    graph = _graph(tree, place, files)
    log = tree.read_ends_text(f"{place.path}/{layouts.LOG}", _LOG_BYTES) if _has(files, layouts.LOG) else ""
    return EntryDetails(
        entry=entry,
        files=files,
        rule=None if flags is None else flags_rule(entry.module, flags),
        graph=graph,
        header=header,
        neff_problem=problem,
        origin=read_provenance(place.path, tree) if place.layout is CacheLayout.CURRENT else None,
        error_line=first_error_line(log),
        log=log,
        libraries=_libraries(place, files)
        if graph is not None and graph.facts is not None and graph.facts.libraries
        else (),
    )


def _has(files: tuple[EntryFile, ...], name: str) -> bool:
    return any(file.name == name for file in files)


def _files(tree: CacheTree, path: str, inside: str = "") -> Iterator[EntryFile]:
    try:
        with tree.scandir(path) as items:
            found = list(items)
    except NotADirectoryError:
        yield EntryFile(os.path.basename(path), tree.lstat(path).st_size)
        return
    except OSError:
        return
    for item in found:
        name = f"{inside}{item.name}"
        if item.is_dir(follow_symlinks=False):
            yield from _files(tree, item.path, f"{name}/")
        else:
            with suppress(OSError):
                yield EntryFile(name, item.stat(follow_symlinks=False).st_size)


def _header(tree: CacheTree, place: EntryRef, files: tuple[EntryFile, ...]) -> tuple[NeffHeader | None, str]:
    where = _neff(place, files)
    if not where:
        return None, ""
    try:
        return read_header(tree.read_start(where, HEADER_BYTES)), ""
    except NeffError as error:
        return None, error.message


def _libraries(place: EntryRef, files: tuple[EntryFile, ...]) -> tuple[NativeLibrary, ...]:
    from neurontools.compiler.neff_file import read_neff_file

    where = _neff(place, files)
    try:
        return read_neff_file(where).libraries if where else ()
    except NeffError:
        return ()


def _neff(place: EntryRef, files: tuple[EntryFile, ...]) -> str:
    name = next((file.name for file in files if file.name.endswith(layouts.NEFF_SUFFIX)), "")
    return place.file(name) if name else ""


def _graph(tree: CacheTree, place: EntryRef, files: tuple[EntryFile, ...]) -> GraphSummary | None:
    stored = next((file for name in layouts.GRAPH_NAMES for file in files if file.name == name), None)
    if stored is None:
        return None
    from neurontools.cache.graph_reader import MAX_GRAPH_BYTES, UnreadableGraphError, read_graph

    try:
        facts = read_graph(tree.read_start(f"{place.path}/{stored.name}", MAX_GRAPH_BYTES))
    except UnreadableGraphError as error:
        return GraphSummary(stored.name, stored.size_bytes, None, str(error))
    return GraphSummary(stored.name, stored.size_bytes, facts)


def format_details(details: EntryDetails, now: float, width: int | None = None) -> str:
    """Return the details of an entry, one per line, and its failure log.

    Args:
        details: the details.
        now: Unix seconds.
        width: of the terminal; None for lines of any length.
    """
    lines = (f"  {name:<12}{printable(value)}" for name, value in detail_fields(details, now))
    wrapped = (wrap_field(line, width) for line in (details.entry.module, *lines))
    return "\n".join([*wrapped, *_log_lines(details)])


def detail_fields(details: EntryDetails, now: float) -> tuple[tuple[str, str], ...]:
    """Return the names and values of an entry's details; values may hold any characters.

    Args:
        details: the details.
        now: Unix seconds.
    """
    return (
        *_entry_fields(details, now),
        *_graph_fields(details.graph),
        *(
            ("library", f"{one.name} (custom operators), {format_size(one.size_bytes)}, sha256 {one.digest}")
            for one in details.libraries
        ),
        *_neff_fields(details.header, details.neff_problem),
        ("files", ", ".join(f"{file.name} {format_size(file.size_bytes)}" for file in details.files)),
    )


def _entry_fields(details: EntryDetails, now: float) -> Iterator[tuple[str, str]]:
    entry = details.entry
    yield "state", entry.state.value + (f": {entry.note}" if entry.note else "")
    yield "path", entry.path
    yield "layout", entry.layout.value + (", pinned" if entry.pinned else "")
    if entry.tags:
        yield "tags", " ".join(entry.tags)
    yield "compiler", entry.compiler or "unknown"
    yield "size", format_size_both(entry.size_bytes) + " on disk"
    yield "made", _when(entry.made_unix_s, now)
    yield "last used", f"{_when(entry.used_unix_s, now)}, {plural(entry.hits, 'hit', 'hits')} of this user"
    yield "compiled by", _origin(details)
    if entry.lock is not None:
        yield "lock", f"{entry.lock.holder}, {format_age(entry.lock.age_s)} old"
    if details.rule is not None:
        yield "flags", " ".join(entry.flags) or "(none)"
        yield "flags hash", f"{entry.module.rpartition('+')[2]} ({details.rule})"
    elif any(file.name == layouts.FLAGS for file in details.files):
        yield "flags", f"unreadable or not a JSON list of flags: {layouts.FLAGS}"


def details_json(details: EntryDetails) -> dict[str, Any]:
    """Return the JSON form: bytes, seconds and Unix seconds."""
    entry, origin, lock = details.entry, details.origin, details.entry.lock
    return {
        **entry_json(entry),
        "files": [asdict(file) for file in details.files],
        "flags_rule": details.rule,
        "lock": None
        if lock is None
        else {"holder": lock.holder, "state": lock.liveness.value, "age_s": lock.age_s},
        "compiled_by": None if origin is None else asdict(origin),
        "graph": None if details.graph is None else _graph_json(details.graph),
        "libraries": [
            {"name": library.name, "sha256": library.digest, "size_bytes": library.size_bytes}
            for library in details.libraries
        ],
        "neff": None if details.header is None else _header_json(details.header),
        "neff_problem": details.neff_problem or None,
        "error_line": details.error_line or None,
        "log": details.log or None,
    }


def _when(unix_s: float, now: float) -> str:
    age = format_elapsed(now - unix_s)
    return f"{format_time(unix_s)} ({'in the future' if age == FUTURE else age + ' ago'})"


def _origin(details: EntryDetails) -> str:
    origin = details.origin
    if origin is None:
        return "not recorded"
    compiler_process = (
        f"{origin.program or 'a program'}, process {origin.pid} of user {origin.user} on {origin.host}"
    )
    return f"{compiler_process}, in {origin.compile_s:.3f} s"


def _graph_fields(graph: GraphSummary | None) -> Iterator[tuple[str, str]]:
    if graph is None:
        return
    facts = graph.facts
    if facts is None:
        yield (
            "graph",
            f"{graph.file}, {format_size(graph.size_bytes)}: cannot be read, {graph.problem}",
        )
        return
    number = plural(len(facts.operations), "operator", "operators")
    if facts.form is GraphForm.HLO:
        yield "graph", f"{number} of an HLO module ({graph.file}, {format_size(graph.size_bytes)})"
    else:
        extra = plural(len(facts.libraries), "native library", "native libraries")
        extra = f", {extra}" if facts.libraries else ""
        yield "graph", f"{number}, {format_size(facts.buffers_bytes)} of buffers{extra}"
    operators = graph.operators()
    shown = [f"{name} x{count}" for name, count in operators[:_MOST_OPERATORS]]
    if len(operators) > _MOST_OPERATORS:
        shown.append(f"and {plural(len(operators) - _MOST_OPERATORS, 'other kind', 'other kinds')}")
    yield "operators", ", ".join(shown)
    yield "inputs", _tensors(facts.inputs)
    yield "outputs", _tensors([output.tensor for output in facts.outputs])
    sources = list(dict.fromkeys(item.source for item in facts.operations if item.source))
    if sources:
        yield "from", f"{sources[0]} to {sources[-1]}" if len(sources) > 1 else sources[0]
    if facts.cut:
        yield "cut by", facts.cut
    for problem in facts.unread:
        yield "not read", problem


def _neff_fields(header: NeffHeader | None, problem: str) -> Iterator[tuple[str, str]]:
    if problem:
        yield "neff", problem
    if header is not None:
        version = ".".join(map(str, header.version))
        cores = plural(header.core_count, "NeuronCore", "NeuronCores")
        yield "neff", f"{header.name or '(no name)'}: version {version}, {cores}, LNC {header.lnc}"
        yield "built by", header.build_version or "unknown"
        yield "data", f"{format_size(header.data_bytes)}, hash {header.data_hash.hex()}"
        yield "uuid", header.uuid.hex()


def _log_lines(details: EntryDetails) -> list[str]:
    if not details.log:
        return []
    lines = ["", f"error: {printable(details.error_line)}", "log:"]
    stored = details.log.splitlines()
    lines += [f"  {printable(line)}" for line in stored[:_LOG_LINES]]
    if len(stored) > _LOG_LINES:
        lines.append(f"  ... {len(stored) - _LOG_LINES} more lines in {details.entry.path}/model.log")
    return lines


def _tensors(tensors: Sequence[TensorType]) -> str:
    shown = [str(tensor) for tensor in tensors[:_MOST_TENSORS]]
    if len(tensors) > _MOST_TENSORS:
        shown.append(f"and {len(tensors) - _MOST_TENSORS} more")
    return ", ".join(shown) or "none"


def _graph_json(graph: GraphSummary) -> dict[str, Any]:
    facts = graph.facts
    return {
        "file": graph.file,
        "size_bytes": graph.size_bytes,
        "readable": facts is not None,
        "problem": graph.problem or None,
        "form": None if facts is None else facts.form.value,
        "operators": dict(graph.operators()),
        "inputs": [] if facts is None else [tensor._asdict() for tensor in facts.inputs],
        "outputs": [] if facts is None else [output.tensor._asdict() for output in facts.outputs],
        "buffers_bytes": 0 if facts is None else facts.buffers_bytes,
        "libraries": 0 if facts is None else len(facts.libraries),
        "cut": None if facts is None else facts.cut or None,
        "not_read": [] if facts is None else list(facts.unread),
    }


def _header_json(header: NeffHeader) -> dict[str, Any]:
    fields = asdict(header) | {"version": ".".join(map(str, header.version)), "uuid": header.uuid.hex()}
    fields["hash"] = fields.pop("data_hash").hex()
    return fields
