"""Telemetry pages: one small file per registered process, written by the process, read by the daemon.

`layout` describes the bytes. The daemon makes a page with `create_page` and passes its descriptor to the process,
which writes through `PageWriter` (a view in memory, no system call); everybody else reads with `PageReader` (pread
only, so that a truncated file is an error and not a signal). A page is untrusted input: what does not check is
`PageError` on opening and None on reading. It outlives both sides, so that a new daemon can adopt it.

Descriptors stay the caller's: neither reader nor writer closes the descriptor it gets.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource
from contextlib import contextmanager
from typing import TYPE_CHECKING
from zlib import crc32

from neurontools.machine.pages.layout import (
    CHECK_SEED,
    CORE_BYTES,
    HALF_WORD,
    MODELS_BYTES,
    WORD,
    PageError,
    PageIdentity,
    PageLayout,
    pack_header,
    page_size,
)
from neurontools.machine.pages.reader import PageReader, PageValue
from neurontools.machine.pages.writer import NO_MODEL, PageWriter

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "NO_MODEL",
    "PageError",
    "PageFullError",
    "PageIdentity",
    "PageReader",
    "PageValue",
    "PageWriter",
    "create_page",
    "create_private_page",
    "is_private",
    "page_size",
    "ring",
    "ring_profile",
]


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class PageFullError(PageError):
    """The disk is full, or has no inodes left."""


def create_page(path: str, identity: PageIdentity, cores: tuple[int, ...]) -> int:
    """Create a page whose space is reserved on the disk.

    Args:
        path: where; must not exist.
        identity: the process that will write it.
        cores: machine-wide logical ids of the cores that it claims.

    Returns:
        A descriptor, open for reading and writing, closed on exec.

    Raises:
        PageFullError: the disk is full; nothing is left behind.
        PageError: the file cannot be created.
    """
    content = _initial_content(identity, cores)
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = os.open(path, flags, 0o600)
    except OSError as error:
        raise _creation_error(path, content, error) from error
    try:
        _fill(fd, content)
    except OSError as error:
        os.close(fd)
        os.unlink(path)
        raise _creation_error(path, content, error) from error
    return fd


def _creation_error(path: str, content: bytes, error: OSError) -> PageError:
    # A disk without inodes is a full disk too: opening fails then.
    if error.errno in _FULL:
        return PageFullError(
            f"no room for telemetry page {path} ({len(content)} bytes): {error.strerror}",
            "free space there or set NEURONTOOLS_RUNTIME_DIR to another directory",
        )
    return PageError(f"cannot create telemetry page {path}: {error.strerror}")


def create_private_page(identity: PageIdentity, cores: tuple[int, ...]) -> int:
    """Create a page in memory where the disk is full: it works as any other, but another daemon cannot open it.

    Returns:
        A descriptor, open for reading and writing, closed on exec.

    Raises:
        PageError: no memory is available.
    """
    content = _initial_content(identity, cores)
    fd = None
    try:
        fd = os.memfd_create("neurontools-page", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        with _any_file_size():
            _fill(fd, content)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
    except OSError as error:
        if fd is not None:
            os.close(fd)
        raise PageError(f"no memory for a telemetry page ({len(content)} bytes): {error.strerror}") from error
    return fd


def ring(fd: int, armed_faults: int) -> None:
    """Write the number of faults armed for the process of a page; a truncated page is ignored."""
    _ring(fd, armed_faults, WORD.size)


def ring_profile(fd: int, request: int) -> None:
    """Write the number of the request to profile the process of a page, 0 for none; a truncated page is ignored."""
    _ring(fd, request, HALF_WORD.size)


def _ring(fd: int, number: int, from_end: int) -> None:
    try:
        size = os.fstat(fd).st_size
        if size >= WORD.size:
            os.pwrite(fd, HALF_WORD.pack(number), size - from_end)
    except OSError:
        pass


def is_private(fd: int) -> bool:
    """Return whether a page has no name, so it ends with the last process that has it open."""
    return os.fstat(fd).st_nlink == 0


def _fill(fd: int, content: bytes) -> None:
    os.posix_fallocate(fd, 0, len(content))
    os.pwrite(fd, content, 0)


@contextmanager
def _any_file_size() -> Iterator[None]:
    # The limit on file sizes, a possible cause of a full disk, also applies to memory files.
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def _initial_content(identity: PageIdentity, cores: tuple[int, ...]) -> bytes:
    layout = PageLayout(len(cores))
    content = bytearray(layout.page_bytes)
    static = pack_header(identity, cores)
    content[: len(static)] = static
    WORD.pack_into(content, layout.models_offset, crc32(bytes(MODELS_BYTES - 8)))
    WORD.pack_into(content, layout.process_offset, CHECK_SEED)
    for offset in layout.core_sections:
        WORD.pack_into(content, offset, crc32(bytes(CORE_BYTES - 8)))
    return bytes(content)
