"""Reading files of a cache without changing their access times, which record the last use."""

from __future__ import annotations

import os
from typing import BinaryIO

_OPTIONS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def read_start(path: str, most_bytes: int) -> bytes:
    """Return the first bytes of a file, b"" if it cannot be read; links are not followed."""
    return _read(path, most_bytes, 0)


def read_ends_text(path: str, each_bytes: int) -> str:
    """Return the start of a text file and, if it is longer, its end after a line `...`."""
    start = _read(path, each_bytes, 0)
    if len(start) < each_bytes:
        return start.decode("utf-8", "replace")
    end = _read(path, each_bytes, -each_bytes)
    return start.decode("utf-8", "replace") + "\n...\n" + end.decode("utf-8", "replace")


def open_unseen(path: str) -> BinaryIO:
    """Open a file for reading without changing its access time, except for files of other users.

    Raises:
        OSError: it cannot be opened, or is a link.
    """
    try:
        return os.fdopen(os.open(path, _OPTIONS | os.O_NOATIME), "rb")
    except PermissionError:
        return os.fdopen(os.open(path, _OPTIONS), "rb")


def _read(path: str, most_bytes: int, offset: int) -> bytes:
    for option in (os.O_NOATIME, 0):
        try:
            descriptor = os.open(path, _OPTIONS | option)
        except PermissionError:
            continue
        except OSError:
            return b""
        try:
            if offset < 0:
                size = os.fstat(descriptor).st_size
                return os.pread(descriptor, most_bytes, max(most_bytes, size + offset))
            return os.read(descriptor, most_bytes)
        except OSError:
            return b""
        finally:
            os.close(descriptor)
    return b""
