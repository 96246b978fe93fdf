"""The quarantine for damaged entries, and files that killed removals, imports and syncs left in a root."""

from __future__ import annotations

import errno
import os
import re
import stat
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools.base.directories import Directory, check_ours, open_below, open_parent
from neurontools.base.locks import flock
from neurontools.cache import layouts
from neurontools.cache.location import is_remote
from neurontools.cache.pruning.removal import is_network_root
from neurontools.cache.pruning.rules import NETWORK_GRACE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from neurontools.cache.entries import Entry


_ORIGINS = {layouts.IMPORTING: "left by a killed import or sync", layouts.TRASH: "left by a killed removal"}
_ENTRY_NAME = re.compile(r"[0-9]+-[!-~]+")
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

    Where flock cannot show which directories are in use (network file systems), only files older than 24 h count.
    """
    if is_remote(root):
        return ()
    youngest = time.time() - NETWORK_GRACE_S if is_network_root(root) else None
    return tuple(
        Orphan(path, _size_bytes(path), words)
        for common, words in _ORIGINS.items()
        for name in layouts.work_names(common)
        for path in _orphans_in(root, name, youngest)
    )


def quarantine_orphans(root: str) -> tuple[Orphan, ...]:
    """Return the content of a root's quarantine, oldest first."""
    if is_remote(root):
        return ()
    return tuple(Orphan(path, _size_bytes(path), "in quarantine") for path in list_quarantine(root))


def remove_orphan(root: str, path: str) -> bool:
    """Remove an orphan, unless a process is using its directory; return whether it is gone."""
    directory, name = os.path.split(path)
    with _lock_unused(root, os.path.basename(directory)) as found:
        if found is None:
            return not os.path.lexists(path)
        found.remove_tree(name)
        return found.status(name) is None


def remove_empty_quarantine(root: str) -> None:
    """Remove the quarantine of a root if it is empty; errors are ignored."""
    with suppress(OSError), Directory.open(root) as above:
        for name in layouts.work_names(layouts.QUARANTINE):
            above.remove_if_empty(name)


def is_orphan(root: str, path: str) -> bool:
    """Return whether only `remove_orphan` may remove a path."""
    return os.path.dirname(path) in {
        f"{root}/{name}" for common in _ORIGINS for name in layouts.work_names(common)
    }


def _orphans_in(root: str, name: str, youngest: float | None) -> list[str]:
    with _lock_unused(root, name) as found:
        paths = [] if found is None else [f"{root}/{name}/{left}" for left in found.names()]
    return paths if youngest is None else [path for path in paths if _changed_unix_s(path) < youngest]


@contextmanager
def _lock_unused(root: str, name: str) -> Iterator[Directory | None]:
    """Hold the lock of a directory of this user in a root; yield None if another process holds it or there is none."""
    with ExitStack() as stack:
        found = None
        with suppress(OSError):
            above = stack.enter_context(Directory.open(root))
            directory = stack.enter_context(above.subdirectory(name))
            check_ours(directory)
            found = directory if flock(directory.descriptor, wait=False) else None
        yield found


def _changed_unix_s(path: str) -> float:
    try:
        # A rename into the trash changes only the ctime.
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
        entry: as it was verified; if it has changed since, it stays.
        reason: what is wrong, stored beside the entry.
    """
    try:
        above, name = open_parent(root, entry.path)
        with above, above.opened_item(name) as descriptor:
            if not flock(descriptor, wait=False):
                return "in use"
            found = os.fstat(descriptor)
            if (found.st_ino, found.st_mtime_ns) != (entry.inode, entry.changed_ns):
                return "changed meanwhile"
            if found.st_uid != os.geteuid():
                return f"it belongs to uid {found.st_uid}"
            with _new_place(root, name) as place:
                above.rename(name, place, name)
                _keep_reason(place, entry.path, reason)
    except OSError as error:
        return error.strerror or "cannot be moved"
    return ""


def quarantine_neff(root: str, entry: str, reason: str) -> None:
    """Move the damaged NEFF of an entry locked by this process into the quarantine; errors are ignored."""
    with suppress(OSError), open_below(root, entry) as directory:
        directory.remove_quietly(layouts.DONE)
        if directory.has_file(layouts.NEFF):
            with _new_place(root, os.path.basename(entry)) as place:
                directory.rename(layouts.NEFF, place, layouts.NEFF)
                _keep_reason(place, entry, reason)


def list_quarantine(root: str) -> list[str]:
    """Return what this user's processes put into the quarantine, the oldest first."""
    return sorted(
        (path for name in layouts.work_names(layouts.QUARANTINE) for path in _list_places(root, name)),
        key=os.path.basename,
    )


def _list_places(root: str, name: str) -> list[str]:
    try:
        with Directory.open(root) as above, above.subdirectory(name) as quarantine:
            check_ours(quarantine)
            return [f"{quarantine.path}/{place}" for place in _places(quarantine)]
    except OSError:
        return []


def _places(quarantine: Directory) -> list[str]:
    places = [name for name in quarantine.names() if _ENTRY_NAME.fullmatch(name)]
    return [name for name in places if _is_ours(quarantine.status(name))]


def _is_ours(found: os.stat_result | None) -> bool:
    return found is not None and found.st_uid == os.geteuid()


def _new_place(root: str, name: str) -> Directory:
    with Directory.open(root) as above:
        _check_safe(root, above)
        with above.ensure_subdirectory(layouts.work_name(above, layouts.QUARANTINE)) as quarantine:
            check_ours(quarantine)
            place = f"{time.time_ns()}-{name}"
            quarantine.make_directory(place)
            for old in _places(quarantine)[:-MOST_KEPT]:
                quarantine.remove_tree(old)
            return quarantine.subdirectory(place)


def _check_safe(root: str, directory: Directory) -> None:
    """Refuse a quarantine where another user can replace directories.

    Raises:
        PermissionError: the root belongs to another user than root and this one, or others can rename it.
    """
    owner = os.fstat(directory.descriptor).st_uid
    if owner not in {0, os.geteuid()}:
        raise PermissionError(errno.EPERM, f"no quarantine: {root} belongs to uid {owner}")
    path = os.path.realpath(root)
    while path != "/":
        path = os.path.dirname(path)
        mode = os.stat(path).st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise PermissionError(errno.EPERM, f"no quarantine: everyone can rename what is in {path}")


def _keep_reason(place: Directory, path: str, reason: str) -> None:
    with suppress(OSError):
        place.create(REASON, f"{path}\n{reason}\n")
