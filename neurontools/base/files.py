"""Files that are replaced in one step, and files that are read without a trace.

Writers use a temporary name, sync and rename. Readers follow no links and leave the access time as it is, where the
system allows: in a compile cache it records the last use.
"""

from __future__ import annotations

import errno
import itertools
import os
import stat
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, BinaryIO

from neurontools.errors import NeuronToolsError

if TYPE_CHECKING:
    import io
    from collections.abc import Iterator

TEMPORARY_PREFIX = ".tmp-"
"""How the names of temporary files begin: `.tmp-<pid>-<number>-<random>`."""

_PACKED = (
    (b"\x1f\x8b", "gzip", "gunzip"),
    (b"PK\x03\x04", "zip", "unzip"),
    (b"\xfd7zXZ\0", "xz", "unxz"),
    (b"\x28\xb5\x2f\xfd", "zstd", "unzstd"),
    (b"BZh", "bzip2", "bunzip2"),
)
_NOT_REGULAR = "not a regular file"
_numbers = itertools.count()
READ_SAFELY = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""Options to open a file of an untrusted directory: no link is followed, no pipe waited for."""


def write_atomic(
    path: str | os.PathLike[str],
    data: bytes | str,
    *,
    mode: int = 0o666,
    exact_mode: bool = False,
    sync: bool = True,
) -> None:
    """Replace a file so that a reader sees the old or the new content, whatever happens meanwhile.

    Args:
        path: the file.
        data: its content; text is written as UTF-8.
        mode: permissions of the file, less the umask.
        exact_mode: whether the umask is ignored.
        sync: whether the content is on the disk before this returns.

    Raises:
        OSError: the file cannot be written; its old content is untouched and nothing is left behind.
    """
    target = os.fspath(path)
    directory = os.path.dirname(target) or "."
    temporary = write_temporary(directory, data, mode=mode, sync=sync)
    try:
        if exact_mode:
            os.chmod(temporary, mode)
        os.replace(temporary, target)
    except BaseException:
        remove_quietly(temporary)
        raise
    if sync:
        sync_directory(directory)


@contextmanager
def atomic_file(path: str | os.PathLike[str], *, mode: int = 0o666, sync: bool = True) -> Iterator[IO[bytes]]:
    """Open a binary file for writing that takes the place of `path` when the block ends without an exception.

    Raises:
        OSError: the file cannot be written; the old content is untouched and nothing is left behind.
    """
    target = os.fspath(path)
    directory = os.path.dirname(target) or "."
    temporary = temporary_name(directory)
    try:
        with open(
            os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb"
        ) as file:
            yield file
            file.flush()
            if sync:
                os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        remove_quietly(temporary)
        raise
    if sync:
        sync_directory(directory)


def write_temporary(directory: str, data: bytes | str, *, mode: int = 0o666, sync: bool = True) -> str:
    """Write data under a new temporary name in a directory and return its path.

    Raises:
        OSError: it cannot be written; nothing is left behind.
    """
    path = temporary_name(directory)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        write_all(descriptor, data.encode() if isinstance(data, str) else data)
        if sync:
            os.fsync(descriptor)
    except BaseException:
        os.close(descriptor)
        remove_quietly(path)
        raise
    os.close(descriptor)
    return path


def write_all(descriptor: int, data: bytes | bytearray) -> None:
    """Write data to a descriptor, in several pieces where the system takes only a part at once.

    Raises:
        OSError: not everything can be written.
    """
    remaining = memoryview(data)
    while remaining:
        remaining = remaining[os.write(descriptor, remaining) :]


def temporary_name(directory: str) -> str:
    """Return a path in a directory that no other call, thread or process uses."""
    return f"{directory}/{TEMPORARY_PREFIX}{os.getpid()}-{next(_numbers)}-{os.urandom(4).hex()}"


def sync_directory(directory: str) -> None:
    """Make renames in a directory durable, where the file system can."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError:
        pass
    finally:
        os.close(descriptor)


def sync_file_system(path: str) -> None:
    """Make everything written to the file system of a path durable: one call instead of one for each file.

    Raises:
        OSError: something could not be written.
    """
    import ctypes

    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), path)
    finally:
        os.close(descriptor)


@contextmanager
def owned_directory(path: str, owner: int, remedy: str, *, parent: int | None = None) -> Iterator[int]:
    """Open a directory that only one user can change, and give its descriptor.

    Args:
        path: the directory; not a link.
        owner: the uid of that user.
        remedy: what to do if it is not such a directory.
        parent: descriptor of the directory that contains it; None: it is found by its path.

    Raises:
        NeuronToolsError: the directory belongs to another user, or others can write to it.
        OSError: it cannot be opened, or is a link or not a directory.
    """
    name = path if parent is None else os.path.basename(path)
    descriptor = os.open(name, READ_SAFELY | os.O_DIRECTORY, dir_fd=parent)
    try:
        found = os.fstat(descriptor)
        if found.st_uid != owner:
            raise NeuronToolsError(f"refusing directory {path}: it belongs to uid {found.st_uid}", remedy)
        if found.st_mode & 0o022:
            mode = f"{found.st_mode & 0o777:o}"
            raise NeuronToolsError(f"refusing directory {path}: others can write to it (mode {mode})", remedy)
        yield descriptor
    finally:
        os.close(descriptor)


def remove_quietly(path: str) -> None:
    """Remove a file; it does not matter if it is gone or cannot be removed."""
    try:
        os.unlink(path)
    except OSError:
        pass


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
    """Open a regular file for reading without changing its access time, except for files of other users.

    Raises:
        OSError: it cannot be opened, or is not a regular file.
    """
    try:
        return os.fdopen(open_regular(path, os.O_NOATIME), "rb")
    except PermissionError:
        return os.fdopen(open_regular(path), "rb")


def open_regular(path: str, options: int = 0) -> int:
    """Open a regular file for reading and return its descriptor; links are not followed, pipes not waited for.

    Raises:
        OSError: it cannot be opened, or is not a regular file.
    """
    return check_regular(os.open(path, READ_SAFELY | options), path)


def open_input(path: str | os.PathLike[str]) -> io.BufferedReader:
    """Open a regular file that a user names for reading; links are followed, pipes not waited for.

    Raises:
        OSError: it cannot be opened, or is a directory, a pipe, a socket or a device.
    """
    mode = os.stat(path).st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if not stat.S_ISREG(mode):  # a device may do something when it is opened
        raise OSError(errno.EINVAL, _NOT_REGULAR, os.fspath(path))
    descriptor = os.open(path, READ_SAFELY & ~os.O_NOFOLLOW)
    return os.fdopen(check_regular(descriptor, os.fspath(path)), "rb")


def read_input(
    path: str | os.PathLike[str], error: type[NeuronToolsError], remedy: str = "", most_bytes: int = -1
) -> bytes:
    """Return the content of a regular file that a user names.

    Args:
        path: the file, as for `open_input`.
        error: raised if it cannot be read.
        remedy: of that error.
        most_bytes: the number of bytes to read; -1: all.
    """
    try:
        with open_input(path) as file:
            return file.read(most_bytes)
    except OSError as failure:
        raise error(f"cannot read {os.fspath(path)}: {failure.strerror}", remedy) from failure


def packing_of(start: bytes) -> tuple[str, str] | None:
    """Return how a file is packed, by its first bytes, and the program that unpacks it; None for a plain file."""
    return next(((name, program) for magic, name, program in _PACKED if start.startswith(magic)), None)


def check_regular(descriptor: int, path: str) -> int:
    """Return the descriptor of a regular file; that of anything else is closed.

    Raises:
        OSError: it is not a regular file.
    """
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, _NOT_REGULAR, path)


def _read(path: str, most_bytes: int, offset: int) -> bytes:
    for option in (os.O_NOATIME, 0):
        try:
            descriptor = open_regular(path, option)
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
