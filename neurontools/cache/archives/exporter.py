"""`neuron-cache copy --to ARCHIVE` as a library: writes finished, undamaged entries to one archive, whole or not at all."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
import time
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING

from neurontools.base.directories import open_below
from neurontools.base.files import READ_SAFELY, remove_quietly
from neurontools.base.locks import flock
from neurontools.cache import verify
from neurontools.cache.archives import archive
from neurontools.cache.archives.archive import ExportError, LeftOut, StoredEntry, StoredFile
from neurontools.cache.entries import EntryReader
from neurontools.cache.entry_files import State
from neurontools.cache.layouts import CacheLayout
from neurontools.cache.location import is_remote
from neurontools.cache.locks import hold, release
from neurontools.cache.remote.bucket import RemoteError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from neurontools.cache.entries import Entry
    from neurontools.cache.walk import EntryRef

_TEMPORARY = ".writing-"


@dataclass(frozen=True, slots=True)
class ExportResult:
    """The content of a new archive: `stored_bytes` is the total length of its files, `archive_bytes` its own length."""

    archive: str
    paths: tuple[str, ...]
    stored_bytes: int
    archive_bytes: int
    left_out: tuple[LeftOut, ...]


@dataclass(slots=True)
class _Contents:
    paths: list[str] = field(default_factory=list)
    stored_bytes: int = 0
    left_out: list[LeftOut] = field(default_factory=list)


def export_entries(
    root: str,
    places: Sequence[EntryRef],
    target: str,
    *,
    rejection_reason: Callable[[Entry], str] = lambda _: "",
    replace: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> ExportResult:
    """Write finished, undamaged entries to an archive.

    Args:
        root: the cache.
        places: the entries.
        target: the archive; its suffix sets the compression.
        rejection_reason: returns why an entry does not belong in the archive, "" if it does.
        replace: replace an existing archive.
        progress: called with the number of finished entries and of all.

    Raises:
        ExportError: the archive exists or cannot be written, or no entry could be exported; nothing is left behind.
        UsageError: its name does not show the compression.
    """
    archive.check_suffix(target)
    if os.path.lexists(target) and not replace:
        raise ExportError(f"cannot export to {target}: the file exists", "use another name, or add --force")
    temporary = f"{target}{_TEMPORARY}{os.getpid()}"
    try:
        _remove_abandoned(target)
        with open(temporary, "xb") as file:
            flock(file.fileno())
            contents = _write(file, target, root, places, rejection_reason, progress)
            if not contents.paths:
                raise _nothing_exported(contents.left_out)
            file.flush()
            os.fsync(file.fileno())
            archive_bytes = file.tell()
        os.replace(temporary, target)
    except OSError as error:
        if isinstance(error.filename, str) and error.filename.startswith(root + "/"):
            doing, remedy = f"read {error.filename}", "check who owns it"
        else:
            doing, remedy = f"write {target}", "free space there, or use another directory"
        raise ExportError(f"cannot {doing}: {error.strerror or error}", remedy) from error
    finally:
        remove_quietly(temporary)
    return ExportResult(
        target, tuple(contents.paths), contents.stored_bytes, archive_bytes, tuple(contents.left_out)
    )


def _remove_abandoned(target: str) -> None:
    """Remove partial files of killed exports to the same archive: their locks are free."""
    directory, name = os.path.split(target)
    for found in os.listdir(directory or "."):
        if found.startswith(name + _TEMPORARY):
            path = os.path.join(directory, found)
            with suppress(OSError), os.fdopen(os.open(path, READ_SAFELY), "rb") as file:
                if flock(file.fileno(), wait=False):
                    os.unlink(path)


def _nothing_exported(left_out: list[LeftOut]) -> ExportError:
    if not left_out:
        return ExportError("nothing to export: the cache has no such entry")
    first = f"{left_out[0].path}: {left_out[0].reason}"
    return ExportError(f"nothing to export: no selected entry is finished and valid ({first})")


def _write(
    file: IO[bytes],
    target: str,
    root: str,
    places: Sequence[EntryRef],
    rejection_reason: Callable[[Entry], str],
    progress: Callable[[int, int], None] | None,
) -> _Contents:
    contents = _Contents()
    open_local = _opener(root)
    with (
        archive.compress(file, target) as stream,
        tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT) as tar,
    ):
        _add(tar, archive.HEAD, archive.format_head(time.time()))
        for number, place in enumerate(places):
            if progress is not None:
                progress(number, len(places))
            try:
                with open_local(place) as (local_root, local_place):
                    added = _add_entry(tar, local_root, local_place, rejection_reason)
            except RemoteError as error:
                if not error.is_gone:
                    raise
                added = "removed meanwhile"
            if isinstance(added, int):
                contents.paths.append(place.path)
                contents.stored_bytes += added
            else:
                contents.left_out.append(LeftOut(place.path, added))
        _add(tar, archive.END, archive.format_end(len(contents.paths)))
    return contents


def _opener(root: str) -> Callable[[EntryRef], AbstractContextManager[tuple[str, EntryRef]]]:
    """Return a function that yields a local root and an entry's place in it; for a bucket, a temporary copy."""
    if not is_remote(root):
        return lambda place: nullcontext((root, place))
    from neurontools.cache.remote.transfer import replica
    from neurontools.cache.remote.tree import BucketTree

    tree = BucketTree(root)
    return lambda place: replica(tree, root, place)


def _add_entry(
    tar: tarfile.TarFile, root: str, place: EntryRef, rejection_reason: Callable[[Entry], str]
) -> int | str:
    """Write an entry and return its bytes, or return why it was left out."""
    # While it is held, no prune removes it.
    held = hold(place.path) if place.layout is CacheLayout.CURRENT else None
    try:
        entry = EntryReader(root).read(place)
        if entry is None:
            return "removed meanwhile"
        return (
            _unexportable_reason(root, place, entry)
            or rejection_reason(entry)
            or _add_files(tar, root, place)
        )
    finally:
        release(held)


def _unexportable_reason(root: str, place: EntryRef, entry: Entry) -> str:
    if place.layout is not CacheLayout.CURRENT:
        return f"its layout ({place.layout.value}) is not exported"
    if entry.state is not State.DONE:
        return entry.state.value
    return verify.damage_reason(verify.verify_entries(root, [place])[1])


def _add_files(tar: tarfile.TarFile, root: str, place: EntryRef) -> int:
    relative = os.path.relpath(place.path, root)
    with ExitStack() as stack:
        opened = _open_files(stack, root, place.path)
        stored = StoredEntry(relative, tuple(_describe(name, file) for name, file in opened))
        _add(tar, f"{relative}/{archive.ENTRY}", stored.to_bytes())
        for (name, file), listed in zip(opened, stored.files, strict=True):
            file.seek(0)
            tar.addfile(_tar_info(f"{relative}/{name}", listed.size_bytes), file)
    return sum(listed.size_bytes for listed in stored.files)


def _open_files(stack: ExitStack, root: str, path: str) -> list[tuple[str, IO[bytes]]]:
    """Open the files of an entry that are exported; another user may have replaced a directory by a link meanwhile."""
    try:
        with open_below(root, path) as directory:
            names = archive.in_writing_order(list(filter(archive.is_portable, directory.names())))
            return [(name, stack.enter_context(os.fdopen(directory.open_file(name), "rb"))) for name in names]
    except OSError as error:
        raise ExportError(f"cannot export {path}: {error.strerror}", "check who owns it") from error


def _describe(name: str, file: IO[bytes]) -> StoredFile:
    digest = hashlib.file_digest(file, "sha256")  # type: ignore[arg-type]
    return StoredFile(name, file.tell(), digest.hexdigest())


def _tar_info(name: str, size: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = size, 0o644, int(time.time())
    return info


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    tar.addfile(_tar_info(name, len(data)), io.BytesIO(data))
