"""Tar archives: one packed and unpacked in memory, and one of any origin read as a stream.

Only plain files are accepted, and directories in a stream. Links, devices, sparse files, extension headers, absolute names
and `..` are refused, so a foreign file can neither escape the archive nor use more memory than its limit. Packing the same
files again gives the same bytes.
"""

from __future__ import annotations

import struct
import tarfile
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from neurontools.errors import NeuronToolsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from _typeshed import SupportsRead


MAX_BYTES = 256 * 2**20
MAX_MEMBERS = 4096
_MAX_RATIO = 100
_FREE_BYTES = 16 * 2**20
_BLOCK = 512
_GZIP = 31
_LEVEL = 6
_NAME = 100
_USTAR = struct.Struct("100s8s8s8s12s12s8s1s100s6s2s32s32s8s8s155s12s")
_CHECKSUM = slice(148, 156)


class ArchiveError(NeuronToolsError):
    """The bytes are not a valid archive, or exceed a limit."""


def pack_files(files: dict[str, bytes]) -> bytes:
    """Return the compressed archive of named contents, in the order given.

    Raises:
        ArchiveError: a name is not a relative path of at most 100 bytes.
    """
    blocks = []
    for name, content in files.items():
        _check_name(name)
        blocks += [_header(name, len(content)), content, bytes(-len(content) % _BLOCK)]
    blocks.append(bytes(2 * _BLOCK))
    compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
    return compressor.compress(b"".join(blocks)) + compressor.flush()


def unpack_files(data: bytes, is_wanted: Callable[[str], bool] = bool) -> dict[str, bytes]:
    """Return the named contents of an archive.

    Args:
        data: the compressed archive.
        is_wanted: whether a file is returned; others are only checked, and take no memory.

    Raises:
        ArchiveError: damaged, holding something other than plain files, or larger when expanded than 256 MiB, or than
            100 times its compressed size and 16 MiB.
    """
    expanded = _Expanded(data, max_expanded_bytes(len(data), MAX_BYTES))
    names: set[str] = set()
    files: dict[str, bytes] = {}
    while True:
        header = expanded.read(_BLOCK)
        if len(header) < _BLOCK:
            raise ArchiveError("the archive ends within a header")
        if header == bytes(_BLOCK):
            expanded.check_end()
            return files
        name, size = _read_header(header)
        if name in names:
            raise ArchiveError(f"the archive holds {name!r} twice")
        if len(names) >= MAX_MEMBERS:
            raise ArchiveError(f"the archive holds more than {MAX_MEMBERS} files")
        names.add(name)
        if is_wanted(name):
            files[name] = content = expanded.read(size)
            is_complete = len(content) == size
        else:
            is_complete = expanded.skip(size)
        if not is_complete or not expanded.skip(-size % _BLOCK):
            raise ArchiveError(f"the archive ends within {name!r}")


def max_expanded_bytes(compressed_bytes: int, limit_bytes: int) -> int:
    """Return the limit of an archive's expanded size: 100 times its compressed size or 16 MiB, within a fixed limit."""
    return min(limit_bytes, max(_FREE_BYTES, compressed_bytes * _MAX_RATIO))


class _Expanded:
    """The expanded bytes of an archive, read from start to end; a small archive is expanded in one step."""

    def __init__(self, data: bytes, limit_bytes: int) -> None:
        self._expander = zlib.decompressobj(_GZIP)
        self._data = data
        self._limit_bytes = limit_bytes
        self._total_bytes = 0
        self._buffer = b""
        self._position = 0

    def read(self, size: int) -> bytes:
        """Return the next bytes, fewer at the end."""
        if self._position + size <= len(self._buffer):
            self._position += size
            return self._buffer[self._position - size : self._position]
        pieces = []
        while size and (self._position < len(self._buffer) or self._fill()):
            piece = self._buffer[self._position : self._position + size]
            self._position += len(piece)
            size -= len(piece)
            pieces.append(piece)
        return b"".join(pieces)

    def skip(self, size: int) -> bool:
        """Skip bytes; return whether there were as many."""
        while size > (available := len(self._buffer) - self._position):
            size -= available
            if not self._fill():
                return False
        self._position += size
        return True

    def check_end(self) -> None:
        """Expand the rest, which makes the expander check its own checksum."""
        while self._fill():
            pass
        if self._expander.unused_data:
            raise ArchiveError("the archive is followed by other data")

    def _fill(self) -> bool:
        if self._expander.eof:
            return False
        self._buffer, self._position = b"", 0
        step_bytes = min(_FREE_BYTES, self._limit_bytes - self._total_bytes) + 1
        try:
            self._buffer = self._expander.decompress(self._data, step_bytes)
        except zlib.error as error:
            raise ArchiveError(f"the archive is damaged: {error}") from error
        self._data = self._expander.unconsumed_tail
        self._total_bytes += len(self._buffer)
        if self._total_bytes > self._limit_bytes:
            raise ArchiveError(f"the archive expands to more than {self._limit_bytes} bytes")
        if not self._buffer and not self._expander.eof:
            raise ArchiveError("the archive is cut short")
        return bool(self._buffer)


def _header(name: str, size: int) -> bytes:
    fields: list[bytes] = [
        name.encode(),
        b"0000644\0",
        b"0000000\0",
        b"0000000\0",
        f"{size:011o}\0".encode(),
        b"00000000000\0",
        b" " * 8,
        b"0",
        b"",
        b"ustar\0",
        b"00",
        *([b""] * 6),
    ]
    fields[6] = f"{sum(_USTAR.pack(*fields)):06o}\0 ".encode()
    return _USTAR.pack(*fields)


def _read_header(header: bytes) -> tuple[str, int]:
    fields = _USTAR.unpack(header)
    if fields[9][:5] != b"ustar" or fields[15].rstrip(b"\0"):
        raise ArchiveError("the archive is not in the plain ustar format")
    try:
        name = fields[0].rstrip(b"\0").decode()
        size = int(fields[4].rstrip(b"\0 ") or b"0", 8)
        stored_sum = int(fields[6].rstrip(b"\0 ") or b"0", 8)
    except ValueError as error:
        raise ArchiveError(f"a header of the archive is damaged: {error}") from error
    # The checksum is that of the header with blanks in its own place. Most bytes of a header are zero.
    checksum = sum(header.translate(None, b"\0")) - sum(header[_CHECKSUM]) + 8 * ord(" ")
    if stored_sum != checksum or size < 0:
        raise ArchiveError("a header of the archive is damaged: wrong checksum")
    if fields[7] not in {b"0", b"\0"}:
        raise ArchiveError(f"the archive holds {name!r}, which is not a plain file")
    _check_name(name)
    return name, size


def _check_name(name: str) -> None:
    parts = name.split("/")
    if not name or len(name.encode()) > _NAME or "\0" in name or {"", ".", ".."} & set(parts):
        raise ArchiveError(f"the archive's file name {name!r} is not allowed")


MAX_STREAMED_MEMBERS = 1_000_000
_CHUNK_BYTES = 1 << 20
_BUFFER_BYTES = 1 << 16
_MAX_NAME_BYTES = 4096
_MAX_HEADER_BYTES = 1 << 17  # of one member, with its extension headers
_TYPES = {
    tarfile.LNKTYPE: "a hard link",
    tarfile.SYMTYPE: "a link",
    tarfile.CHRTYPE: "a device",
    tarfile.BLKTYPE: "a device",
    tarfile.FIFOTYPE: "a pipe",
}
_PLAIN_TYPES = (tarfile.REGTYPE, tarfile.AREGTYPE)
_PARSE_ERRORS = (tarfile.TarError, ValueError, ArithmeticError, LookupError, RecursionError)


@dataclass(frozen=True, slots=True)
class Member:
    """A file or a directory of an archive; `name` is a relative path without `.` and `..`."""

    name: str
    size_bytes: int
    is_directory: bool


class TarReader:
    """An archive that is read once, from start to end.

    Args:
        stream: the archive, not compressed; `read` returns fewer bytes than requested at the end only.
        limit_bytes: maximum total size of its files.
        max_members: maximum number of files and directories.
    """

    def __init__(
        self, stream: SupportsRead[bytes], limit_bytes: int, max_members: int = MAX_STREAMED_MEMBERS
    ) -> None:
        self._stream = _HeaderLimit(stream)
        self._limit_bytes = limit_bytes
        self._max_members = max_members
        self._content: Iterator[bytes] = iter(())

    def members(self) -> Iterator[Member]:
        """Yield each member; `chunks` reads its content until the next one is requested.

        Raises:
            ArchiveError: the archive is cut short, damaged, too large, or holds a refused member.
        """
        tar: Any = None
        count = total_bytes = 0
        while True:
            for _ in self._content:
                pass
            self._stream.begin_header()
            try:
                tar = tar or _open(self._stream)
                info = tar.next()
                tar.members.clear()  # else the headers of a large archive stay in memory
            except _PARSE_ERRORS as error:
                raise ArchiveError(f"a header of the archive is damaged: {error}") from error
            self._stream.end_header()
            if info is None:
                _check_end(tar.fileobj)
                return
            count += 1
            if count > self._max_members:
                raise ArchiveError("the archive holds too many files")
            member = _member(info)
            total_bytes += member.size_bytes
            if total_bytes > self._limit_bytes:
                raise ArchiveError(
                    f"the archive's files have more than {self._limit_bytes} bytes",
                    "--max-size allows more, if you trust it",
                )
            self._content = _content(tar.fileobj, member.size_bytes)
            if member.name:
                yield member

    def chunks(self) -> Iterator[bytes]:
        """Yield the content of the last member in pieces.

        Raises:
            ArchiveError: the archive is cut short or damaged.
        """
        return self._content


class _HeaderLimit:
    """A stream that refuses to deliver an endless header: extension headers have any length they announce."""

    def __init__(self, stream: SupportsRead[bytes]) -> None:
        self._stream = stream
        self._remaining: int | None = None

    def begin_header(self) -> None:
        self._remaining = _MAX_HEADER_BYTES + _BUFFER_BYTES

    def end_header(self) -> None:
        self._remaining = None

    def read(self, size: int, /) -> bytes:
        data = self._stream.read(size)
        if self._remaining is not None:
            self._remaining -= len(data)
            if self._remaining < 0:
                raise ArchiveError("the archive holds an extension header that is too large")
        return data


class _StrictInfo(tarfile.TarInfo):
    """A header; a damaged one is an error, where tarfile takes it for the end of the archive."""

    @classmethod
    def fromtarfile(cls, tarfile_: tarfile.TarFile, /) -> Self:
        try:
            return super().fromtarfile(tarfile_)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            raise
        except (tarfile.EmptyHeaderError, tarfile.TruncatedHeaderError) as error:  # type: ignore[attr-defined]
            raise ArchiveError("the archive is cut short") from error
        except tarfile.HeaderError as error:
            raise ArchiveError(f"a header of the archive is damaged: {error}") from error


def _open(stream: Any) -> Any:
    # The types of tarfile do not know a stream that can only be read. There is nothing to close but the stream.
    return tarfile.open(
        fileobj=stream, mode="r|", bufsize=_BUFFER_BYTES, tarinfo=_StrictInfo, encoding="utf-8"
    )


def _content(stream: Any, remaining_bytes: int) -> Iterator[bytes]:
    while remaining_bytes:
        chunk = stream.read(min(remaining_bytes, _CHUNK_BYTES))
        if not chunk:
            raise ArchiveError("the archive is cut short")
        remaining_bytes -= len(chunk)
        yield chunk


def _check_end(stream: Any) -> None:
    # Zeros follow up to the end of a record. Reading them makes a compressed stream check its own checksum.
    tail = stream.read(_CHUNK_BYTES + 1)
    if len(tail) > _CHUNK_BYTES or tail.strip(b"\0"):
        raise ArchiveError("the archive is followed by other data")


def safe_name(name: str) -> str:
    """Return a relative path without `.` parts, "" for the top itself.

    Raises:
        ArchiveError: it is absolute, contains `..`, is too long or has characters that do not print.
    """
    parts = [part for part in name.split("/") if part not in {"", "."}]
    if name.startswith("/") or ".." in parts:
        raise ArchiveError(f"the archive's file name {name!a} leads out of it")
    if len(name.encode("utf-8", "surrogateescape")) > _MAX_NAME_BYTES or not name.isprintable():
        raise ArchiveError(f"the archive's file name {name[:80]!a} is not allowed")
    return "/".join(parts)


def _member(info: tarfile.TarInfo) -> Member:
    if info.issparse() or any(key.startswith("GNU.sparse") for key in info.pax_headers):
        raise ArchiveError("the archive holds a sparse file")
    if not info.isdir() and info.type not in _PLAIN_TYPES:
        kind = _TYPES.get(info.type, f"an entry of type {info.type!a}")
        raise ArchiveError(f"the archive holds {info.name!a}, which is {kind}")
    if info.size < 0 or (info.isdir() and info.size):
        raise ArchiveError(f"the archive holds {info.name!a} with a wrong size")
    return Member(safe_name(info.name), info.size, info.isdir())
