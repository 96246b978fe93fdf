"""`neuron-cache export` as a library: finished entries, checked, into one archive that appears whole or not at all."""

from __future__ import annotations

import fcntl
import hashlib
import io
import os
import stat
import tarfile
import time
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from neurontools.cache import verify
from neurontools.cache.archives import archive
from neurontools.cache.archives.archive import ExportError, StoredEntry, StoredFile
from neurontools.cache.entry_io import hold, let_go
from neurontools.cache.entry_reader import EntryReader
from neurontools.cache.files import remove_quietly
from neurontools.cache.generations import Generation
from neurontools.cache.locks import flock
from neurontools.cache.remote.errors import RemoteError
from neurontools.cache.remote.url import is_remote
from neurontools.cache.states import State

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager
    from typing import TypeAlias

    from neurontools.cache.entry_reader import Entry
    from neurontools.cache.walk import Place

    Nearby: TypeAlias = Callable[[Place], AbstractContextManager[tuple[str, Place]]]

_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CHUNK_BYTES = 1 << 20
_ASIDE = ".writing-"


@dataclass(frozen=True, slots=True)
class LeftOut:
    """An entry that was not exported, and why."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class Export:
    """What is in a new archive. `stored_bytes` are its files' lengths, `archive_bytes` its own."""

    archive: str
    paths: tuple[str, ...]
    stored_bytes: int
    archive_bytes: int
    left_out: tuple[LeftOut, ...]


def export_entries(
    root: str,
    places: Sequence[Place],
    target: str,
    *,
    judge: Callable[[Entry], str] = lambda _: "",
    replace: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Export:
    """Write finished, sound entries to an archive.

    Args:
        root: the cache.
        places: which entries.
        target: the archive; its name's end says how it is compressed.
        judge: says why an entry does not belong into the archive, "" for one that does.
        replace: an archive that is there is replaced.
        progress: is told how many entries of how many are done.

    Raises:
        ExportError: the archive is there or cannot be written, or no entry could be exported; nothing is left behind.
        UsageError: its name does not say how to compress.
    """
    archive.check_suffix(target)
    if os.path.lexists(target) and not replace:
        raise ExportError(f"cannot export to {target}: it is there", "name another, or add --force")
    aside = f"{target}{_ASIDE}{os.getpid()}"
    try:
        _drop_abandoned(target)
        with open(aside, "xb") as file:
            flock(file.fileno(), fcntl.LOCK_EX)
            paths, stored_bytes, left_out = _write(file, target, root, places, judge, progress)
            if not paths:
                raise _nothing(left_out)
            file.flush()
            os.fsync(file.fileno())
            archive_bytes = file.tell()
        os.replace(aside, target)
    except OSError as error:
        what = f"read {error.filename}" if _is_inside(root, error.filename) else f"write {target}"
        remedy = "see who owns it" if what.startswith("read") else "make room there, or name another place"
        raise ExportError(f"cannot {what}: {error.strerror or error}", remedy) from error
    finally:
        remove_quietly(aside)
    return Export(target, tuple(paths), stored_bytes, archive_bytes, tuple(left_out))


def _drop_abandoned(target: str) -> None:
    """Remove what killed exports to the same archive left half written: nobody holds it any more."""
    directory, name = os.path.split(target)
    for left in os.listdir(directory or "."):
        if left.startswith(name + _ASIDE):
            path = os.path.join(directory, left)
            with suppress(OSError), os.fdopen(os.open(path, _OPEN), "rb") as file:
                if flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB):
                    os.unlink(path)


def _is_inside(root: str, path: object) -> bool:
    return isinstance(path, str) and path.startswith(root + "/")


def _nothing(left_out: list[LeftOut]) -> ExportError:
    if not left_out:
        return ExportError("nothing to export: no entry is there")
    first = f"{left_out[0].path}: {left_out[0].reason}"
    return ExportError(f"nothing to export: no entry is finished, sound and wanted ({first})")


def _write(
    file: IO[bytes],
    target: str,
    root: str,
    places: Sequence[Place],
    judge: Callable[[Entry], str],
    progress: Callable[[int, int], None] | None,
) -> tuple[list[str], int, list[LeftOut]]:
    paths: list[str] = []
    left_out: list[LeftOut] = []
    stored_bytes = 0
    nearby = _nearby(root)
    with (
        archive.compressed(file, target) as stream,
        tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT) as written,
    ):
        _add(written, archive.HEAD, archive.head_bytes(time.time()))
        for number, place in enumerate(places):
            if progress is not None:
                progress(number, len(places))
            found = _export_near(written, nearby, place, judge)
            if isinstance(found, int):
                paths.append(place.path)
                stored_bytes += found
            else:
                left_out.append(LeftOut(place.path, found))
        _add(written, archive.END, archive.end_bytes(len(paths)))
    return paths, stored_bytes, left_out


def _nearby(root: str) -> Nearby:
    """Return what gives a local root and the place of an entry in it: in a bucket, that of a copy."""
    if not is_remote(root):
        return lambda place: nullcontext((root, place))
    from neurontools.cache.remote.copies import copied
    from neurontools.cache.remote.tree import BucketTree

    tree = BucketTree(root)
    return lambda place: copied(tree, root, place)


def _export_near(
    written: tarfile.TarFile, nearby: Nearby, place: Place, judge: Callable[[Entry], str]
) -> int | str:
    try:
        with nearby(place) as (local, here):
            return _export_one(written, local, here, judge)
    except RemoteError as error:
        if error.is_gone:
            return "gone meanwhile"
        raise


def _export_one(
    written: tarfile.TarFile, root: str, place: Place, judge: Callable[[Entry], str]
) -> int | str:
    """Write an entry and return its bytes, or return why it was left out."""
    # While it is held, no prune takes it away.
    held = hold(place.path) if place.generation is Generation.CURRENT else None
    try:
        entry = EntryReader(root).read(place)
        if entry is None:
            return "gone meanwhile"
        reason = _reason_against(root, place, entry) or judge(entry)
        return reason or _write_entry(written, root, place)
    finally:
        let_go(held)


def _reason_against(root: str, place: Place, entry: Entry) -> str:
    if place.generation is not Generation.CURRENT:
        return f"its layout ({place.generation.value}) is not exported"
    if entry.state is not State.DONE:
        return entry.state.value
    _, findings = verify.check(root, [place])
    return verify.reason_against(findings)


def _write_entry(written: tarfile.TarFile, root: str, place: Place) -> int:
    names = archive.in_order([name for name in os.listdir(place.path) if archive.travels(name)])
    relative = os.path.relpath(place.path, root)
    with ExitStack() as stack:
        opened = [(name, stack.enter_context(_open_plain(f"{place.path}/{name}"))) for name in names]
        stored = StoredEntry(relative, tuple(_stored(name, file) for name, file in opened))
        _add(written, f"{relative}/{archive.ENTRY}", stored.to_bytes())
        for (name, file), listed in zip(opened, stored.files, strict=True):
            file.seek(0)
            written.addfile(_info(f"{relative}/{name}", listed.size_bytes), file)
    return sum(listed.size_bytes for listed in stored.files)


def _open_plain(path: str) -> IO[bytes]:
    file = os.fdopen(os.open(path, _OPEN), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise ExportError(f"cannot export {path}: it is not a plain file")
    return file


def _stored(name: str, file: IO[bytes]) -> StoredFile:
    digest, size = hashlib.sha256(), 0
    while chunk := file.read(_CHUNK_BYTES):
        digest.update(chunk)
        size += len(chunk)
    return StoredFile(name, size, digest.hexdigest())


def _info(name: str, size: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = size, 0o644, int(time.time())
    return info


def _add(written: tarfile.TarFile, name: str, data: bytes) -> None:
    written.addfile(_info(name, len(data)), io.BytesIO(data))
