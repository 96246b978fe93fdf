"""Checking stored entries: names, headers, sizes, digests, markers, orphans; and their repair."""

from __future__ import annotations

import errno
import hashlib
import os
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from neurontools.base.files import open_unseen, read_start, remove_quietly
from neurontools.base.json_reader import load_json
from neurontools.base.text import plural, printable, table
from neurontools.cache import layouts
from neurontools.cache.entries import EntryReader
from neurontools.cache.entry_files import State
from neurontools.cache.events import Usage
from neurontools.cache.flags import FlagsRule, flags_rule
from neurontools.cache.layouts import NEFF_SUFFIX, CacheLayout, display_path
from neurontools.cache.location import is_remote
from neurontools.cache.lock_owner import Liveness, dead_waiter_files
from neurontools.cache.locks import root_lock
from neurontools.cache.pruning.removal import (
    find_orphans,
    is_orphan,
    remove_damaged,
    remove_leftover,
    remove_orphan,
)
from neurontools.compiler.neff_header import HEADER_BYTES, NeffError, read_header

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from neurontools.cache.entries import Entry
    from neurontools.cache.remote.bucket import Bucket
    from neurontools.cache.walk import EntryRef
    from neurontools.compiler.neff_header import NeffHeader


_CHUNK_BYTES = 1 << 20
_MAX_FLAGS_BYTES = 1 << 20
_OLD_LEFTOVER_S = 60.0
_PROGRESS_STEP = 16
_DOWNLOAD_JOBS = 8
_UNREADABLE = frozenset({errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE})


class ProblemKind(StrEnum):
    """What can be wrong. A LEFTOVER only takes up space; UNREADABLE entries cannot be checked further."""

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
class VerifyProblem:
    """A problem at a path; `entry` is None for leftovers outside of entries."""

    path: str
    problem: ProblemKind
    words: str
    entry: Entry | None


def verify_entries(
    root: str, places: Sequence[EntryRef], progress: Callable[[int, int], None] | None = None
) -> tuple[int, tuple[VerifyProblem, ...]]:
    """Return the number of checked entries, and their problems; entries that are being compiled are skipped.

    Args:
        root: the cache.
        places: the entries.
        progress: called periodically with the number of finished entries and the total.
    """
    reader = EntryReader(root)
    findings: list[VerifyProblem] = []
    checked = 0
    for number, place in enumerate(places):
        if progress is not None and number % _PROGRESS_STEP == 0:
            progress(number, len(places))
        entry = reader.read(place)
        if entry is None:
            findings += unreadable_problems([place.path])
            continue
        if entry.state is State.LOCKED:
            continue
        checked += 1
        findings += _check_entry(entry)
    return checked, tuple(findings)


def verify_root(
    root: str, places: Sequence[EntryRef], progress: Callable[[int, int], None] | None = None
) -> tuple[int, tuple[VerifyProblem, ...]]:
    """Verify entries of a directory or a bucket, as `verify_entries`; entries of a bucket are copied first."""
    if not is_remote(root):
        return verify_entries(root, places, progress)
    from concurrent.futures import ThreadPoolExecutor

    from neurontools.cache.remote.bucket import Bucket

    findings: list[VerifyProblem] = []
    checked = 0
    bucket = Bucket(root)
    with ThreadPoolExecutor(_DOWNLOAD_JOBS) as pool:
        copies = pool.map(lambda place: _verify_copy(bucket, root, place), places)
        for number, (count, found) in enumerate(copies):
            if progress is not None:
                progress(number, len(places))
            checked += count
            findings += found
    return checked, tuple(findings)


def _verify_copy(bucket: Bucket, root: str, place: EntryRef) -> tuple[int, list[VerifyProblem]]:
    from neurontools.cache.remote.bucket import RemoteError
    from neurontools.cache.remote.transfer import replica
    from neurontools.cache.remote.tree import BucketTree

    try:
        with replica(BucketTree(root, bucket=bucket), root, place) as (local_root, local_place):
            count, found = verify_entries(local_root, [local_place])
    except RemoteError as error:
        if error.is_gone:
            return 0, []
        raise
    return count, [replace(finding, path=root + finding.path.removeprefix(local_root)) for finding in found]


def unreadable_problems(directories: Iterable[str]) -> list[VerifyProblem]:
    """Return the problems of unreadable directories."""
    existing = (path for path in directories if os.path.lexists(path))
    return [
        VerifyProblem(path, ProblemKind.UNREADABLE, "the directory cannot be read", None) for path in existing
    ]


def damage_reason(findings: Sequence[VerifyProblem]) -> str:
    """Return why an entry with these problems must not be copied, "" if it may be."""
    for finding in findings:
        if finding.problem is not ProblemKind.LEFTOVER:
            return finding.words if finding.problem is ProblemKind.UNREADABLE else f"damaged: {finding.words}"
    return ""


def verify_orphans(root: str) -> tuple[VerifyProblem, ...]:
    """Return leftovers of killed removals and imports, and this user's counters of removed entries; none in a bucket."""
    if is_remote(root):
        return ()
    left = [(item.path, item.words) for item in find_orphans(root)]
    left += [(path, "hit counter of a removed entry") for path in Usage(root).orphan_counters()]
    return tuple(VerifyProblem(path, ProblemKind.LEFTOVER, words, None) for path, words in left)


def _check_entry(entry: Entry) -> Iterator[VerifyProblem]:
    unreadable_problems = list(_check_readable(entry))
    yield from unreadable_problems
    if unreadable_problems:
        return
    if entry.layout is CacheLayout.CURRENT:
        yield from _check_current(entry)
    else:
        if entry.layout is CacheLayout.VLLM and entry.state is State.INTERRUPTED:
            yield VerifyProblem(entry.path, ProblemKind.UNMARKED, entry.note, entry)
        for path in _neffs(entry.path):
            yield from _check_neff(entry, path)


def _check_readable(entry: Entry) -> Iterator[VerifyProblem]:
    """Report files that this user cannot read or the file system cannot provide now; they are not damaged."""
    named = [f"{entry.path}/{layouts.FLAGS}"] if entry.layout is CacheLayout.CURRENT else []
    for path in (*named, *_neffs(entry.path)):
        try:
            open_unseen(path).close()
        except OSError as error:
            if error.errno in _UNREADABLE:
                words = f"cannot be read: {error.strerror}"
                yield VerifyProblem(path, ProblemKind.UNREADABLE, words, entry)


def _check_current(entry: Entry) -> Iterator[VerifyProblem]:
    names = _names(entry.path)
    yield from _check_flags(entry, names)
    for name in layouts.GRAPH_NAMES:
        if name in names and not _length(f"{entry.path}/{name}"):
            yield VerifyProblem(f"{entry.path}/{name}", ProblemKind.EMPTY, "the graph is empty", entry)
    if layouts.NEFF in names:
        if layouts.DONE not in names:
            yield VerifyProblem(entry.path, ProblemKind.UNMARKED, "a compile was killed while writing", entry)
        yield from _check_neff(entry, f"{entry.path}/{layouts.NEFF}")
    elif layouts.DONE in names:
        yield VerifyProblem(entry.path, ProblemKind.NO_NEFF, "marked as done, but there is no neff", entry)
    yield from _check_leftovers(entry, names)


def _check_leftovers(entry: Entry, names: set[str]) -> Iterator[VerifyProblem]:
    now = time.time()
    dead = dead_waiter_files(entry.path)
    for name in sorted(names):
        path = f"{entry.path}/{name}"
        # A repair moves the whole entry for any other problem, so these come last.
        if name.startswith(layouts.TEMPORARY_PREFIX) and now - _change_time(path) > _OLD_LEFTOVER_S:
            yield VerifyProblem(path, ProblemKind.LEFTOVER, "left by a killed writer", entry)
        if name in dead:
            yield VerifyProblem(path, ProblemKind.LEFTOVER, "left by a killed waiter", entry)
        is_lock = name.endswith(layouts.LOCK_SUFFIX)
        if is_lock and entry.lock is not None and entry.lock.liveness is Liveness.DEAD:
            yield VerifyProblem(path, ProblemKind.LEFTOVER, f"left by {entry.lock.holder}", entry)


def _check_flags(entry: Entry, names: set[str]) -> Iterator[VerifyProblem]:
    if layouts.FLAGS not in names:
        return
    path = f"{entry.path}/{layouts.FLAGS}"
    try:
        stored = load_json(read_start(path, _MAX_FLAGS_BYTES))
    except ValueError:
        stored = None
    if not isinstance(stored, list) or not all(isinstance(flag, str) for flag in stored):
        yield VerifyProblem(path, ProblemKind.FLAGS, "not a JSON list of flags", entry)
    elif flags_rule(entry.module, stored) is FlagsRule.NONE:
        wanted = entry.module.rpartition("+")[2]
        yield VerifyProblem(
            path, ProblemKind.FLAGS, f"the flags do not match {wanted} in the directory's name", entry
        )


def _check_neff(entry: Entry, path: str) -> Iterator[VerifyProblem]:
    try:
        header = read_header(read_start(path, HEADER_BYTES))
    except NeffError as error:
        yield VerifyProblem(path, ProblemKind.HEADER, error.message, entry)
        return
    length = _length(path) - HEADER_BYTES
    if length != header.data_bytes:
        words = f"{length} bytes of data, the header states {header.data_bytes}"
        yield VerifyProblem(path, ProblemKind.SIZE, words, entry)
    elif not _hash_matches(path, header):
        yield VerifyProblem(path, ProblemKind.HASH, "the data does not match the header's hash", entry)
    elif entry.ours:
        yield from _check_content(entry, path)


def _check_content(entry: Entry, path: str) -> Iterator[VerifyProblem]:
    from neurontools.compiler.graph import module_hash_of
    from neurontools.compiler.neff import parse

    try:
        with open_unseen(path) as stored:
            neff = parse(stored.read())
    except NeffError as error:
        yield VerifyProblem(path, ProblemKind.CONTENT, error.message, entry)
        return
    except OSError as error:
        yield VerifyProblem(path, ProblemKind.CONTENT, error.strerror or str(error), entry)
        return
    split = layouts.split_module(entry.module)
    if split is not None and module_hash_of(neff.graph.digest()) != split[0]:
        yield VerifyProblem(path, ProblemKind.CONTENT, "its graph does not match the directory's name", entry)


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


def _change_time(path: str) -> float:
    try:
        return os.lstat(path).st_mtime
    except OSError:
        return time.time()


@dataclass(frozen=True, slots=True)
class Repair:
    """A repair of a path, or the reason why none was made."""

    path: str
    done: bool
    words: str


def repair(root: str, findings: Sequence[VerifyProblem]) -> tuple[Repair, ...]:
    """Remove damaged and half-written entries and leftovers; pinned entries and those in use are kept."""
    with ExitStack() as stack:
        if any(finding.entry is not None and not finding.entry.ours for finding in findings):
            with suppress(OSError):
                stack.enter_context(root_lock(root))
        return tuple(_repairs(root, findings))


def _repairs(root: str, findings: Sequence[VerifyProblem]) -> Iterator[Repair]:
    seen: set[str] = set()
    for finding in findings:
        if finding.problem is ProblemKind.LEFTOVER:
            gone = _remove(root, finding.path)
            yield Repair(finding.path, gone, "removed" if gone else "cannot be removed")
        elif finding.problem is ProblemKind.UNREADABLE:
            yield Repair(finding.path, False, f"unchanged, {finding.words}")
        elif finding.entry is not None and finding.entry.path not in seen:
            seen.add(finding.entry.path)
            reason = remove_damaged(root, finding.entry)
            yield Repair(finding.entry.path, not reason, reason or "removed")


def _remove(root: str, path: str) -> bool:
    if is_orphan(root, path):
        return remove_orphan(root, path)
    if path.startswith(f"{root}/"):
        remove_leftover(root, path)
    else:
        remove_quietly(path)  # one of this user's counters
    return not os.path.lexists(path)


def format_problems(
    root: str, checked: int, findings: Sequence[VerifyProblem], width: int | None = None
) -> str:
    """Return the table of problems, and the number of checked entries."""
    rows = [
        (finding.problem.value, finding.words, display_path(finding.path, root, width))
        for finding in findings
    ]
    lines = [table(("PROBLEM", "WHAT", "PATH"), rows, "<<<", width=width, optional=(0,))] if rows else []
    number = plural(len(rows), "problem", "problems")
    lines.append(f"{plural(checked, 'entry', 'entries')} checked in {root}, {number}")
    return "\n".join(lines)


def format_repairs(repairs: Sequence[Repair]) -> str:
    """Return repairs, one line each."""
    return "\n".join(printable(f"{repair.words}: {repair.path}") for repair in repairs)


def verify_json(
    root: str, checked: int, findings: Sequence[VerifyProblem], repairs: Sequence[Repair]
) -> dict[str, Any]:
    """Return the JSON form of findings and repairs."""
    return {
        "root": root,
        "checked": checked,
        "problems": [
            {"path": finding.path, "problem": finding.problem.value, "what": finding.words}
            for finding in findings
        ],
        "repairs": [{"path": repair.path, "done": repair.done, "what": repair.words} for repair in repairs],
    }
