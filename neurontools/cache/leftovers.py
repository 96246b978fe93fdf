"""What killed removals, imports and syncs left in a root: in `.trash` and `.importing`, each of one process at a time."""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools.cache import layout
from neurontools.cache.locks import flock
from neurontools.cache.pruning.removal import delete_tree, is_network
from neurontools.cache.pruning.rules import NETWORK_GRACE_S
from neurontools.cache.quarantine import quarantined
from neurontools.cache.remote.url import is_remote

if TYPE_CHECKING:
    from collections.abc import Iterator

_WORDS = {layout.IMPORTING: "left by a killed import or sync", layout.TRASH: "left by a killed removal"}
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_BLOCK_BYTES = 512


@dataclass(frozen=True, slots=True)
class Leftover:
    """A file or directory that nobody works on any more: its size on disk, and whose it was."""

    path: str
    size_bytes: int
    words: str


def leftovers(root: str) -> tuple[Leftover, ...]:
    """Return what killed processes left in a root; a directory that a process works in is passed over.

    Where flock does not show who works (network file systems), only what is older than 24 h counts.
    """
    if is_remote(root):
        return ()
    youngest = time.time() - NETWORK_GRACE_S if is_network(root) else None
    return tuple(
        Leftover(path, _size_bytes(path), words)
        for name, words in _WORDS.items()
        for path in _left_in(f"{root}/{name}", youngest)
    )


def in_quarantine(root: str) -> tuple[Leftover, ...]:
    """Return what was put into the quarantine of a root, the oldest first."""
    if is_remote(root):
        return ()
    return tuple(Leftover(path, _size_bytes(path), "in quarantine") for path in quarantined(root))


def remove_leftover(path: str) -> bool:
    """Remove one, unless a process works in its directory; return whether it is gone."""
    with _nobody_in(os.path.dirname(path)) as is_free:
        if is_free:
            delete_tree(path)
    return not os.path.lexists(path)


def is_leftover(root: str, path: str) -> bool:
    """Return whether a path of a root lies where only `remove_leftover` may remove."""
    return os.path.dirname(path) in {f"{root}/{name}" for name in _WORDS}


def _left_in(directory: str, youngest: float | None) -> list[str]:
    with _nobody_in(directory) as is_free:
        names = sorted(os.listdir(directory)) if is_free else []
    paths = [f"{directory}/{name}" for name in names]
    return paths if youngest is None else [path for path in paths if _changed_unix_s(path) < youngest]


@contextmanager
def _nobody_in(directory: str) -> Iterator[bool]:
    """Hold a directory as removals and imports do; give False where one of them holds it, or it is not there."""
    try:
        descriptor = os.open(directory, _OPEN)
    except OSError:
        yield False
        return
    try:
        is_free = False
        with suppress(OSError):
            is_free = flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
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
