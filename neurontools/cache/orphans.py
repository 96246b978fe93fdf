"""The quarantine for damaged entries, and files that killed removals, imports and syncs left in a root."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools.base.files import READ_SAFELY, remove_quietly
from neurontools.base.locks import flock
from neurontools.cache import layouts
from neurontools.cache.location import is_remote
from neurontools.cache.pruning.removal import delete_tree, is_network_root
from neurontools.cache.pruning.rules import NETWORK_GRACE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from neurontools.cache.entries import Entry


_WORDS = {layouts.IMPORTING: "left by a killed import or sync", layouts.TRASH: "left by a killed removal"}
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_BLOCK_BYTES = 512
REASON = "reason.txt"
MOST_KEPT = 32


@dataclass(frozen=True, slots=True)
class Orphan:
    """An orphaned file or directory: its size on disk and its origin."""

    path: str
    size_bytes: int
    words: str


def find_orphans(root: str) -> tuple[Orphan, ...]:
    """Return what killed processes left in a root, except in directories that a process is using.

    Where flock does not show who works (network file systems), only what is older than 24 h counts.
    """
    if is_remote(root):
        return ()
    youngest = time.time() - NETWORK_GRACE_S if is_network_root(root) else None
    return tuple(
        Orphan(path, _size_bytes(path), words)
        for name, words in _WORDS.items()
        for path in _left_in(f"{root}/{name}", youngest)
    )


def quarantine_orphans(root: str) -> tuple[Orphan, ...]:
    """Return the content of a root's quarantine, oldest first."""
    if is_remote(root):
        return ()
    return tuple(Orphan(path, _size_bytes(path), "in quarantine") for path in list_quarantine(root))


def remove_orphan(path: str) -> bool:
    """Remove an orphan, unless a process is using its directory; return whether it is gone."""
    with _nobody_in(os.path.dirname(path)) as is_free:
        if is_free:
            delete_tree(path)
    return not os.path.lexists(path)


def is_orphan(root: str, path: str) -> bool:
    """Return whether only `remove_orphan` may remove a path."""
    return os.path.dirname(path) in {f"{root}/{name}" for name in _WORDS}


def _left_in(directory: str, youngest: float | None) -> list[str]:
    with _nobody_in(directory) as is_free:
        names = sorted(os.listdir(directory)) if is_free else []
    paths = [f"{directory}/{name}" for name in names]
    return paths if youngest is None else [path for path in paths if _changed_unix_s(path) < youngest]


@contextmanager
def _nobody_in(directory: str) -> Iterator[bool]:
    """Hold the lock of a directory; yield False if another process holds it or the directory is missing."""
    try:
        descriptor = os.open(directory, _OPEN)
    except OSError:
        yield False
        return
    try:
        is_free = False
        with suppress(OSError):
            is_free = flock(descriptor, wait=False)
        yield is_free
    finally:
        os.close(descriptor)


def _changed_unix_s(path: str) -> float:
    try:
        # A rename into the trash changes this one only.
        return os.lstat(path).st_ctime
    except OSError:
        return time.time()


def _size_bytes(path: str) -> int:
    try:
        size = os.lstat(path).st_blocks * _BLOCK_BYTES
        with os.scandir(path) as items:
            return size + sum(
                _size_bytes(item.path)
                if item.is_dir(follow_symlinks=False)
                else item.stat(follow_symlinks=False).st_blocks * _BLOCK_BYTES
                for item in items
            )
    except NotADirectoryError:
        return size
    except OSError:
        return 0


def quarantine_entry(root: str, entry: Entry, reason: str) -> str:
    """Move an entry into the quarantine; return "" or why it was kept.

    Args:
        root: the cache.
        entry: as it was judged; if it has changed since, it stays.
        reason: what is wrong, kept beside it.
    """
    try:
        descriptor = os.open(entry.path, READ_SAFELY)
    except OSError as error:
        return error.strerror or "cannot be opened"
    try:
        if not flock(descriptor, wait=False):
            return "in use"
        found = os.fstat(descriptor)
        if (found.st_ino, found.st_mtime_ns) != (entry.inode, entry.changed_ns):
            return "changed meanwhile"
        place = _new_place(root, os.path.basename(entry.path))
        os.rename(entry.path, f"{place}/{os.path.basename(entry.path)}")
        _keep_reason(place, entry.path, reason)
    except OSError as error:
        return error.strerror or "cannot be moved"
    finally:
        os.close(descriptor)
    return ""


def quarantine_neff(root: str, entry: str, reason: str) -> None:
    """Move the damaged NEFF of an entry locked by this process into the quarantine; errors are ignored."""
    remove_quietly(f"{entry}/{layouts.DONE}")
    with suppress(OSError):
        place = _new_place(root, os.path.basename(entry))
        os.rename(f"{entry}/{layouts.NEFF}", f"{place}/{layouts.NEFF}")
        _keep_reason(place, entry, reason)


def list_quarantine(root: str) -> list[str]:
    """Return what is in the quarantine, the oldest first."""
    directory = f"{root}/{layouts.QUARANTINE}"
    try:
        return [f"{directory}/{name}" for name in sorted(os.listdir(directory))]
    except OSError:
        return []


def _new_place(root: str, name: str) -> str:
    directory = f"{root}/{layouts.QUARANTINE}"
    os.makedirs(directory, exist_ok=True)
    place = f"{directory}/{time.time_ns()}-{name}"
    os.mkdir(place)
    for old in list_quarantine(root)[:-MOST_KEPT]:
        delete_tree(old)
    return place


def _keep_reason(place: str, path: str, reason: str) -> None:
    with suppress(OSError), open(f"{place}/{REASON}", "w", encoding="utf-8", errors="replace") as file:
        file.write(f"{path}\n{reason}\n")
