"""Reading and writing files of a cache: writes are atomic, reads do not change access times, which record the last use."""

from __future__ import annotations

import itertools
import os
from typing import BinaryIO

from neurontools.cache.layouts import TEMPORARY_PREFIX

_numbers = itertools.count()


def write_atomically(path: str, data: bytes) -> None:
    """Write a file so that a reader sees all of it or none, also after a power cut.

    Raises:
        OSError: it cannot be written; what was there before is still there.
    """
    directory = os.path.dirname(path)
    aside = write_aside(directory, data)
    try:
        os.replace(aside, path)
    except OSError:
        remove_quietly(aside)
        raise
    sync_directory(directory)


def write_aside(directory: str, data: bytes) -> str:
    """Write data under a temporary name in a directory, to disk, and return its path.

    Raises:
        OSError: it cannot be written; nothing is left behind.
    """
    path = f"{directory}/{TEMPORARY_PREFIX}{os.getpid()}-{next(_numbers)}-{os.urandom(4).hex()}"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
    except BaseException:
        os.close(descriptor)
        remove_quietly(path)
        raise
    os.close(descriptor)
    return path


def sync_directory(directory: str) -> None:
    """Make renames in a directory durable, where the file system can."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError:
        pass
    finally:
        os.close(descriptor)


def sync_file_system(path: str) -> None:
    """Make everything that was written to the file system of a path durable: one call instead of one for each file.

    Raises:
        OSError: something could not be written.
    """
    import ctypes

    descriptor = os.open(path, os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), path)
    finally:
        os.close(descriptor)


def remove_quietly(path: str) -> None:
    """Remove a file that may be gone, or that somebody else removes."""
    try:
        os.unlink(path)
    except OSError:
        pass


def remove_if_empty(directory: str) -> None:
    """Remove a directory that holds nothing."""
    try:
        os.rmdir(directory)
    except OSError:
        pass


_OPTIONS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def read_start(path: str, most_bytes: int) -> bytes:
    """Return the first bytes of a file, b"" where it cannot be read; links are not followed."""
    return _read(path, most_bytes, 0)


def read_ends_text(path: str, each_bytes: int) -> str:
    """Return the start of a text file and, where it is longer, its end behind a line `...`."""
    start = _read(path, each_bytes, 0)
    if len(start) < each_bytes:
        return start.decode("utf-8", "replace")
    end = _read(path, each_bytes, -each_bytes)
    return start.decode("utf-8", "replace") + "\n...\n" + end.decode("utf-8", "replace")


def open_unseen(path: str) -> BinaryIO:
    """Open a file for reading so that its access time stays; another user's file has its time changed.

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
