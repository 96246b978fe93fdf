"""Graph extraction: graphs are stored without a compile, and compiled later (AWS Neuron, neuron_parallel_compile).

An extracted entry holds the graph, its flags and the native libraries of its NEFF, so that it can be compiled without
the program and the device. Extracted graphs are also recorded in the file named by `NEURONTOOLS_EXTRACTION_LOG`.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from neurontools import env
from neurontools.base.json_reader import load_json
from neurontools.cache import layouts, logs
from neurontools.cache.entry_io import look_up, prepare_entry, read_failure
from neurontools.compiler.neff import NativePart, NeffError
from neurontools.errors import NeuronToolsError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from neurontools.base.directories import Directory
    from neurontools.compiler.graph import Graph

EXTRACT_VARIABLE = "NEURON_EXTRACT_GRAPHS_ONLY"
_LIBRARY_PREFIX = ".library-"
_LIBRARY_FACTS = ".json"
_ATTEMPTS = 50


class RecordKind(StrEnum):
    """The kind of a record: the cache, a graph's entry, or an operator that ran on the CPU."""

    ROOT = "root"
    GRAPH = "graph"
    ON_CPU = "cpu"


@dataclass(frozen=True, slots=True)
class ExtractionRecord:
    """One record of the log; `source` is the user's line of an operator, "" if unknown."""

    kind: RecordKind
    text: str
    source: str = ""


def extracts_only(environ: Mapping[str, str]) -> bool:
    """Return whether graphs are extracted instead of compiled."""
    return environ.get(EXTRACT_VARIABLE, "").lower() in {"1", "true"}


def extract(
    root: str, entry: str, graph: Graph, flags: tuple[str, ...], libraries: Sequence[NativePart]
) -> bool:
    """Store a graph for a later compile; return whether the cache already has a valid NEFF of it.

    Args:
        root: of the cache.
        entry: the directory of the graph's entry.
        graph: what to store.
        flags: of its compile.
        libraries: native libraries for its NEFF.

    Raises:
        NeuronToolsError: the cache cannot be written to.
    """
    record(RecordKind.GRAPH, entry)
    if _has_neff(entry, graph):
        logs.log(logging.INFO, logs.WRAPPER, f"Using a cached neff at {entry}/{layouts.NEFF}")
        return True
    if read_failure(entry) is None:
        _store(root, entry, graph, flags, libraries)
    text = f"Extracting graphs ({entry}/{layouts.GRAPH}) for ahead-of-time parallel compilation. "
    logs.log(logging.INFO, logs.WRAPPER, text + "No compilation was done.")
    return False


def read_libraries(entry: str) -> tuple[NativePart, ...]:
    """Return the native libraries of an extracted entry, without those whose content has changed.

    Raises:
        OSError: one cannot be read.
        KeyError, TypeError, ValueError: the metadata of a library is invalid.
    """
    found = []
    with layouts.open_entry(entry) as directory:
        for file in directory.names():
            if not (file.startswith(_LIBRARY_PREFIX) and file.endswith(_LIBRARY_FACTS)):
                continue
            facts = load_json(directory.read(file))
            data = directory.read(file.removesuffix(_LIBRARY_FACTS))
            if hashlib.sha256(data).hexdigest() == facts["digest"]:
                calls = tuple((int(position), int(ns)) for position, ns in facts["call_ns"])
                found.append(NativePart(str(facts["name"]), str(facts["digest"]), data, calls))
    return tuple(found)


def remove_libraries(entry: str) -> None:
    """Remove the libraries of an extracted entry after its NEFF contains them."""
    with layouts.open_entry(entry) as directory:
        for file in directory.names():
            if file.startswith(_LIBRARY_PREFIX):
                directory.unlink(file)


def record(kind: RecordKind, text: str, source: str = "") -> None:
    """Append a record to the extraction log, if there is one."""
    path = os.environ.get(env.EXTRACTION_LOG)
    if path:
        line = json.dumps([kind, text, source]) + "\n"
        with open(path, "a", encoding="utf-8") as log:
            log.write(line)


def read_records(path: str) -> Iterator[ExtractionRecord]:
    """Yield the records of a log; an incomplete line of a killed process is skipped.

    Raises:
        OSError: it cannot be read.
    """
    with open(path, encoding="utf-8", errors="replace") as log:
        for line in log:
            try:
                kind, text, source = load_json(line)
                yield ExtractionRecord(RecordKind(kind), str(text), str(source))
            except (TypeError, ValueError):
                continue


def _has_neff(entry: str, graph: Graph) -> bool:
    try:
        found = look_up(entry, graph.digest(), validate_hash=False)
    except NeffError:
        return False
    if found is not None and found.held is not None:
        os.close(found.held)
    return found is not None


def _store(
    root: str, entry: str, graph: Graph, flags: tuple[str, ...], libraries: Sequence[NativePart]
) -> None:
    for _ in range(_ATTEMPTS):
        try:
            layouts.make_root(root)
            with layouts.open_entry(entry, create=True) as directory:
                for library in libraries:
                    _store_library(directory, library)
            prepare_entry(root, entry, graph, flags)
        except FileNotFoundError:  # the entry was pruned meanwhile
            continue
        except OSError as error:
            raise NeuronToolsError(
                f"cannot store an extracted graph in {entry}: {error.strerror}",
                "graph extraction needs a writable cache; set NEURON_COMPILE_CACHE_URL to another one",
            ) from error
        return
    raise NeuronToolsError(
        f"the entry {entry} keeps disappearing", "stop other processes that prune this cache"
    )


def _store_library(directory: Directory, library: NativePart) -> None:
    facts = {"name": library.name, "digest": library.digest, "call_ns": library.call_ns}
    name = f"{_LIBRARY_PREFIX}{library.digest}"
    directory.write(name, library.data)
    directory.write(name + _LIBRARY_FACTS, json.dumps(facts))
