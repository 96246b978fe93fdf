"""Files that killed removals and copies left in a root."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools.base.directories import Directory, check_ours
from neurontools.base.locks import flock
from neurontools.cache import layouts
from neurontools.cache.location import is_network_root, is_remote
from neurontools.cache.pruning.rules import NETWORK_GRACE_S

if TYPE_CHECKING:
    from collections.abc import Iterator


_ORIGINS = {layouts.IMPORTING: "left by a killed copy", layouts.TRASH: "left by a killed removal"}
_BLOCK_BYTES = 512


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


def remove_orphan(root: str, path: str) -> bool:
    """Remove an orphan, unless a process is using its directory; return whether it is gone."""
    directory, name = os.path.split(path)
    with _lock_unused(root, os.path.basename(directory)) as found:
        if found is None:
            return not os.path.lexists(path)
        found.remove_tree(name)
        return found.status(name) is None


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
