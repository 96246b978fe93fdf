"""Reading a tar archive as a stream, member by member, within fixed bounds, whoever wrote it.

Plain files and directories are accepted, in the ustar, GNU and pax formats. Links, devices, sparse files, absolute
names and `..` are refused, so that nothing outside the place of unpacking is ever touched and memory stays small.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from neurontools.compiler.archive import ArchiveError

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST_MEMBERS = 1_000_000
_BLOCK = 512
_CHUNK_BYTES = 1 << 20
_MOST_NAME_BYTES = 4096
_MOST_EXTENSION_BYTES = 1 << 16
_HEADER = struct.Struct("100s8s8s8s12s12s8s1s100s6s2s32s32s8s8s155s12s")
_PLAIN = frozenset({b"0", b"\0"})
_DIRECTORY, _PAX, _PAX_GLOBAL, _GNU_NAME = b"5", b"x", b"g", b"L"
_KINDS = {b"1": "a hard link", b"2": "a link", b"3": "a device", b"4": "a device", b"6": "a pipe"}


class Stream(Protocol):
    """What bytes are read from; fewer than asked for are returned at the end only, or none."""

    def read(self, size: int, /) -> bytes:
        """Return at most so many bytes."""
        ...


@dataclass(frozen=True, slots=True)
class Member:
    """A file or a directory of an archive; `name` is a relative path without `.` and `..`."""

    name: str
    size_bytes: int
    is_directory: bool


class TarReader:
    """An archive that is read once, from its start to its end.

    Args:
        stream: the archive, not compressed.
        limit_bytes: most bytes that its files may have together.
        most_members: most files and directories.
    """

    def __init__(self, stream: Stream, limit_bytes: int, most_members: int = MOST_MEMBERS) -> None:
        self._stream = stream
        self._limit_bytes = limit_bytes
        self._rest_bytes = limit_bytes
        self._rest_members = most_members
        self._unread = 0
        self._padding = 0

    def members(self) -> Iterator[Member]:
        """Yield each member; between two of them `chunks` reads the content of the first.

        Raises:
            ArchiveError: cut short, damaged, too large, or holding something that is not accepted.
        """
        name = ""
        pax: dict[str, str] = {}
        while (header := self._next_header()) is not None:
            kind, size = header[7], _number(header[4])
            if kind in {_PAX, _PAX_GLOBAL, _GNU_NAME}:
                content = self._extension(size)
                if kind == _GNU_NAME:
                    name = _text(content.rstrip(b"\0"))
                elif kind == _PAX:
                    pax = _pax_records(content)
                continue
            if any(key.startswith("GNU.sparse") for key in pax):
                raise ArchiveError("the archive holds a sparse file")
            size = _decimal(pax["size"]) if "size" in pax else size
            member = _member(pax.get("path") or name or _stored_name(header), kind, size)
            name, pax = "", {}
            self._enter(member)
            if member.name:
                yield member

    def chunks(self) -> Iterator[bytes]:
        """Yield the content of the member that came last, in pieces.

        Raises:
            ArchiveError: cut short or damaged.
        """
        while self._unread:
            chunk = self._read(min(self._unread, _CHUNK_BYTES))
            self._unread -= len(chunk)
            yield chunk

    def _enter(self, member: Member) -> None:
        self._rest_members -= 1
        self._rest_bytes -= member.size_bytes
        if self._rest_members < 0:
            raise ArchiveError("the archive holds too many files")
        if self._rest_bytes < 0:
            raise ArchiveError(
                f"the archive's files have more than {self._limit_bytes} bytes",
                "--max-size allows more, if you trust it",
            )
        self._unread = member.size_bytes
        self._padding = -member.size_bytes % _BLOCK

    def _next_header(self) -> tuple[bytes, ...] | None:
        for _ in self.chunks():
            pass
        self._read(self._padding)
        self._padding = 0
        block = self._read(_BLOCK)
        if block == bytes(_BLOCK):
            self._finish()
            return None
        fields: tuple[bytes, ...] = _HEADER.unpack(block)
        if _number(fields[6]) != sum(block[:148] + b" " * 8 + block[156:]):
            raise ArchiveError("a header of the archive is damaged: wrong checksum")
        return fields

    def _finish(self) -> None:
        # What follows are zeros up to the end of a record. Reading them has a compressed stream check its own sum.
        for _ in range(_CHUNK_BYTES // _BLOCK):
            block = _read(self._stream, _BLOCK)
            if block.strip(b"\0"):
                raise ArchiveError("the archive is followed by other data")
            if len(block) < _BLOCK:
                return
        raise ArchiveError("the archive is followed by other data")

    def _extension(self, size: int) -> bytes:
        if size > _MOST_EXTENSION_BYTES:
            raise ArchiveError("the archive holds an extension header that is too large")
        content = self._read(size)
        self._read(-size % _BLOCK)
        self._rest_members -= 1
        if self._rest_members < 0:
            raise ArchiveError("the archive holds too many files")
        return content

    def _read(self, size: int) -> bytes:
        data = _read(self._stream, size)
        if len(data) < size:
            raise ArchiveError("the archive is cut short")
        return data


def safe_name(name: str) -> str:
    """Return a relative path without `.` parts, "" for the top itself.

    Raises:
        ArchiveError: it is absolute, leads out, or is no name that a file can have.
    """
    parts = [part for part in name.split("/") if part not in {"", "."}]
    if name.startswith("/") or ".." in parts:
        raise ArchiveError(f"the archive's file name {name!a} leads out of it")
    if len(name.encode("utf-8", "surrogateescape")) > _MOST_NAME_BYTES or not name.isprintable():
        raise ArchiveError(f"the archive's file name {name[:80]!a} is not allowed")
    return "/".join(parts)


def _member(name: str, kind: bytes, size: int) -> Member:
    is_directory = kind == _DIRECTORY or (kind in _PLAIN and name.endswith("/"))
    if not is_directory and kind not in _PLAIN:
        what = _KINDS.get(kind, f"an entry of type {kind!a}")
        raise ArchiveError(f"the archive holds {name!a}, which is {what}")
    if is_directory and size:
        raise ArchiveError(f"the archive holds a directory with content: {name!a}")
    return Member(safe_name(name), size, is_directory)


def _stored_name(header: tuple[bytes, ...]) -> str:
    name = _text(header[0].partition(b"\0")[0])
    prefix = _text(header[15].partition(b"\0")[0]) if header[9] == b"ustar\0" else ""
    return f"{prefix}/{name}" if prefix else name


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ArchiveError("the archive holds a file name that is not UTF-8") from error


def _number(data: bytes) -> int:
    # GNU stores what octal digits cannot hold as a binary number behind a set bit.
    if data[:1] == b"\x80":
        return int.from_bytes(data[1:], "big")
    digits = data.strip(b"\0 ")
    if digits.strip(b"01234567"):
        raise ArchiveError("a header of the archive is damaged: not a number")
    return int(digits or b"0", 8)


def _decimal(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 20:
        raise ArchiveError("a header of the archive is damaged: not a number")
    return int(text)


def _pax_records(content: bytes) -> dict[str, str]:
    records = {}
    while content:
        digits, separator, _ = content.partition(b" ")
        length = _decimal(_text(digits))
        record = content[len(digits) + 1 : length]
        key, equals, value = record.partition(b"=")
        if not separator or not equals or length > len(content) or not record.endswith(b"\n"):
            raise ArchiveError("an extension header of the archive is damaged")
        records[_text(key)] = value[:-1].decode("utf-8", "surrogateescape")
        content = content[length:]
    return records


def _read(stream: Stream, size: int) -> bytes:
    parts = []
    while size and (part := stream.read(size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
