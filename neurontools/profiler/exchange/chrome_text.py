"""The text of a Chrome trace file as lists of events (trace event format, Google 2016; torch.profiler writes it too).

A file is an array of events, or an object with the array `traceEvents`; plain or gzip. It is read piece by piece, so
memory stays small. A piece is decoded as a whole up to its last event. Where that fails, its events are decoded one by
one, and damage costs the events it hits. A missing end is allowed, as the format says.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from neurontools.base.files import open_input
from neurontools.profiler.capture.format import ProfileError

if TYPE_CHECKING:
    import io
    from collections.abc import Iterator

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What decoding raises for text that is not JSON, or is nested too deeply."""
_PIECE = 1 << 16  # with its events in the cache of a core
_LONGEST_HEADER = 64 << 20
_LONGEST_TRAILER = 16 << 20
_LONGEST_EVENT = 16 << 20
_GZIP = b"\x1f\x8b"
_BOM = b"\xef\xbb\xbf"
_GZIP_RATIO = 300  # traces shrink to a twentieth, a bomb to a thousandth
_GZIP_ALLOWANCE = 64 << 20
_WINDOW = 1 << 12
_SEARCHED = 1 << 16
_MOST_TRIES = 8
_CUT = 12  # a literal, number or escape that is cut off is shorter
_BLANKS = b" \t\r\n,"
_ARRAY = re.compile(rb'"traceEvents"\s*:\s*\[')
_BETWEEN = re.compile(rb"\}\s*,\s*\{")
_SKIPPED = re.compile(rb"[\s,]*")  # some writers put a comma after each event
_FOLLOWING = re.compile(rb"\s*(?:,[\s,]*(?:\{|\]|$)|\]|$)")
_LAST = re.compile(rb"\}[\s,]*\]")
_CONTROL = bytes(max(code, 32) for code in range(256))
_WRONG_ESCAPE = re.compile(
    rb"\\(?:[\"\\/bfnrt]|u(?![dD][89a-fA-F])[0-9a-fA-F]{4}|u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    rb"|(\\(?:u[0-9a-fA-F]{4})?)"
)
_NO_NUMBER = re.compile(rb"([:\[,]\s*)-?(?:NaN|Infinity)\b")
_NAME = re.compile(rb'("name": ")(.*)(",\s+"pid":)')
_QUOTE = re.compile(rb'(?<!\\)"')


class ChromeEvent(msgspec.Struct, gc=False):
    """One event as it is written, its members in the order of torch.profiler, times in microseconds."""

    ph: str = ""
    cat: str | None = ""
    name: str | None = ""
    pid: int | float | str | None = 0
    tid: int | float | str | None = 0
    ts: float = 0.0
    dur: float = 0.0


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


class _Device(msgspec.Struct):
    id: int


_EVENTS = msgspec.json.Decoder(list[ChromeEvent], strict=False)
_EVENT = msgspec.json.Decoder(ChromeEvent, strict=False)
_HEADER = msgspec.json.Decoder(ChromeHeader, strict=False)
_DEVICES = msgspec.json.Decoder(list[_Device])
_SCANNER = json.JSONDecoder(parse_int=str, parse_float=str, strict=False)
read_header = _HEADER.decode
read_details = msgspec.json.Decoder(list[EventDetails]).decode
"""Decodes the details of a list of events from the text that `ChromeText` yields with it."""


class ChromeText:
    """The events of a file or of a part of it, in lists.

    Args:
        path: the file.
        first: where to begin: 0, or where an event begins.
        last: where to stop, if an event begins there; if none does, the part reaches to the end of the file.

    Attributes:
        headers: what the file says about itself, as JSON; complete after the last event.
        damaged: number of damaged events that were left out.
        truncated: whether the file has no end.
        is_last: whether the part reached to the end of the events.
    """

    def __init__(self, path: str, first: int = 0, last: int | None = None) -> None:
        self.path = path
        self.headers: list[bytes] = []
        self.damaged = 0
        self.truncated = False
        self.is_last = True
        self._first = first
        self._last = last
        self._rest = b""
        self._has_ended = False

    def events(self) -> Iterator[tuple[list[ChromeEvent], bytes]]:
        """Yield lists of events, each with its text as a JSON array.

        Raises:
            ProfileError: the file cannot be read, is not a Chrome trace, or a small file that unpacks to a huge one.
        """
        try:
            with open_input(self.path) as file:
                source = _Source(file, self.path, self._first)
                if not self._first:
                    self._skip_header(source)
                if self._last is not None and source.at <= self._last:
                    source.limit = self._last
                while not self._has_ended:
                    events, text = self._next(source)
                    if events:
                        yield events, text
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
                self._add_header(data[: match.end()] + b"]}")
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

    def _add_header(self, text: bytes) -> bool:
        """Keep what the file says about itself; return whether it can be read."""
        text = _repaired(_scannable(text))
        if text.endswith(b"}"):
            text = text[:-1].rstrip(_BLANKS) + b"}"
        try:
            read_header(text)
        except UNREADABLE:
            return False
        self.headers.append(text)
        return True

    def _next(self, source: _Source) -> tuple[list[ChromeEvent], bytes]:
        more = source.read(len(self._rest))
        data = (self._rest.lstrip(_BLANKS) + more).lstrip(_BLANKS)
        if not more and source.limit is not None:
            text = b"[" + _repaired(_scannable(data)).rstrip(_BLANKS) + b"]"
            events = _decoded(text)
            if events is not None:
                self._has_ended, self.is_last = True, False
                return events, text
            self._rest, source.limit = data, None  # an event holds the border: read on
            return [], b""
        for tries, border in enumerate(reversed(_last_borders(data) if more else [])):
            text = b"".join((b"[", memoryview(data)[: border.start() + 1], b"]"))
            events = _decoded(text)
            if events is None and tries == 0:
                text = _repaired(_scannable(text))
                events = _decoded(text)
            if events is not None:
                self._rest = data[border.end() - 1 :]
                return events, text
        return self._read_singly(source, data, at_end=not more)

    def _read_singly(self, source: _Source, data: bytes, *, at_end: bool) -> tuple[list[ChromeEvent], bytes]:
        """Read event by event, to the end of the array or to an event whose end is missing."""
        scanned = _scannable(data)
        letters = scanned.decode("latin-1")  # one a byte, and the structure of JSON is ASCII
        may_wait = not at_end and len(data) < _LONGEST_EVENT
        texts: list[bytes] = []
        at = _skip(scanned, 0)
        while at < len(data) and scanned[at : at + 1] != b"]":
            end, fault = _scan_event(letters, scanned, at)
            if fault is not None and fault.may_be_cut and may_wait:
                break
            if end > at:
                self._keep(texts, _repaired(scanned[at:end]))
            else:
                assert fault is not None
                border = _BETWEEN.search(scanned, fault.at)
                if may_wait and border is None:
                    break
                border = border or (_LAST.search(scanned, fault.at) if at_end else None)
                end = border.start() + 1 if border else len(data)
                if border or not at_end:
                    self._keep(texts, _quoted(_repaired(scanned[at:end])))
            at = _skip(scanned, end)
        self._rest = data[at:]
        if self._rest.startswith(b"]"):
            self._finish(source, self._rest[1:])
        elif at_end:
            self._has_ended = self.truncated = True
        text = b"[" + b",".join(texts) + b"]"
        return _EVENTS.decode(text), text

    def _keep(self, texts: list[bytes], text: bytes) -> None:
        """Add the text of an event, or count it as damaged."""
        try:
            _EVENT.decode(text)
        except UNREADABLE:
            self.damaged += 1
        else:
            texts.append(text)

    def _finish(self, source: _Source, trailer: bytes) -> None:
        source.limit = None
        while len(trailer) < _LONGEST_TRAILER and (more := source.read()):
            trailer += more
        trailer = trailer.strip(_BLANKS)
        is_whole = len(trailer) < _LONGEST_TRAILER
        self.damaged += bool(trailer) and not self._add_header(b"{" + trailer) and is_whole
        self._has_ended = True


def device_ids(header: ChromeHeader) -> list[int]:
    """Return the numbers of the devices that torch.profiler lists; processes of a trace have the same."""
    try:
        return [device.id for device in _DEVICES.decode(header.deviceProperties or b"[]")]
    except UNREADABLE:
        return []


def find_border(path: str, at: int) -> int | None:
    """Return where an event begins, probably, soon after a place in a file that is not packed."""
    with open_input(path) as file:
        file.seek(at)
        data = file.read(_SEARCHED)
    borders = list(_BETWEEN.finditer(data))
    for number, border in enumerate(borders):
        begin = border.end() - 1
        for following in borders[number + 1 : number + 1 + _MOST_TRIES]:
            events = _decoded(b"[" + data[begin : following.start() + 1] + b"]")
            if events and events[0].ph:
                return at + begin
    return None


def _last_borders(data: bytes) -> list[re.Match[bytes]]:
    """Return the last places that look like the border between two events."""
    return list(_BETWEEN.finditer(data, max(0, len(data) - _WINDOW)))[-_MOST_TRIES:]


def _decoded(text: bytes) -> list[ChromeEvent] | None:
    try:
        return _EVENTS.decode(text)
    except UNREADABLE:
        return None


def _scannable(data: bytes) -> bytes:
    """Return the text, as long as it was, with blanks for control characters and without escapes that JSON lacks."""
    data = data.translate(_CONTROL)
    if b"\\" in data:
        data = _WRONG_ESCAPE.sub(lambda match: b"?" * len(match[1]) if match[1] else match[0], data)
    return data


def _repaired(text: bytes) -> bytes:
    """Return a scannable text as UTF-8, with null for NaN and Infinity."""
    text = text.decode("utf-8", "replace").encode()
    if b"NaN" in text or b"Infinity" in text:
        text = _NO_NUMBER.sub(rb"\g<1>null", text)
    return text


def _skip(scanned: bytes, at: int) -> int:
    match = _SKIPPED.match(scanned, at)
    return match.end() if match else at


def _quoted(event: bytes) -> bytes:
    """Escape the quotes in the name of an event, which torch.profiler does not (torch 2.13)."""
    return _NAME.sub(lambda match: match[1] + _QUOTE.sub(rb'\\"', match[2]) + match[3], event)


class _Fault(NamedTuple):
    """Where an event is damaged; whether it may be an event whose end is in the next piece."""

    at: int
    may_be_cut: bool


def _scan_event(letters: str, scanned: bytes, at: int) -> tuple[int, _Fault | None]:
    """Return the end of the event at a place, the place itself if it has none, and its fault."""
    try:
        _, end = _SCANNER.raw_decode(letters, at)
    except RecursionError:
        return at, _Fault(at + 1, may_be_cut=False)
    except json.JSONDecodeError as error:
        may_be_cut = error.pos >= len(letters) - _CUT or error.msg.startswith("Unterminated")
        return at, _Fault(error.pos, may_be_cut)
    following = _FOLLOWING.match(scanned, end) if letters[at] == "{" else None
    if following is None:
        return at, _Fault(end, may_be_cut=False)
    is_seen = following[0].endswith(
        (b"{", b"]")
    )  # else more members may follow, and the event has ended too early
    return end, None if is_seen else _Fault(end, may_be_cut=True)


def is_packed(file: io.BufferedReader) -> bool:
    """Return whether a file is gzip; it is read from its beginning."""
    file.seek(0)
    return file.read(2) == _GZIP


class _Source:
    """The bytes of a file, unpacked."""

    def __init__(self, file: io.BufferedReader, path: str, first: int) -> None:
        self._path = path
        packed = is_packed(file)
        file.seek(first)
        self._file: io.BufferedReader | gzip.GzipFile = gzip.GzipFile(fileobj=file) if packed else file
        size = os.fstat(file.fileno()).st_size
        self._left = size * _GZIP_RATIO + _GZIP_ALLOWANCE if packed else None
        self.is_cut = False
        self.limit: int | None = None
        self.at = first

    def read(self, least: int = 0) -> bytes:
        """Return the next piece, empty at the end; it has `least` bytes if the file does."""
        size = max(_PIECE, least)
        if self.limit is not None:
            size = min(size, self.limit - self.at)
        parts: list[bytes] = []
        while size and not self.is_cut:
            try:
                parts.append(self._file.read1(size))
            except (EOFError, zlib.error, gzip.BadGzipFile):
                self.is_cut = True
                break
            size -= len(parts[-1])
            if not parts[-1]:
                break
        data = b"".join(parts)
        self.at += len(data)
        if self._left is not None and self.at > self._left:
            raise ProfileError(
                f"{self._path} unpacks to more than {_GZIP_RATIO} times its size, which no trace does",
                "unpack it with gunzip first, if you trust it",
            )
        return data
