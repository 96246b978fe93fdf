"""The format of an exported cache: a tar that any tar program unpacks to a cache.

`neurontools-export.json` comes first. Each entry starts with `.export.json`, which lists its files in order with sizes
and sha256, the marker of a finished entry last. `neurontools-export-end.json` shows that nothing is missing.
"""

from __future__ import annotations

import json
import re
import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, cast

from neurontools.base.json_reader import load_json
from neurontools.cache import layouts
from neurontools.cache.layouts import SENTINEL, CacheLayout
from neurontools.cache.pins_and_tags import is_tag_file
from neurontools.cache.walk import EntryRef, parse_entry_path
from neurontools.errors import MissingDependencyError, NeuronToolsError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

HEAD = "neurontools-export.json"
END = "neurontools-export-end.json"
ENTRY = ".export.json"
VERSION = 1
MOST_JSON_BYTES = 1 << 20
SUFFIXES = (".tar.zst", ".tar.gz", ".tgz", ".tar")
_PORTABLE = frozenset({*layouts.GRAPH_NAMES, layouts.FLAGS, layouts.NEFF, layouts.DONE})
_LAST = frozenset({layouts.NEFF, layouts.DONE, layouts.LOG})
_MARKERS = frozenset({layouts.DONE, SENTINEL})
_DIGEST = re.compile(r"[0-9a-f]{64}")
_ZSTD_MAGIC, _GZIP_MAGIC = b"\x28\xb5\x2f\xfd", b"\x1f\x8b"
_TAR_MAGIC, _TAR_MAGIC_OFFSET = b"ustar", 257
_SHOWN_BYTES = 16
_GZIP_LEVEL = 6
_MOST_WINDOW_BYTES = 1 << 27


class ExportError(NeuronToolsError):
    """A cache cannot be exported, or an archive cannot be imported."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """An entry that is not exported or moved, and why."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of an entry; `digest` is its sha256 (hex)."""

    name: str
    size_bytes: int
    digest: str


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """An entry in an archive; `path` is relative to the root, `files` are in writing order."""

    path: str
    files: tuple[StoredFile, ...]

    def to_bytes(self) -> bytes:
        """Return the entry's `.export.json`."""
        files = [{"name": file.name, "size": file.size_bytes, "sha256": file.digest} for file in self.files]
        return json.dumps({"path": self.path, "files": files}, indent=1).encode() + b"\n"


def is_portable(name: str) -> bool:
    """Return whether a file of an entry is exported: results and tags, but nothing about this host or user."""
    return name in _PORTABLE or is_tag_file(name)


def in_writing_order(names: list[str]) -> list[str]:
    """Return the names of an entry's files in writing order: the done marker comes last."""
    return sorted(names, key=lambda name: (name in _LAST or name == SENTINEL, name in _MARKERS, name))


def parse_entry(data: bytes, root: str) -> tuple[StoredEntry, EntryRef]:
    """Return an archived entry with its checked file list, and its place below a root.

    Raises:
        ExportError: it is damaged, or names files that are not an entry's.
    """
    try:
        fields = load_json(data)
        path = str(fields["path"])
        files = tuple(_parse_file(file) for file in fields["files"])
    except (ValueError, KeyError, TypeError) as error:
        raise ExportError(
            f"the archive's file list of an entry is damaged: {type(error).__name__}"
        ) from error
    place = parse_entry_path(root, f"{root}/{path}")
    if place is None or place.layout is not CacheLayout.CURRENT or path.count("/") != 1:
        raise ExportError(f"the archive names {path[:120]!a}, which is not the path of an entry")
    names = [file.name for file in files]
    if not all(is_portable(name) for name in names) or names != in_writing_order(list(set(names))):
        raise ExportError(f"the archive's list of {path} has unknown files, or files in the wrong order")
    return StoredEntry(path, files), place


def format_head(made_unix_s: float) -> bytes:
    """Return the archive's first file."""
    return _dump({"format": "neuron-cache export", "version": VERSION, "made_unix_s": int(made_unix_s)})


def format_end(entries: int) -> bytes:
    """Return the archive's last file."""
    return _dump({"entries": entries})


def check_start(path: str, file: IO[bytes]) -> None:
    """Raise ExportError if a file does not start like an archive; its position stays at the start."""
    start = file.read(_TAR_MAGIC_OFFSET + len(_TAR_MAGIC))
    file.seek(0)
    if start.startswith((_GZIP_MAGIC, _ZSTD_MAGIC)) or start[_TAR_MAGIC_OFFSET:] == _TAR_MAGIC:
        return
    found = f"it starts with {start[:_SHOWN_BYTES]!r}" if start else "it is empty"
    raise ExportError(
        f"{path}: not an archive of 'neuron-cache copy': {found}",
        "name an archive, for example cache.tar.zst",
    )


def check_head(data: bytes) -> None:
    """Raise ExportError for an archive of another format or version."""
    if _field(data, "version") != VERSION:
        raise ExportError(f"the archive's version is not supported (supported: {VERSION})")


def check_end(data: bytes, entries: int) -> None:
    """Raise ExportError if the number of entries at an archive's end does not match."""
    if _field(data, "entries") != entries:
        raise ExportError(f"the archive is damaged: its end record does not match its {entries} entries")


def check_suffix(path: str) -> None:
    """Raise UsageError for a file name without a known compression."""
    if not path.endswith(SUFFIXES):
        raise UsageError(
            f"the name {path!a} does not show the compression", f"end it with one of {' '.join(SUFFIXES)}"
        )


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
        ExportError: it is damaged.
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
        raise ExportError(f"the archive is damaged: {error}") from error


def _zstandard() -> Any:
    try:
        import zstandard
    except ImportError as error:
        raise MissingDependencyError(
            ".tar.zst needs the package zstandard, which is not installed",
            "pip install 'neurontools[archive]', or name the file .tar.gz",
        ) from error
    return zstandard


def _parse_file(fields: dict[str, Any]) -> StoredFile:
    name, size, digest = fields["name"], fields["size"], fields["sha256"]
    if not isinstance(name, str) or type(size) is not int or size < 0 or not _DIGEST.fullmatch(digest):
        raise ValueError(name)
    return StoredFile(name, size, digest)


def _field(data: bytes, name: str) -> object:
    try:
        found: object = load_json(data)[name]
    except (ValueError, KeyError, TypeError) as error:
        raise ExportError("the archive is damaged, or was not made by 'neuron-cache copy'") from error
    return found


def _dump(value: dict[str, Any]) -> bytes:
    return json.dumps(value).encode() + b"\n"
