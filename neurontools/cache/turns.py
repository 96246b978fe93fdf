"""A directory in a root that one process at a time works in: made when it is needed, gone when nobody needs it.

It has the permissions that the umask gives, as the entries have: a root that a group shares must not be closed to the
others by the first who imports or removes something.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from neurontools.cache.files import remove_if_empty
from neurontools.cache.locks import flock

if TYPE_CHECKING:
    from collections.abc import Iterator

_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def in_turn(path: str) -> Iterator[None]:
    """Make a directory and hold it, waiting for whoever does; remove it at the end if it is empty.

    Raises:
        OSError: it cannot be made or opened.
    """
    while True:
        descriptor = _opened(path)
        if descriptor is None:
            continue
        try:
            flock(descriptor, fcntl.LOCK_EX)
            # Whoever held it may have removed it, and another may have made it anew.
            if is_at(path, descriptor):
                try:
                    yield
                finally:
                    remove_if_empty(path)
                return
        finally:
            os.close(descriptor)


def _opened(path: str) -> int | None:
    """Open a directory, made if need be; return None where somebody removes it just now."""
    try:
        os.makedirs(path, exist_ok=True)
    except FileExistsError:
        if os.path.lexists(path) and not os.path.isdir(path):
            raise
        return None
    try:
        return os.open(path, _OPEN)
    except FileNotFoundError:
        return None


def is_at(path: str, descriptor: int) -> bool:
    """Return whether what is open is what a path names now."""
    try:
        return os.path.samestat(os.lstat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False
