"""Archives of entries: a tar of a root, with a record of the number of entries at its end.

Any tar program unpacks one to a cache. The record shows that nothing is missing.
"""

from __future__ import annotations

import io
import json
import os
import tarfile
import time
import zlib
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, cast

from neurontools.base.files import open_input, sync_file_system
from neurontools.base.json_reader import load_json
from neurontools.base.units import format_size
from neurontools.cache import verify
from neurontools.cache.copy.plan import is_portable
from neurontools.cache.entries import EntryReader
from neurontools.cache.entry_files import State
from neurontools.cache.layouts import CacheLayout
from neurontools.cache.location import is_remote
from neurontools.cache.walk import EntryRef, parse_entry_path
from neurontools.compiler.archive import ArchiveError, Member, TarReader
from neurontools.errors import MissingDependencyError, NeuronToolsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


END = "neurontools-archive.json"
VERSION = 1
SUFFIXES = (".tar.zst", ".tar.gz", ".tgz", ".tar")
LIMIT_BYTES = 64 * 2**30
RESERVE_BYTES = 2**30
"""Bytes of the disk that unpacking leaves free, at most a twentieth of the file system."""
_MAX_END_BYTES = 4096
_ZSTD_MAGIC, _GZIP_MAGIC = b"\x28\xb5\x2f\xfd", b"\x1f\x8b"
_TAR_MAGIC, _TAR_MAGIC_OFFSET = b"ustar", 257
_SHOWN_BYTES = 16
_GZIP_LEVEL = 6
_MOST_WINDOW_BYTES = 1 << 27


class CopyError(NeuronToolsError):
    """An archive cannot be written or read."""


def is_archive(place: str) -> bool:
    """Return whether a place is an archive, by its name, and not a directory of such a name."""
    return not is_remote(place) and place.endswith(SUFFIXES) and not os.path.isdir(place)


def add_file(tar: tarfile.TarFile, name: str, file: IO[bytes]) -> None:
    """Append the rest of a file to an archive, under a name that says nothing about this host or user."""
    info = tarfile.TarInfo(name)
    info.size = os.fstat(file.fileno()).st_size
    info.mode, info.mtime = 0o644, int(time.time())
    tar.addfile(info, file)


def add_end(tar: tarfile.TarFile, entries: int) -> None:
    """Append the record that nothing is missing."""
    data = json.dumps({"version": VERSION, "entries": entries}).encode() + b"\n"
    info = tarfile.TarInfo(END)
    info.size, info.mode, info.mtime = len(data), 0o644, int(time.time())
    tar.addfile(info, io.BytesIO(data))


def unpack(
    path: str,
    file: IO[bytes],
    root: str,
    limit_bytes: int,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Write the entries of an archive into a new root, to disk, and verify all of them.

    Args:
        path: of the archive, for messages.
        file: the archive.
        root: a directory that does not exist.
        limit_bytes: the maximum total size of the archive's files.
        progress: called with the number of bytes of the archive that were read and of all.

    Raises:
        CopyError: the archive is invalid, damaged, truncated or too large.
        OSError: the root cannot be written.
    """
    os.mkdir(root)
    total_bytes = os.fstat(file.fileno()).st_size
    try:
        with decompress(file) as stream:
            reader = TarReader(stream, limit_bytes)
            entries = _unpack(
                reader, root, lambda: progress(file.tell(), total_bytes) if progress is not None else None
            )
        _check(root, entries)
    except (ArchiveError, CopyError) as error:
        remedy = error.remedy or "nothing was copied; make or copy the archive again"
        raise CopyError(f"cannot read {path}: {error.message}", remedy) from error
    # Entries appear only after they would survive a power cut.
    sync_file_system(root)


@contextmanager
def open_archive(path: str) -> Iterator[IO[bytes]]:
    """Open an archive for `unpack`.

    Raises:
        CopyError: it cannot be opened, or does not start like an archive.
    """
    try:
        file = open_input(path)
    except OSError as error:
        raise CopyError(f"cannot read {path}: {error.strerror}") from error
    with file:
        start = file.read(_TAR_MAGIC_OFFSET + len(_TAR_MAGIC))
        file.seek(0)
        if not start.startswith((_GZIP_MAGIC, _ZSTD_MAGIC)) and start[_TAR_MAGIC_OFFSET:] != _TAR_MAGIC:
            content = f"it starts with {start[:_SHOWN_BYTES]!r}" if start else "it is empty"
            raise CopyError(
                f"{path}: not an archive of 'neuron-cache copy': {content}",
                "name an archive, for example cache.tar.zst",
            )
        yield file


def _unpack(reader: TarReader, root: str, progress: Callable[[], None]) -> list[EntryRef]:
    entries: dict[str, EntryRef] = {}
    members = reader.members()
    for member in members:
        progress()
        if member.name == END:
            _check_end(reader, member, len(entries))
            if next(members, None) is not None:
                raise CopyError("the archive continues after its end")
            return list(entries.values())
        entry = _entry_of(member, root)
        if entry.path not in entries:
            os.makedirs(entry.path)
            entries[entry.path] = entry
        _check_space(root, member)
        try:
            with open(f"{root}/{member.name}", "xb") as file:
                file.writelines(reader.chunks())
        except FileExistsError as error:
            raise CopyError(f"the archive contains {member.name} twice") from error
    raise CopyError("the archive is truncated, or was not made by 'neuron-cache copy'")


def _entry_of(member: Member, root: str) -> EntryRef:
    directory, _, name = member.name.rpartition("/")
    entry = parse_entry_path(root, f"{root}/{directory}")
    if (
        entry is None
        or entry.layout is not CacheLayout.CURRENT
        or member.is_directory
        or not is_portable(name)
    ):
        raise CopyError(f"the archive contains {member.name[:120]!a}, which is not a file of an entry")
    return entry


def _check_end(reader: TarReader, member: Member, entries: int) -> None:
    if member.size_bytes > _MAX_END_BYTES:
        raise CopyError("the archive's end record is damaged")
    try:
        record = load_json(b"".join(reader.chunks()))
        stored = (record["version"], record["entries"])
    except (ValueError, KeyError, TypeError) as error:
        raise CopyError("the archive's end record is damaged") from error
    if stored[0] != VERSION:
        raise CopyError(f"the archive's version is not supported (supported: {VERSION})")
    if stored[1] != entries:
        raise CopyError(f"the archive is damaged: its end record does not match its {entries} entries")


def _check_space(root: str, member: Member) -> None:
    """Refuse a file that would fill the disk before any of it is written: a small archive can hold terabytes."""
    disk = os.statvfs(root)
    free_bytes = disk.f_bavail * disk.f_frsize - min(RESERVE_BYTES, disk.f_blocks * disk.f_frsize // 20)
    if member.size_bytes > free_bytes:
        raise CopyError(
            f"{member.name} needs {format_size(member.size_bytes)}, and {format_size(max(0, free_bytes))} are free",
            "nothing was copied; free space or use another cache",
        )


def _check(root: str, entries: list[EntryRef]) -> None:
    """Raise CopyError unless all entries are finished and sound."""
    checked, findings = verify.verify_entries(root, entries)
    if findings or checked < len(entries):
        words = (
            f"{findings[0].path.removeprefix(root + '/')}: {findings[0].words}" if findings else "an entry"
        )
        raise CopyError(f"the archive is damaged: {words}")
    reader = EntryReader(root)
    for entry in entries:
        current = reader.read(entry, details=False)
        if current is None or current.state is not State.DONE:
            raise CopyError(f"the archive's entry {entry.path.removeprefix(root + '/')} is not finished")


@contextmanager
def compress(file: IO[bytes], path: str) -> Iterator[IO[bytes]]:
    """Yield a stream that compresses into a file as the archive's name says.

    Raises:
        MissingDependencyError: .zst without the package zstandard.
    """
    if path.endswith(".zst"):
        compressor = _zstandard().ZstdCompressor(write_checksum=True)
        with compressor.stream_writer(file, closefd=False) as writer:
            yield writer
    elif path.endswith(".tar"):
        yield file
    else:
        import gzip

        with gzip.GzipFile(
            fileobj=file, mode="wb", compresslevel=_GZIP_LEVEL, mtime=0, filename=""
        ) as stream:
            yield cast("IO[bytes]", stream)


@contextmanager
def decompress(file: IO[bytes]) -> Iterator[IO[bytes]]:
    """Yield the plain tar of an archive; its first bytes show the compression.

    Raises:
        CopyError: it is damaged.
        MissingDependencyError: zstd without the package zstandard.
    """
    magic = file.read(4)
    file.seek(0)
    if magic == _ZSTD_MAGIC:
        zstandard = _zstandard()
        decompressor = zstandard.ZstdDecompressor(max_window_size=_MOST_WINDOW_BYTES)
        with (
            _damage_errors(zstandard.ZstdError),
            decompressor.stream_reader(file, closefd=False) as reader,
        ):
            yield reader
    elif magic[:2] == _GZIP_MAGIC:
        import gzip

        with _damage_errors(zlib.error, EOFError, gzip.BadGzipFile), gzip.GzipFile(fileobj=file) as stream:
            yield cast("IO[bytes]", stream)
    else:
        yield file


@contextmanager
def _damage_errors(*errors: type[Exception]) -> Iterator[None]:
    try:
        yield
    except errors as error:
        raise CopyError(f"the archive is damaged: {error}") from error


def _zstandard() -> Any:
    try:
        import zstandard
    except ImportError as error:
        raise MissingDependencyError(
            ".tar.zst needs the package zstandard, which is not installed",
            "pip install 'neurontools[archive]', or name the file .tar.gz",
        ) from error
    return zstandard
