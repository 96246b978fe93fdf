"""`neuron-cache copy --from ARCHIVE` as a library: all entries are unpacked and checked before the first one appears."""

from __future__ import annotations

import hashlib
import os
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from neurontools.base.files import open_input, sync_directory, sync_file_system
from neurontools.base.units import format_size
from neurontools.cache import layouts, verify
from neurontools.cache.archives import archive
from neurontools.cache.archives.archive import ExportError, StoredEntry, StoredFile
from neurontools.cache.entries import EntryReader
from neurontools.cache.entry_files import State
from neurontools.cache.install import install_entry, staging_directory
from neurontools.cache.walk import EntryRef, walk
from neurontools.compiler.archive import ArchiveError
from neurontools.compiler.tar_reader import TarReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from neurontools.cache.entries import Entry
    from neurontools.compiler.tar_reader import Member

LIMIT_BYTES = 64 * 2**30
RESERVE_BYTES = 2**30
"""Bytes that an import leaves free, at most a twentieth of the file system."""


@dataclass(frozen=True, slots=True)
class ImportResult:
    """The entries of an archive by outcome, as paths below the root; `unwanted` with the reason."""

    root: str
    imported: tuple[str, ...]
    present: tuple[str, ...]
    locked: tuple[str, ...]
    unwanted: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class _Staged:
    stored: StoredEntry
    place: EntryRef


def import_archive(
    path: str,
    root: str,
    *,
    rejection_reason: Callable[[Entry], str] = lambda _: "",
    limit_bytes: int = LIMIT_BYTES,
    progress: Callable[[int, int], None] | None = None,
) -> ImportResult:
    """Add the entries of an archive to a cache; finished entries of the cache stay as they are.

    Args:
        path: an archive of `export_entries`.
        root: the cache, created if it does not exist.
        rejection_reason: returns why an entry is not wanted, "" if it is.
        limit_bytes: the maximum total size of the archive's files.
        progress: called with the number of bytes of the archive that were read and of all.

    Raises:
        ExportError: the archive is invalid, damaged, truncated or too large, and nothing is imported; or the root
            cannot be written.
        NotACacheError: the root is a directory with other files.
    """
    with _opened(path) as file:
        walk(root)
        try:
            layouts.make_root(root)
            with staging_directory(root) as temporary:
                staged = _unpack(file, temporary, limit_bytes, progress)
                # Entries appear only after they would survive a power cut.
                sync_file_system(temporary)
                return _install(root, temporary, staged, rejection_reason)
        except (ArchiveError, ExportError) as error:
            remedy = error.remedy or "nothing was imported; export or copy it again"
            raise ExportError(f"cannot import {path}: {error.message}", remedy) from error
        except OSError as error:
            raise ExportError(
                f"cannot import to the compile cache {root}: {error.strerror or error}",
                "free space or become the owner of the cache, then import again",
            ) from error


def _opened(path: str) -> IO[bytes]:
    try:
        file = open_input(path)
        with ExitStack() as stack:
            stack.callback(file.close)
            archive.check_start(path, file)
            stack.pop_all()
    except OSError as error:
        raise ExportError(f"cannot read {path}: {error.strerror}") from error
    return file


def _install(
    root: str, temporary: str, staged: list[_Staged], rejection_reason: Callable[[Entry], str]
) -> ImportResult:
    reader = EntryReader(temporary)
    outcomes: dict[str, list[str]] = {"imported": [], "present": [], "locked": []}
    unwanted = []
    for item in staged:
        entry = reader.read(item.place)
        reason = "it cannot be read" if entry is None else rejection_reason(entry)
        if reason:
            unwanted.append((item.stored.path, reason))
        else:
            names = [file.name for file in item.stored.files]
            outcomes[install_entry(root, item.place.path, item.stored.path, names)].append(item.stored.path)
    for compiler in {os.path.dirname(path) for path in outcomes["imported"]}:
        with suppress(FileNotFoundError):
            sync_directory(f"{root}/{compiler}")
    return ImportResult(
        root,
        imported=tuple(outcomes["imported"]),
        present=tuple(outcomes["present"]),
        locked=tuple(outcomes["locked"]),
        unwanted=tuple(unwanted),
    )


def _unpack(
    file: IO[bytes], temporary: str, limit_bytes: int, progress: Callable[[int, int], None] | None
) -> list[_Staged]:
    total = os.fstat(file.fileno()).st_size
    staged: list[_Staged] = []
    with archive.decompress(file) as stream:
        reader = TarReader(stream, limit_bytes)
        members = reader.members()
        archive.check_head(_read_first(reader, members, archive.HEAD))
        for member in members:
            if progress is not None:
                progress(file.tell(), total)
            if member.name == archive.END:
                archive.check_end(_read_json(reader, member), len(staged))
                if next(members, None) is not None:
                    raise ExportError("the archive continues after its end")
                return staged
            staged.append(_unpack_entry(reader, members, member, temporary))
    raise ExportError("the archive is truncated")


def _unpack_entry(reader: TarReader, members: Iterator[Member], first: Member, root: str) -> _Staged:
    stored, place = archive.parse_entry(_read_json(reader, first), root)
    if first.name != f"{stored.path}/{archive.ENTRY}":
        raise ExportError(f"the archive contains {first.name!a} where an entry should start")
    _check_space(root, stored)
    try:
        os.makedirs(place.path)
    except FileExistsError as error:
        raise ExportError(f"the archive contains {stored.path} twice") from error
    for listed in stored.files:
        member = next(members, None)
        if member is None or member.name != f"{stored.path}/{listed.name}" or member.is_directory:
            raise ExportError(f"the archive lacks {stored.path}/{listed.name} where it should be")
        if member.size_bytes != listed.size_bytes:
            raise ExportError(f"the archive is damaged: {listed.name} does not have the listed size")
        _unpack_file(reader, listed, f"{place.path}/{listed.name}")
    checked, findings = verify.verify_entries(root, [place])
    if findings or not checked:
        words = findings[0].words if findings else "it cannot be read"
        raise ExportError(f"the archive's entry {stored.path} is invalid: {words}")
    entry = EntryReader(root).read(place, details=False)
    if entry is None or entry.state is not State.DONE:
        raise ExportError(f"the archive's entry {stored.path} is not finished")
    return _Staged(stored, place)


def _check_space(directory: str, stored: StoredEntry) -> None:
    """Refuse an entry that would fill the disk before any of it is written: a small archive can hold terabytes."""
    disk = os.statvfs(directory)
    needed_bytes = sum(file.size_bytes for file in stored.files)
    free_bytes = disk.f_bavail * disk.f_frsize - min(RESERVE_BYTES, disk.f_blocks * disk.f_frsize // 20)
    if needed_bytes > free_bytes:
        raise ExportError(
            f"{stored.path} needs {format_size(needed_bytes)}, and {format_size(max(0, free_bytes))} are free",
            "nothing was imported; free space or use another cache",
        )


def _unpack_file(reader: TarReader, listed: StoredFile, path: str) -> None:
    digest, size = hashlib.sha256(), 0
    with open(path, "xb") as file:
        for chunk in reader.chunks():
            digest.update(chunk)
            size += len(chunk)
            file.write(chunk)
    if (size, digest.hexdigest()) != (listed.size_bytes, listed.digest):
        raise ExportError(f"the archive is damaged: {listed.name} does not match its checksum")


def _read_first(reader: TarReader, members: Iterator[Member], name: str) -> bytes:
    member = next(members, None)
    if member is None or member.name != name:
        raise ExportError("the archive was not made by 'neuron-cache copy'")
    return _read_json(reader, member)


def _read_json(reader: TarReader, member: Member) -> bytes:
    if member.is_directory or member.size_bytes > archive.MOST_JSON_BYTES:
        raise ExportError(f"the archive contains an unexpected file {member.name!a}")
    return b"".join(reader.chunks())
