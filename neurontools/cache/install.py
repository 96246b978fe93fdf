"""Installing entries from elsewhere into a root: staged inside it, then visible in one step."""

from __future__ import annotations

import errno
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from neurontools.base.directories import open_below, open_parent
from neurontools.cache import layouts
from neurontools.cache.locks import directory_lock, try_lock

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from neurontools.base.directories import Directory

_ATTEMPTS = 20


@contextmanager
def staging_directory(root: str) -> Iterator[str]:
    """Provide a staging directory in a root for one process at a time; leftovers of a killed one are removed.

    The path leads to it through this process's open descriptor, even if another user renames directories in the root.

    Raises:
        OSError: the root cannot be written to.
    """
    with directory_lock(root, layouts.IMPORTING) as directory:
        directory.remove_content()
        name = f"{os.getpid()}-{os.urandom(4).hex()}"
        directory.make_directory(name, mode=0o700)
        with directory.subdirectory(name) as inner:
            try:
                yield f"/proc/self/fd/{inner.descriptor}"
            finally:
                directory.remove_tree(name)


def install_entry(root: str, staged: str, relative: str, names: Sequence[str], *, fill: bool = True) -> str:
    """Move a directory to where its entry belongs.

    Args:
        root: the cache.
        staged: a directory on the same file system.
        relative: the entry's path below the root.
        names: the directory's files, the done marker last.
        fill: complete an existing unfinished entry; otherwise an existing entry stays as it is.

    Returns:
        "copied", "present", or "locked" by a process that compiles it.

    Raises:
        OSError: the root cannot be written to.
    """
    target = f"{root}/{relative}"
    for _ in range(_ATTEMPTS):
        try:
            above, name = open_parent(root, target, create=True)
            with above:
                os.rename(staged, name, dst_dir_fd=above.descriptor)
        except FileNotFoundError:
            continue  # a removal deleted the compiler's empty directory
        except OSError as error:
            if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
                raise
        else:
            return "copied"
        try:
            return _complete(root, staged, target, names) if fill else "present"
        except FileNotFoundError:
            continue  # the existing entry was removed meanwhile
    return "locked"


def install_file(root: str, staged: str, target: str) -> str:
    """Move a single-file entry to its path in a root; return "copied" or "present".

    Raises:
        OSError: the root cannot be written to.
    """
    for _ in range(_ATTEMPTS):
        try:
            above, name = open_parent(root, target, create=True)
            with above:
                # Unlike a rename, a link never replaces a file.
                os.link(staged, name, dst_dir_fd=above.descriptor, follow_symlinks=False)
        except FileExistsError:
            return "present"
        except FileNotFoundError:
            continue  # a removal deleted the empty directory
        os.unlink(staged)
        return "copied"
    raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), target)


def _complete(root: str, staged: str, target: str, names: Sequence[str]) -> str:
    """Complete an unfinished entry under its lock, like a compile."""
    with open_below(root, target) as directory:
        if _is_finished(directory):
            return "present"
        lock = try_lock(root, target)
        if lock is None:
            return "locked"
        try:
            if _is_finished(directory):
                return "present"
            directory.remove_quietly(layouts.DONE)
            directory.remove_quietly(layouts.LOG)
            for name in names:
                os.replace(f"{staged}/{name}", name, dst_dir_fd=directory.descriptor)
            directory.sync()
        finally:
            lock.release()
    return "copied"


def _is_finished(directory: Directory) -> bool:
    return directory.has_file(layouts.NEFF) and directory.has_file(layouts.DONE)
