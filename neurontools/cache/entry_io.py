"""Reading and writing the files of one entry. An entry is complete before its done marker appears.

A small file beside the NEFF records who compiled it, when, and how long that took; nothing depends on it.
"""

from __future__ import annotations

import json
import os
import re
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from neurontools.base.json_reader import load_json, to_float
from neurontools.cache import layouts
from neurontools.cache.layouts import open_entry
from neurontools.cache.lock_owner import dead_waiter_files
from neurontools.cache.locks import hold, release
from neurontools.cache.walk import LOCAL, CacheTree
from neurontools.compiler.neff import Neff, NeffError, parse
from neurontools.compiler.options import CompileError

if TYPE_CHECKING:
    from neurontools.base.directories import Directory
    from neurontools.compiler.graph import Graph

_OLD_LEFTOVER_S = 60.0
_MAX_LOG_BYTES = 1 << 20
_ERROR_LINE = re.compile(r"\[(NCC_[A-Z]+[0-9]+)\] (.*)")

_MAX_PROVENANCE_BYTES = 1 << 14


@dataclass(frozen=True, slots=True)
class CachedNeff:
    """A valid NEFF from the cache; `held` is the descriptor that marks its entry as in use, None if that failed."""

    neff: Neff
    data: bytes
    held: int | None


def look_up(entry: str, digest: str, *, validate_hash: bool) -> CachedNeff | None:
    """Return the NEFF of a finished entry, or None.

    Args:
        entry: the entry's directory.
        digest: the graph's full digest, which the NEFF's graph must have.
        validate_hash: check the NEFF's digest, too.

    Raises:
        NeffError: the entry has a done marker, but its NEFF is damaged or was compiled from another graph.
    """
    held = None
    try:
        with open_entry(entry) as directory:
            if not directory.has_file(layouts.DONE):
                return None
            held = hold(entry)
            data = directory.read(layouts.NEFF)
        neff = _parse_expected(data, digest, validate_hash=validate_hash)
    except OSError:
        release(held)
        return None
    except NeffError:
        release(held)
        raise
    return CachedNeff(neff, data, held)


def prepare_entry(root: str, entry: str, graph: Graph, flags: tuple[str, ...]) -> None:
    """Store the input of a compile: the graph in place of the HLO module, and the flags.

    Raises:
        OSError: the entry cannot be written to.
    """
    with open_entry(entry) as directory:
        _remove_leftovers(directory)
        for name in dead_waiter_files(entry):
            directory.remove_quietly(name)
        if not os.path.exists(f"{root}/{layouts.ROOT_LOCK}"):
            layouts.make_root(root)
        directory.write(layouts.GRAPH, graph.to_bytes())
        directory.write(layouts.FLAGS, json.dumps(list(flags)))


def publish(entry: str, data: bytes) -> None:
    """Store a NEFF and, after it is on disk, the done marker.

    Raises:
        OSError: the entry cannot be written to; it is then not marked as done.
    """
    with open_entry(entry) as directory:
        directory.remove_quietly(layouts.DONE)
        directory.remove_quietly(layouts.LOG)
        directory.write(layouts.NEFF, data)
        directory.write(layouts.DONE, b"")


def discard_neff(entry: str) -> None:
    """Remove the damaged NEFF of an entry locked by this process; errors are ignored."""
    with suppress(OSError), open_entry(entry) as directory:
        directory.remove_quietly(layouts.DONE)
        directory.remove_quietly(layouts.NEFF)


def store_failure(entry: str, error: CompileError) -> None:
    """Store a compile error, so that the next lookup does not compile again.

    Raises:
        OSError: the entry cannot be written to.
    """
    lines = [f"ERROR: {error.message}", f"hint: {error.remedy}", "Compiler status ERROR", ""]
    with open_entry(entry) as directory:
        directory.remove_quietly(layouts.DONE)
        directory.remove_quietly(layouts.NEFF)
        directory.write(layouts.LOG, "\n".join(lines))


def read_failure(entry: str) -> CompileError | None:
    """Return the compile error stored in an entry, None if its log has no error code."""
    try:
        with open_entry(entry) as directory:
            if directory.has_file(layouts.NEFF):
                return None
            text = directory.read(layouts.LOG, _MAX_LOG_BYTES).decode("utf-8", "replace")
    except OSError:
        return None
    found = _ERROR_LINE.search(text)
    if found is None:
        return None
    remedy = re.search(r"^hint: (.*)$", text, re.MULTILINE)
    return CompileError(found[1], found[2], remedy[1] if remedy else "")


def _parse_expected(data: bytes, digest: str, *, validate_hash: bool) -> Neff:
    neff = parse(data, validate_hash=validate_hash)
    if neff.graph.digest() != digest:
        raise NeffError("it holds another graph")
    return neff


def _remove_leftovers(directory: Directory) -> None:
    for name in directory.names():
        if name.startswith(layouts.TEMPORARY_PREFIX):
            found = directory.status(name)
            if found is not None and time.time() - found.st_mtime > _OLD_LEFTOVER_S:
                directory.remove_quietly(name)


@dataclass(frozen=True, slots=True)
class Provenance:
    """The compile of an entry: its duration, start (Unix seconds) and process."""

    compile_s: float
    started_unix_s: float
    host: str
    pid: int
    user: str
    program: str


def new_provenance(compile_s: float) -> Provenance:
    """Return the record of a compile that this process has just finished."""
    import sys

    return Provenance(
        compile_s=round(compile_s, 6),
        started_unix_s=round(time.time() - compile_s, 3),
        host=os.uname().nodename,
        pid=os.getpid(),
        user=str(os.getuid()),
        program=os.path.basename(sys.argv[0]) if sys.argv else "",
    )


def write_provenance(entry: str, origin: Provenance) -> None:
    """Store a record in an entry; errors are ignored."""
    with suppress(OSError), open_entry(entry) as directory:
        directory.write(layouts.ORIGIN, json.dumps(asdict(origin)) + "\n", sync=False)


def read_provenance(entry: str, tree: CacheTree = LOCAL) -> Provenance | None:
    """Return the record of an entry, None if it is missing or invalid."""
    data = tree.read_start(f"{entry}/{layouts.ORIGIN}", _MAX_PROVENANCE_BYTES)
    if not data:
        return None
    try:
        stored = load_json(data)
        return Provenance(
            compile_s=to_float(stored["compile_s"]),
            started_unix_s=to_float(stored["started_unix_s"]),
            host=str(stored["host"]),
            pid=int(stored["pid"]),
            user=str(stored["user"]),
            program=str(stored["program"]),
        )
    except (KeyError, TypeError, ValueError):
        return None
