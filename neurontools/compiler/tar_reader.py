"""Read a tar archive of any origin as a stream, within fixed limits, without extracting it.

Plain files and directories are accepted. Links, devices, sparse files, absolute names and `..` are refused, so nothing
outside the target directory is ever touched, and memory stays small.
"""

from __future__ import annotations

import tarfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from neurontools.compiler.archive import ArchiveError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from _typeshed import SupportsRead

MAX_MEMBERS = 1_000_000
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

    def __init__(self, stream: SupportsRead[bytes], limit_bytes: int, max_members: int = MAX_MEMBERS) -> None:
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
