"""Installing entries from elsewhere into a root: staged inside it, then visible in one step."""

from __future__ import annotations

import errno
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from neurontools.base.files import remove_quietly, sync_directory
from neurontools.cache import layouts
from neurontools.cache.locks import directory_lock, try_lock
from neurontools.cache.pruning.removal import delete_tree

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


_ATTEMPTS = 20


@contextmanager
def staging_directory(root: str) -> Iterator[str]:
    """Provide a staging directory in a root for one process at a time; leftovers of a killed one are removed.

    Raises:
        OSError: the root cannot be written to.
    """
    path = f"{root}/{layouts.IMPORTING}"
    with directory_lock(path):
        for left in os.listdir(path):
            delete_tree(f"{path}/{left}")
        inner = f"{path}/{os.getpid()}-{os.urandom(4).hex()}"
        os.mkdir(inner, mode=0o700)
        try:
            yield inner
        finally:
            delete_tree(inner)


def install_entry(root: str, staged: str, relative: str, names: Sequence[str], *, fill: bool = True) -> str:
    """Move a directory to where its entry belongs.

    Args:
        root: the cache.
        staged: a directory on the same file system.
        relative: the entry's path below the root.
        names: the directory's files, the marker that makes it finished last.
        fill: complete an entry that is there and not finished; else what is there stays.

    Returns:
        "imported", "present", or "locked" by a process that compiles it.

    Raises:
        OSError: the root cannot be written to.
    """
    target = f"{root}/{relative}"
    for _ in range(_ATTEMPTS):
        try:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            os.rename(staged, target)
        except FileNotFoundError:
            continue  # a removal took the compiler's empty directory away
        except OSError as error:
            if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
                raise
        else:
            return "imported"
        try:
            return _complete(root, staged, target, names) if fill else "present"
        except FileNotFoundError:
            continue  # the entry that was there has been removed meanwhile
    return "locked"


def install_file(staged: str, target: str) -> str:
    """Move a single-file entry to its path; return "imported" or "present".

    Raises:
        OSError: the root cannot be written to.
    """
    for _ in range(_ATTEMPTS):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        try:
            # Unlike a rename, a link never replaces a file.
            os.link(staged, target)
        except FileExistsError:
            return "present"
        except FileNotFoundError:
            continue  # a removal took the empty directory away
        os.unlink(staged)
        return "imported"
    raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), target)


def _complete(root: str, staged: str, target: str, names: Sequence[str]) -> str:
    """Complete an unfinished entry under its lock, like a compile."""
    if _is_finished(target):
        return "present"
    lock = try_lock(root, target)
    if lock is None:
        return "locked"
    try:
        if _is_finished(target):
            return "present"
        remove_quietly(f"{target}/{layouts.DONE}")
        remove_quietly(f"{target}/{layouts.LOG}")
        for name in names:
            os.replace(f"{staged}/{name}", f"{target}/{name}")
        sync_directory(target)
    finally:
        lock.release()
    return "imported"


def _is_finished(target: str) -> bool:
    return all(os.path.exists(f"{target}/{name}") for name in (layouts.NEFF, layouts.DONE))
