"""The text of a Chrome trace file as lists of events (trace event format, Google 2016; torch.profiler writes it too).

A file is an array of events, or an object with the array `traceEvents`; plain or gzip. It is read piece by piece: memory
stays small, and damage costs the events it hits. A missing end is allowed, as the format says. Control characters inside
texts, which some writers leave unescaped, read as blanks.
"""

from __future__ import annotations

import gzip
import os
import re
import zlib
from typing import TYPE_CHECKING, Any

import msgspec

from neurontools.profiler.capture.format import ProfileError

if TYPE_CHECKING:
    import io
    from collections.abc import Iterator

_PIECE = 1 << 18  # with its events in the cache of a core
_LONGEST_HEADER = 64 << 20
_LONGEST_TRAILER = 16 << 20
_GZIP = b"\x1f\x8b"
_BOM = b"\xef\xbb\xbf"
_GZIP_RATIO = 300  # traces shrink to a twentieth, a bomb to a thousandth
_GZIP_ALLOWANCE = 64 << 20
_WINDOW = 1 << 16
_MOST_TRIES = 8
_MOST_ENDS = 64
_LONGEST_RETRY = 16 << 20
_BLANKS = b" \t\r\n,"
_ARRAY = re.compile(rb'"traceEvents"\s*:\s*\[')
_BETWEEN = re.compile(rb"\}\s*,\s*\{")
_LAST = re.compile(rb"\}\s*\]")
_CONTROL = bytes(max(code, 32) for code in range(256))
_WRONG_ESCAPE = re.compile(rb"\\(?:[\"\\/bfnrt]|u(?![dD][89a-fA-F])[0-9a-fA-F]{4})|(\\(?:u[0-9a-fA-F]{4})?)")
_NO_NUMBER = re.compile(rb"(:\s*)-?(?:NaN|Infinity)\b")


class ChromeEvent(msgspec.Struct, gc=False):
    """One event as it is written; times are microseconds."""

    ph: str = ""
    name: str | None = ""
    cat: str | None = ""
    ts: float = 0.0
    dur: float = 0.0
    pid: int | float | str | None = 0
    tid: int | float | str | None = 0


class EventDetails(msgspec.Struct, gc=False):
    """What few events need besides: a time as text, which a float would round, and the members of names and pairs."""

    ts: msgspec.Raw = msgspec.Raw(b"0")
    id: msgspec.Raw = msgspec.Raw(b"")
    id2: msgspec.Raw = msgspec.Raw(b"")
    args: msgspec.Raw = msgspec.Raw(b"")


class ChromeHeader(msgspec.Struct):
    """What a file says about itself, before or after its events."""

    baseTimeNanoseconds: float = 0.0  # noqa: N815
    deviceProperties: msgspec.Raw = msgspec.Raw(b"")  # noqa: N815
    otherData: dict[str, Any] = {}  # noqa: N815
    viztracer_metadata: msgspec.Raw = msgspec.Raw(b"")


_EVENTS = msgspec.json.Decoder(list[ChromeEvent], strict=False)
_EVENT = msgspec.json.Decoder(ChromeEvent, strict=False)
_HEADER = msgspec.json.Decoder(ChromeHeader, strict=False)
_DETAILS = msgspec.json.Decoder(list[EventDetails])
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What reading raises where a text is not JSON, or is nested too deeply."""


class ChromeText:
    """The events of a file, in lists.

    Args:
        path: the file.

    Attributes:
        header: what the file says about itself; complete after the last event.
        damaged: number of damaged stretches or events that were left out.
        truncated: whether the file has no end.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.headers: list[ChromeHeader] = []
        self.damaged = 0
        self.truncated = False
        self._rest = b""
        self._ended = False

    def events(self) -> Iterator[tuple[list[ChromeEvent], bytes]]:
        """Yield lists of events, each with its text as a JSON array.

        Raises:
            ProfileError: the file cannot be read, is not a Chrome trace, or a small file that unpacks to a huge one.
        """
        try:
            with open(self.path, "rb") as file:
                source = _Source(file, self.path)
                self._skip_header(source)
                while not self._ended:
                    found = self._next(source)
                    if found is not None:
                        yield found
                self.truncated |= source.is_cut
        except OSError as error:
            raise ProfileError(
                f"cannot read {self.path}: {error.strerror or error}", "check the file"
            ) from error

    def _skip_header(self, source: _Source) -> None:
        """Read up to the first event."""
        data = source.read().removeprefix(_BOM).lstrip()
        if not data:
            raise ProfileError(f"{self.path} is empty", "export the trace again")
        if data.startswith(b"["):
            self._rest = data[1:]
            return
        while data.startswith(b"{"):
            match = _ARRAY.search(data)
            if match:
                self._note(data[: match.end()] + b"]}")
                self._rest = data[match.end() :]
                return
            more = source.read()
            if not more or len(data) > _LONGEST_HEADER:
                break
            data += more
        raise ProfileError(
            f"{self.path} is not a trace: it lacks the traceEvents of a Chrome trace",
            "give a trace of torch.profiler or another program that writes Chrome traces",
        )

    def _note(self, text: bytes) -> None:
        try:
            self.headers.append(_HEADER.decode(_repaired(text)))
        except UNREADABLE:
            return

    def _next(self, source: _Source) -> tuple[list[ChromeEvent], bytes] | None:
        more = source.read()
        data = self._rest.lstrip(_BLANKS) + more
        data = data.lstrip(_BLANKS)
        if data.startswith(b"]"):
            return self._finish(source, data[1:], [], b"")
        if not data and not more:
            self._ended = self.truncated = True
            return None
        return self._decode(source, data, at_end=not more)

    def _decode(
        self, source: _Source, data: bytes, *, at_end: bool
    ) -> tuple[list[ChromeEvent], bytes] | None:
        for text in (data, _repaired(data)):
            found = None if at_end else self._up_to_last(text)
            if found is None:
                found = self._whole_array(source, text)
            if found is None and at_end:
                found = self._cut_array(text)
            if found is not None:
                return found
        if not at_end and len(data) < _LONGEST_RETRY:
            self._rest = data  # one event may be longer than a piece
            return None
        return self._salvage(_repaired(data), at_end=at_end)

    def _up_to_last(self, data: bytes) -> tuple[list[ChromeEvent], bytes] | None:
        """Return the events before one of the last borders; the rest waits."""
        borders = list(_BETWEEN.finditer(data, max(0, len(data) - _WINDOW)))
        for border in borders[: -_MOST_TRIES - 1 : -1]:
            text = b"[" + data[: border.start() + 1] + b"]"
            events = _decoded(text)
            if events is not None:
                self._rest = data[border.end() - 1 :]
                return events, text
        return None

    def _whole_array(self, source: _Source, data: bytes) -> tuple[list[ChromeEvent], bytes] | None:
        """Return the events up to the end of the array, if it is in the data."""
        for count, end in enumerate(_LAST.finditer(data)):
            if count == _MOST_ENDS:
                break
            text = b"[" + data[: end.end()]
            events = _decoded(text)
            if events is not None:
                return self._finish(source, data[end.end() :], events, text)
        return None

    def _cut_array(self, data: bytes) -> tuple[list[ChromeEvent], bytes] | None:
        """Return the whole events of a file without an end."""
        ends = [len(data.rstrip(_BLANKS))]
        borders = list(_BETWEEN.finditer(data, max(0, len(data) - _WINDOW)))
        ends += [border.start() + 1 for border in borders[-1:]]
        for end in ends:
            text = b"[" + data[:end] + b"]"
            events = _decoded(text)
            if events is not None:
                self._ended = self.truncated = True
                return events, text
        return None

    def _salvage(self, data: bytes, *, at_end: bool) -> tuple[list[ChromeEvent], bytes]:
        """Return the events that can be read one by one."""
        texts: list[bytes] = []
        events: list[ChromeEvent] = []
        borders = [border.span() for border in _BETWEEN.finditer(data)]
        starts = [0, *(end - 1 for _, end in borders)]
        ends = [*(start + 1 for start, _ in borders), len(data)]
        if not at_end:
            self._rest = data[starts.pop() :] if borders else b""
            ends = ends[: len(starts)]
        for start, end in zip(starts, ends, strict=True):
            text = data[start:end].strip(_BLANKS)
            try:
                events.append(_EVENT.decode(text))
                texts.append(text)
            except UNREADABLE:
                if at_end and end == len(data):
                    self._last(text, events, texts)
                else:
                    self.damaged += 1
        if at_end:
            self._ended = True
        return events, b"[" + b",".join(texts) + b"]"

    def _last(self, text: bytes, events: list[ChromeEvent], texts: list[bytes]) -> None:
        """Read what follows the last border: an event and the end of the file, or half an event."""
        end = _LAST.search(text)
        event = text[: end.start() + 1] if end else b""
        try:
            events.append(_EVENT.decode(event))
            texts.append(event)
        except UNREADABLE:
            self.truncated = True
        if end:
            self._note(b"{" + text[end.end() :].lstrip(_BLANKS))

    def _finish(
        self, source: _Source, trailer: bytes, events: list[ChromeEvent], text: bytes
    ) -> tuple[list[ChromeEvent], bytes] | None:
        while len(trailer) < _LONGEST_TRAILER and (more := source.read()):
            trailer += more
        self._note(b"{" + trailer.lstrip(_BLANKS))
        self._ended = True
        return (events, text) if events else None


def details(text: bytes) -> list[EventDetails]:
    """Return the details of the events of a list that `ChromeText` has read."""
    return _DETAILS.decode(text)


def _decoded(text: bytes) -> list[ChromeEvent] | None:
    try:
        return _EVENTS.decode(text)
    except UNREADABLE:
        return None


def _repaired(data: bytes) -> bytes:
    """Return the text with control characters as blanks, and without what JSON does not have."""
    data = data.translate(_CONTROL)
    data = data.decode("utf-8", "replace").encode()
    if b"\\" in data:
        data = _WRONG_ESCAPE.sub(lambda match: b"?" if match[1] else match[0], data)
    if b"NaN" in data or b"Infinity" in data:
        data = _NO_NUMBER.sub(rb"\g<1>null", data)
    return data


class _Source:
    """The bytes of a file, unpacked."""

    def __init__(self, file: io.BufferedReader, path: str) -> None:
        self._path = path
        packed = file.read(2) == _GZIP
        file.seek(0)
        self._file: io.BufferedReader | gzip.GzipFile = gzip.GzipFile(fileobj=file) if packed else file
        size = os.fstat(file.fileno()).st_size
        self._left = size * _GZIP_RATIO + _GZIP_ALLOWANCE if packed else None
        self.is_cut = False

    def read(self) -> bytes:
        """Return the next piece, empty at the end."""
        parts: list[bytes] = []
        size = 0
        while size < _PIECE and not self.is_cut:
            try:
                part = self._file.read1(_PIECE - size)
            except (EOFError, zlib.error, gzip.BadGzipFile):
                self.is_cut = True
                break
            if not part:
                break
            parts.append(part)
            size += len(part)
        data = b"".join(parts)
        if self._left is not None:
            self._left -= size
            if self._left < 0:
                raise ProfileError(
                    f"{self._path} unpacks to more than {_GZIP_RATIO} times its size, which no trace does",
                    "unpack it with gunzip first, if you trust it",
                )
        return data
