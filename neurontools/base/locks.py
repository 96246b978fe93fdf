"""flock on files and directories, with the check that the locked file still is the one with that name."""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

EXCLUSIVE = fcntl.LOCK_EX
SHARED = fcntl.LOCK_SH

_NO_FLOCK = frozenset({errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL})


def flock(descriptor: int, operation: int = EXCLUSIVE, *, wait: bool = True) -> bool:
    """Lock an open file or directory; its last close unlocks it.

    Args:
        descriptor: the open file.
        operation: `EXCLUSIVE` or `SHARED`.
        wait: whether to wait for the holder.

    Returns:
        Whether the lock is held: False only without `wait`, where another process holds it. True too where the file
        system has no flock, as the real tools behave.

    Raises:
        OSError: another failure.
    """
    try:
        fcntl.flock(descriptor, operation if wait else operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_FLOCK:
            raise
    return True


def unlock(descriptor: int) -> None:
    """Release the flock of an open file before it is closed."""
    fcntl.flock(descriptor, fcntl.LOCK_UN)


def is_locked(path: str, options: int = 0) -> bool:
    """Return whether another process locks a file or directory; False if it cannot be opened.

    Args:
        path: the file or directory.
        options: more flags of `os.open`.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | options)
    except OSError:
        return False
    try:
        return not flock(descriptor, wait=False)
    except OSError:
        return False
    finally:
        os.close(descriptor)


def is_same_file(path: str, descriptor: int) -> bool:
    """Return whether a path, which must not be a link, still names the open file."""
    try:
        return os.path.samestat(os.lstat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


@contextmanager
def file_lock(path: str | os.PathLike[str], *, on_wait: Callable[[], object] | None = None) -> Iterator[int]:
    """Hold the exclusive lock of a lock file, which is created if need be, and yield its descriptor.

    A file that was removed or replaced while this process waited is opened again, so two processes never both hold
    the lock of one path.

    Args:
        path: the lock file; its directory exists.
        on_wait: called once where another process or thread holds the lock.

    Raises:
        OSError: the file cannot be opened, or is a link.
    """
    name = os.fspath(path)
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    while True:
        descriptor = os.open(name, flags, 0o600)
        try:
            if on_wait is not None and not flock(descriptor, wait=False):
                on_wait()
                on_wait = None
            flock(descriptor)
            if is_same_file(name, descriptor):
                yield descriptor
                return
        finally:
            os.close(descriptor)
