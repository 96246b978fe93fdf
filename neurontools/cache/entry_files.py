"""The files of one entry: names, sizes, and the state they show."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from neurontools.cache import layouts
from neurontools.cache.layouts import NEFF_SUFFIX, SENTINEL, CacheLayout
from neurontools.cache.lock_owner import Liveness

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from neurontools.cache.locks import LockState
    from neurontools.cache.walk import CacheTree, EntryRef


# What Python, the shell and the real wrapper print when a compile is killed.
_KILLED = re.compile(
    r"KeyboardInterrupt|SIGKILL|SIGTERM|SIGINT|SIGHUP|\bKilled\b|exit status (?:130|137|143)\b"
)

# An error code means that the compiler rejected the graph, whatever else the log contains.
_ERROR_CODE = re.compile(r"\[NCC_[A-Z]+[0-9]+\]")
_ERROR_WORD = re.compile(r"\b(?:ERROR|Error|error|FATAL|Exception|[A-Z][a-zA-Z]+Error)\b")
_LOG_BYTES = 1 << 14
_MAX_DEPTH = 8
_KIND_MASK, _KIND_DIRECTORY, _KIND_FILE = 0o170000, 0o040000, 0o100000


class State(StrEnum):
    """The state of an entry; INTERRUPTED, which only this toolkit has, is the leftover of a killed compile."""

    DONE = "done"
    FAILED = "failed"
    LOCKED = "locked"
    TODO = "todo"
    INTERRUPTED = "interrupted"


def derive_state(files: Mapping[str, os.stat_result], lock: LockState | None, log: str) -> State:
    """Return the state of an entry from its files, lock and failure log."""
    has_neff = layouts.NEFF in files
    if has_neff and layouts.DONE in files:
        return State.DONE
    if lock is not None:
        return State.INTERRUPTED if lock.liveness is Liveness.DEAD else State.LOCKED
    if layouts.LOG in files and not has_neff:
        return State.INTERRUPTED if is_killed_compile(log) else State.FAILED
    leftovers = any(name.startswith(layouts.TEMPORARY_PREFIX) for name in files)
    return State.INTERRUPTED if has_neff or layouts.DONE in files or leftovers else State.TODO


def is_killed_compile(log: str) -> bool:
    """Return whether a failure log shows a kill or Ctrl-C, and no graph that the compiler rejected."""
    return _ERROR_CODE.search(log) is None and _KILLED.search(log) is not None


def first_error_line(log: str) -> str:
    """Return the line of a failure log with the error: the first with a code, else with the word error."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    for pattern in (_ERROR_CODE, _ERROR_WORD):
        for line in lines:
            if pattern.search(line):
                return line.removeprefix("ERROR: ")
    return lines[0] if lines else ""


def derive_note(state: State, lock: LockState | None, log: str, files: Mapping[str, os.stat_result]) -> str:
    """Return a note on a state: the lock's holder, the reason of a failure, the missing file."""
    match state:
        case State.LOCKED if lock is not None:
            return f"locked by {lock.holder}"
        case State.FAILED:
            unread = "the log cannot be read" if files[layouts.LOG].st_size else "the log is empty"
            return first_error_line(log) or unread
        case State.INTERRUPTED if lock is not None:
            return f"left by {lock.holder}"
        case State.INTERRUPTED if layouts.NEFF in files:
            return "neff without done marker"
        case State.INTERRUPTED:
            return "compile was killed"
        case _:
            return ""


@dataclass(slots=True)
class EntryFiles:
    """The files of an entry and the state they show.

    `files` has names as keys; in the oldest layout, which is nested, a NEFF has its path as key.
    `neff` is the key of a foreign entry's NEFF. `size_bytes` are allocated on disk.
    """

    files: dict[str, os.stat_result]
    size_bytes: int
    state: State = State.TODO
    note: str = ""
    lock: LockState | None = None
    neff: str = ""


class FilesInspector:
    """Reads the files of entries; files that entries share by hard links count once."""

    def __init__(self, tree: CacheTree) -> None:
        self._tree = tree
        self._linked: set[tuple[int, int]] = set()

    def inspect(self, place: EntryRef) -> EntryFiles:
        """Return the files of an entry.

        Raises:
            OSError: it is gone or cannot be read.
        """
        if place.layout is CacheLayout.CURRENT:
            return self._inspect_current(place.path)
        return self._inspect_foreign(place)

    def _inspect_current(self, path: str) -> EntryFiles:
        content = self._flat(path)
        files = content.files
        for name in files:
            if name.endswith(layouts.LOCK_SUFFIX):
                content.lock = self._tree.examine_lock(f"{path}/{name}")
                break
        log = self._tree.read_ends_text(f"{path}/{layouts.LOG}", _LOG_BYTES) if layouts.LOG in files else ""
        content.state = derive_state(files, content.lock, log)
        if content.state is not State.DONE:
            content.note = derive_note(content.state, content.lock, log, files)
        return content

    def _inspect_foreign(self, place: EntryRef) -> EntryFiles:
        content = EntryFiles({}, 0)
        if place.layout is CacheLayout.TORCHNEURON:
            found = content.files[place.path] = self._tree.lstat(place.path)
            content.size_bytes = allocated(found)
        else:
            self._add_deep(content, place.path, 0, named=True)
        content.neff = next((name for name in sorted(content.files) if name.endswith(NEFF_SUFFIX)), "")
        content.state, content.note = _foreign_state(place.layout, content)
        return content

    def _flat(self, path: str) -> EntryFiles:
        # The inner loop of every scan: with 100,000 entries, each microsecond here costs half a second.
        content = EntryFiles({}, 0)
        files, size = content.files, 0
        with self._tree.scandir(path) as items:
            for item in items:
                found = item.stat(follow_symlinks=False)
                kind = found.st_mode & _KIND_MASK
                if kind == _KIND_DIRECTORY:
                    self._add_below(content, item.path, 1)
                    continue
                if kind == _KIND_FILE:  # links and pipes are not part of an entry
                    files[item.name] = found
                if found.st_nlink == 1 or self._is_first(found):
                    size += allocated(found)
        content.size_bytes += size
        return content

    def _add_deep(self, content: EntryFiles, path: str, depth: int, *, named: bool) -> None:
        with self._tree.scandir(path) as items:
            for item in items:
                found = item.stat(follow_symlinks=False)
                if found.st_mode & _KIND_MASK == _KIND_DIRECTORY:
                    self._add_below(content, item.path, depth + 1, named=named)
                    continue
                if named and found.st_mode & _KIND_MASK == _KIND_FILE:
                    content.files[item.path if item.name.endswith(NEFF_SUFFIX) else item.name] = found
                if found.st_nlink == 1 or self._is_first(found):
                    content.size_bytes += allocated(found)

    def _add_below(self, content: EntryFiles, path: str, depth: int, *, named: bool = False) -> None:
        if depth > _MAX_DEPTH:
            return
        with suppress(OSError):
            self._add_deep(content, path, depth, named=named)

    def _is_first(self, found: os.stat_result) -> bool:
        key = (found.st_dev, found.st_ino)
        first = key not in self._linked
        self._linked.add(key)
        return first


def allocated(found: os.stat_result) -> int:
    """Return the bytes that a file occupies on disk; in a bucket, its length."""
    blocks: int | None = found.st_blocks
    return found.st_size if blocks is None else blocks * 512


def _foreign_state(layout: CacheLayout, content: EntryFiles) -> tuple[State, str]:
    if layout is CacheLayout.VLLM:
        done = SENTINEL in content.files
        return (State.DONE, "") if done else (State.INTERRUPTED, f"no {SENTINEL}")
    if content.neff and content.files[content.neff].st_size > 0:
        return State.DONE, ""
    return (State.INTERRUPTED, "the neff is empty") if content.neff else (State.TODO, "")
