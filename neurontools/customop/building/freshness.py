"""Detect changes: whether a library or an object file is up to date, and when a watched source changes."""

from __future__ import annotations

import hashlib
import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from neurontools.base.files import open_input
from neurontools.base.json_reader import load_json
from neurontools.customop.building.request import absolute
from neurontools.customop.building.toolchain import HERE, toolchain_key
from neurontools.customop.errors import CustomOpLibraryError
from neurontools.customop.package import read_package

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from neurontools.customop.building.request import BuildRequest
    from neurontools.customop.building.toolchain import Compiler
    from neurontools.customop.package import Manifest, SourceEntry

_DECISIVE = (
    "building/build_steps",
    "building/compilation",
    "package",
    "signature",
    "building/toolchain",
)  # modules that determine the content of a library
PERIOD_S = 0.15
Stamps = dict[str, tuple[int, int, int] | None]


def build_key(request: BuildRequest, compiler: Compiler) -> str:
    """Return a digest of everything that determines the result except the contents of the sources."""
    facts = (
        request.name,
        toolchain_key(compiler, sanitize=request.sanitize),
        [file_sha256(HERE / f"{module}.py") for module in _DECISIVE],
        request.multicore,
        request.release,
        request.cflags,
        absolute(request.compute),
        absolute(request.shape),
    )
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def up_to_date(path: Path, key: str) -> Manifest | None:
    """Return the manifest of an up-to-date library, else None."""
    try:
        manifest = read_package(path).manifest
        current = manifest.build_key == key and not changed_sources(manifest.sources)
    except (CustomOpLibraryError, OSError):
        return None
    return manifest if current else None


def changed_sources(entries: Iterable[SourceEntry]) -> tuple[str, ...]:
    """Return the paths of files that are missing or have changed since the build."""
    changed = []
    for entry in entries:
        try:
            same = file_sha256(Path(entry.path)) == entry.sha256
        except (OSError, UnicodeEncodeError):  # built with another locale
            same = False
        if not same:
            changed.append(entry.path)
    return tuple(changed)


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file's contents.

    Raises:
        OSError: it cannot be read, or is not a regular file: a device or a pipe may have no end.
    """
    with open_input(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True, slots=True)
class ObjectRecord:
    """The inputs of an object file.

    Args:
        key: digest of the command and the unit's text.
        object_sha256: digest of the object file: a power failure may truncate it.
        sources: the user's files that were read, with their digests.
        warnings: warnings of the compiler.
    """

    key: str
    object_sha256: str
    sources: dict[str, str]
    warnings: tuple[str, ...]


def unit_key(command: Sequence[str], text: str, toolchain: str) -> str:
    """Return a digest of everything that determines an object file except the contents of the user's files."""
    return hashlib.sha256(repr((tuple(command), text, toolchain)).encode()).hexdigest()


def find_object(path: Path, key: str) -> ObjectRecord | None:
    """Return the record of an up-to-date object file, else None."""
    try:
        raw = load_json(_record(path).read_bytes(), any_text=True)
        record = ObjectRecord(raw["key"], raw["object_sha256"], dict(raw["sources"]), tuple(raw["warnings"]))
        current = (
            record.key == key
            and file_sha256(path) == record.object_sha256
            and all(file_sha256(Path(source)) == digest for source, digest in record.sources.items())
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return record if current else None


def store_object(fresh: Path, path: Path, record: ObjectRecord) -> None:
    """Move a new object file into place and write its record."""
    os.replace(fresh, path)
    _record(path).write_text(json.dumps(asdict(record)), encoding="utf-8")


def _record(path: Path) -> Path:
    return path.with_suffix(".json")


def stamps(paths: Iterable[str]) -> Stamps:
    """Return inode, size and modification time of files; None for missing ones."""
    return {path: _stamp(path) for path in paths}


def wait_for_change(before: Stamps, sleep: Callable[[float], None] = time.sleep) -> tuple[str, ...]:
    """Wait until files change from their stamps, and until they stop changing; return the changed paths.

    Stamps are polled, which works on every file system and with every editor.
    """
    while True:
        sleep(PERIOD_S)
        now = stamps(before)
        if now == before:
            continue
        while (later := _after(sleep, now)) != now:
            now = later
        changed = tuple(path for path in before if now[path] != before[path])
        if changed:
            return changed


def _after(sleep: Callable[[float], None], now: Stamps) -> Stamps:
    sleep(PERIOD_S / 3)
    return stamps(now)


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
