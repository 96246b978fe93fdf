"""Checking what is stored: names against content, headers, sizes, digests, markers, leftovers."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import time
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from neurontools.cache import layout
from neurontools.cache.entry_reader import EntryReader
from neurontools.cache.flags import FlagsRule, flags_rule
from neurontools.cache.generations import NEFF_SUFFIX, Generation
from neurontools.cache.leftovers import leftovers
from neurontools.cache.owner import Liveness
from neurontools.cache.reading import open_unseen, read_start
from neurontools.cache.remote.url import is_remote
from neurontools.cache.states import State
from neurontools.cache.usage import Usage
from neurontools.cache.waiters import dead_marks
from neurontools.compiler.neff_header import HEADER_BYTES, NeffError, read_header

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from neurontools.cache.entry_reader import Entry
    from neurontools.cache.walk import Place
    from neurontools.compiler.neff_header import NeffHeader

_CHUNK_BYTES = 1 << 20
_MAX_FLAGS_BYTES = 1 << 20
_OLD_LEFTOVER_S = 60.0
_PROGRESS_STEP = 16
_UNREADABLE = frozenset({errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE})


class Problem(StrEnum):
    """What can be wrong. A LEFTOVER only takes room, and of what is UNREADABLE nothing else is known."""

    FLAGS = "flags"
    HEADER = "header"
    SIZE = "size"
    HASH = "hash"
    CONTENT = "content"
    UNMARKED = "no done marker"
    NO_NEFF = "no neff"
    EMPTY = "empty file"
    LEFTOVER = "leftover"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong: at which path, what, in words; `entry` is None for a leftover outside of entries."""

    path: str
    problem: Problem
    words: str
    entry: Entry | None


def check(
    root: str, places: Sequence[Place], progress: Callable[[int, int], None] | None = None
) -> tuple[int, tuple[Finding, ...]]:
    """Return how many entries were checked, and what is wrong with them; what is locked by the living is left out.

    Args:
        root: the cache.
        places: which entries.
        progress: is told now and then how many entries of how many are done.
    """
    reader = EntryReader(root)
    findings: list[Finding] = []
    checked = 0
    for number, place in enumerate(places):
        if progress is not None and number % _PROGRESS_STEP == 0:
            progress(number, len(places))
        entry = reader.read(place)
        if entry is None:
            findings += unreadable([place.path])
            continue
        if entry.state is State.LOCKED:
            continue
        checked += 1
        findings += _check_entry(entry)
    return checked, tuple(findings)


def unreadable(directories: Iterable[str]) -> list[Finding]:
    """Return what is to be said of directories that cannot be read; one that is gone is nothing."""
    there = (path for path in directories if os.path.lexists(path))
    return [Finding(path, Problem.UNREADABLE, "the directory cannot be read", None) for path in there]


def reason_against(findings: Sequence[Finding]) -> str:
    """Return why an entry with such findings is not to be carried elsewhere, "" where nothing speaks against it."""
    for finding in findings:
        if finding.problem is not Problem.LEFTOVER:
            return finding.words if finding.problem is Problem.UNREADABLE else f"damaged: {finding.words}"
    return ""


def check_leftovers(root: str) -> tuple[Finding, ...]:
    """Return what killed removals and imports left, and this user's counters of entries that are gone; locally."""
    if is_remote(root):
        return ()
    left = [(item.path, item.words) for item in leftovers(root)]
    left += [(path, "counts hits of an entry that is gone") for path in Usage(root).orphans()]
    return tuple(Finding(path, Problem.LEFTOVER, words, None) for path, words in left)


def _check_entry(entry: Entry) -> Iterator[Finding]:
    unreadable = list(_check_readable(entry))
    yield from unreadable
    if unreadable:
        return
    if entry.generation is Generation.CURRENT:
        yield from _check_current(entry)
    else:
        if entry.generation is Generation.VLLM and entry.state is State.INTERRUPTED:
            yield Finding(entry.path, Problem.UNMARKED, entry.note, entry)
        for path in _neffs(entry.path):
            yield from _check_neff(entry, path)


def _check_readable(entry: Entry) -> Iterator[Finding]:
    """Tell files that this user may not read, or that a file system does not give now: that is no damage."""
    named = [f"{entry.path}/{layout.FLAGS}"] if entry.generation is Generation.CURRENT else []
    for path in (*named, *_neffs(entry.path)):
        try:
            open_unseen(path).close()
        except OSError as error:
            if error.errno in _UNREADABLE:
                words = f"cannot be read: {error.strerror}"
                yield Finding(path, Problem.UNREADABLE, words, entry)


def _check_current(entry: Entry) -> Iterator[Finding]:
    names = _names(entry.path)
    yield from _check_flags(entry, names)
    for name in layout.GRAPH_NAMES:
        if name in names and not _length(f"{entry.path}/{name}"):
            yield Finding(f"{entry.path}/{name}", Problem.EMPTY, "the graph is empty", entry)
    if layout.NEFF in names:
        if layout.DONE not in names:
            yield Finding(entry.path, Problem.UNMARKED, "a compile was ended while it wrote", entry)
        yield from _check_neff(entry, f"{entry.path}/{layout.NEFF}")
    elif layout.DONE in names:
        yield Finding(entry.path, Problem.NO_NEFF, "marked as done without a neff", entry)
    yield from _check_leftovers(entry, names)


def _check_leftovers(entry: Entry, names: set[str]) -> Iterator[Finding]:
    now = time.time()
    dead = dead_marks(entry.path)
    for name in sorted(names):
        path = f"{entry.path}/{name}"
        # A repair moves the whole entry if anything else is wrong with it, so these come last.
        if name.startswith(layout.TEMPORARY_PREFIX) and now - _changed(path) > _OLD_LEFTOVER_S:
            yield Finding(path, Problem.LEFTOVER, "left by a killed writer", entry)
        if name in dead:
            yield Finding(path, Problem.LEFTOVER, "left by a killed waiter", entry)
        is_lock = name.endswith(layout.LOCK_SUFFIX)
        if is_lock and entry.lock is not None and entry.lock.liveness is Liveness.DEAD:
            yield Finding(path, Problem.LEFTOVER, f"left by {entry.lock.holder}", entry)


def _check_flags(entry: Entry, names: set[str]) -> Iterator[Finding]:
    if layout.FLAGS not in names:
        return
    path = f"{entry.path}/{layout.FLAGS}"
    try:
        stored = json.loads(read_start(path, _MAX_FLAGS_BYTES))
    except (ValueError, RecursionError):
        stored = None
    if not isinstance(stored, list) or not all(isinstance(flag, str) for flag in stored):
        yield Finding(path, Problem.FLAGS, "not a JSON list of flags", entry)
    elif flags_rule(entry.module, stored) is FlagsRule.NONE:
        wanted = entry.module.rpartition("+")[2]
        yield Finding(
            path, Problem.FLAGS, f"the flags do not give the {wanted} of the directory's name", entry
        )


def _check_neff(entry: Entry, path: str) -> Iterator[Finding]:
    try:
        header = read_header(read_start(path, HEADER_BYTES))
    except NeffError as error:
        yield Finding(path, Problem.HEADER, error.message, entry)
        return
    length = _length(path) - HEADER_BYTES
    if length != header.data_bytes:
        words = f"{length} bytes of data, {header.data_bytes} announced"
        yield Finding(path, Problem.SIZE, words, entry)
    elif not _hash_matches(path, header):
        yield Finding(path, Problem.HASH, "the data does not match the header's hash", entry)
    elif entry.ours:
        yield from _check_content(entry, path)


def _check_content(entry: Entry, path: str) -> Iterator[Finding]:
    from neurontools.compiler.graph import module_hash_of
    from neurontools.compiler.neff import parse

    try:
        with open_unseen(path) as stored:
            neff = parse(stored.read())
    except NeffError as error:
        yield Finding(path, Problem.CONTENT, error.message, entry)
        return
    except OSError as error:
        yield Finding(path, Problem.CONTENT, error.strerror or str(error), entry)
        return
    split = layout.split_module(entry.module)
    if split is not None and module_hash_of(neff.graph.digest()) != split[0]:
        yield Finding(path, Problem.CONTENT, "its graph is not the one in the directory's name", entry)


def _hash_matches(path: str, header: NeffHeader) -> bool:
    digest = hashlib.md5(usedforsecurity=False) if header.package_version == 1 else hashlib.sha256()
    try:
        with open_unseen(path) as stored:
            stored.seek(HEADER_BYTES)
            while chunk := stored.read(_CHUNK_BYTES):
                digest.update(chunk)
    except OSError:
        return False
    return digest.digest() == header.data_hash[: digest.digest_size]


def _neffs(path: str) -> list[str]:
    if path.endswith(NEFF_SUFFIX):
        return [path]
    return sorted(
        f"{directory}/{name}"
        for directory, _, names in os.walk(path)
        for name in names
        if name.endswith(NEFF_SUFFIX)
    )


def _names(path: str) -> set[str]:
    try:
        return set(os.listdir(path))
    except OSError:
        return set()


def _length(path: str) -> int:
    try:
        return os.lstat(path).st_size
    except OSError:
        return 0


def _changed(path: str) -> float:
    try:
        return os.lstat(path).st_mtime
    except OSError:
        return time.time()
