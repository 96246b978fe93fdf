"""The form of an exported cache: a tar that, unpacked by any tar, is a cache itself.

`neurontools-export.json` comes first; each entry begins with `.export.json`, which lists its files in their order with
sizes and sha256, the marker that makes it finished last; `neurontools-export-end.json` says that nothing is missing.
"""

from __future__ import annotations

import json
import re
import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, cast

from neurontools.cache import layout
from neurontools.cache.generations import Generation
from neurontools.cache.marks import is_tag_file
from neurontools.cache.walk import Place, place_of
from neurontools.errors import MissingDependencyError, NeuronToolsError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

HEAD = "neurontools-export.json"
END = "neurontools-export-end.json"
ENTRY = ".export.json"
VERSION = 1
MOST_JSON_BYTES = 1 << 20
SUFFIXES = (".tar.zst", ".tar.gz", ".tgz", ".tar")
_MARKERS = (layout.NEFF, layout.DONE)
_KNOWN = frozenset({*layout.GRAPH_NAMES, layout.FLAGS, *_MARKERS})
_DIGEST = re.compile(r"[0-9a-f]{64}")
_ZSTD_MAGIC, _GZIP_MAGIC = b"\x28\xb5\x2f\xfd", b"\x1f\x8b"
_TAR_MAGIC, _TAR_MAGIC_AT = b"ustar", 257
_SHOWN_BYTES = 16
_LEVEL = 6
_MOST_WINDOW_BYTES = 1 << 27


class ExportError(NeuronToolsError):
    """A cache cannot be exported, or an archive is not one that can be imported."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of an entry; `digest` is its sha256 (hex)."""

    name: str
    size_bytes: int
    digest: str


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """An entry in an archive; `path` is relative to the root, `files` are in the order of writing."""

    path: str
    files: tuple[StoredFile, ...]

    def to_bytes(self) -> bytes:
        """Return what `stored_entry` reads."""
        files = [{"name": file.name, "size": file.size_bytes, "sha256": file.digest} for file in self.files]
        return json.dumps({"path": self.path, "files": files}, indent=1).encode() + b"\n"


def travels(name: str) -> bool:
    """Return whether a file of an entry is exported: what was compiled and tags, nothing of this host or user."""
    return name in _KNOWN or is_tag_file(name)


def in_order(names: list[str]) -> list[str]:
    """Return an entry's files so that the marker of a finished one comes last."""
    return sorted(names, key=lambda name: (name in _MARKERS, name == layout.DONE, name))


def stored_entry(data: bytes, root: str) -> tuple[StoredEntry, Place]:
    """Return an entry's list of files, checked, and its place below a root.

    Raises:
        ExportError: it is none, or names what is no entry's.
    """
    try:
        fields = json.loads(data)
        path = str(fields["path"])
        files = tuple(_stored_file(file) for file in fields["files"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ExportError(f"the archive's list of an entry is damaged: {type(error).__name__}") from error
    place = place_of(root, f"{root}/{path}")
    if place is None or place.generation is not Generation.CURRENT or path.count("/") != 1:
        raise ExportError(f"the archive names {path[:120]!a}, which is no entry's path")
    names = [file.name for file in files]
    if not all(travels(name) for name in names) or names != in_order(list(set(names))):
        raise ExportError(f"the archive's list of {path} names files that no entry has, or in a wrong order")
    return StoredEntry(path, files), place


def head_bytes(made_unix_s: float) -> bytes:
    """Return the archive's first file."""
    return _json({"format": "neuron-cache export", "version": VERSION, "made_unix_s": int(made_unix_s)})


def check_begin(path: str, file: IO[bytes]) -> None:
    """Refuse a file that does not begin as an archive does; its position stays at the start.

    Raises:
        ExportError: it does not, with what it begins with.
    """
    start = file.read(_TAR_MAGIC_AT + len(_TAR_MAGIC))
    file.seek(0)
    if start.startswith((_GZIP_MAGIC, _ZSTD_MAGIC)) or start[_TAR_MAGIC_AT:] == _TAR_MAGIC:
        return
    found = f"it begins with {start[:_SHOWN_BYTES]!r}" if start else "it is empty"
    raise ExportError(
        f"{path}: not an archive of 'neuron-cache export': {found}", "name one, for example cache.tar.zst"
    )


def check_head(data: bytes) -> None:
    """Refuse an archive of another format or version.

    Raises:
        ExportError: it is.
    """
    if _field(data, "version") != VERSION:
        raise ExportError(f"the archive's version is not supported (supported: {VERSION})")


def end_bytes(entries: int) -> bytes:
    """Return the archive's last file."""
    return _json({"entries": entries})


def check_end(data: bytes, entries: int) -> None:
    """Refuse an archive whose end tells of other entries than it had.

    Raises:
        ExportError: it does.
    """
    if _field(data, "entries") != entries:
        raise ExportError(f"the archive is damaged: its end does not tell of {entries} entries")


def check_suffix(path: str) -> None:
    """Refuse a name that does not say how to compress.

    Raises:
        UsageError: it does not.
    """
    if not path.endswith(SUFFIXES):
        raise UsageError(
            f"the name {path!a} does not say how to compress", f"let it end with one of {' '.join(SUFFIXES)}"
        )


@contextmanager
def compressed(file: IO[bytes], path: str) -> Iterator[IO[bytes]]:
    """Give what compresses into a file as the name of the archive says.

    Raises:
        MissingDependencyError: for .zst without the package for it.
    """
    if path.endswith(".zst"):
        compressor = _zstandard().ZstdCompressor(write_checksum=True)
        with compressor.stream_writer(file, closefd=False) as writer:
            yield writer
    elif path.endswith(".tar"):
        yield file
    else:
        import gzip

        with gzip.GzipFile(fileobj=file, mode="wb", compresslevel=_LEVEL, mtime=0, filename="") as zipped:
            yield cast("IO[bytes]", zipped)


@contextmanager
def expanded(file: IO[bytes]) -> Iterator[IO[bytes]]:
    """Give the plain tar of an archive; what it begins with says how it is compressed.

    Raises:
        ExportError: it is damaged.
        MissingDependencyError: it is compressed by zstd, and the package for it is not there.
    """
    magic = file.read(4)
    file.seek(0)
    if magic == _ZSTD_MAGIC:
        zstandard = _zstandard()
        with _told(zstandard.ZstdError):
            expander = zstandard.ZstdDecompressor(max_window_size=_MOST_WINDOW_BYTES)
            with expander.stream_reader(file, closefd=False) as reader:
                yield reader
    elif magic[:2] == _GZIP_MAGIC:
        import gzip

        with _told(zlib.error, EOFError, gzip.BadGzipFile), gzip.GzipFile(fileobj=file) as unzipped:
            yield cast("IO[bytes]", unzipped)
    else:
        yield file


@contextmanager
def _told(*errors: type[Exception]) -> Iterator[None]:
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


def _stored_file(fields: dict[str, Any]) -> StoredFile:
    name, size, digest = fields["name"], fields["size"], fields["sha256"]
    if not isinstance(name, str) or type(size) is not int or size < 0 or not _DIGEST.fullmatch(digest):
        raise ValueError(name)
    return StoredFile(name, size, digest)


def _field(data: bytes, name: str) -> object:
    try:
        found: object = json.loads(data)[name]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ExportError("the archive was not made by 'neuron-cache export', or is damaged") from error
    return found


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value).encode() + b"\n"
