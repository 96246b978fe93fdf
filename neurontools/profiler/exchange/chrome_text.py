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

from neurontools.base.files import open_input
from neurontools.profiler.capture.format import ProfileError
from neurontools.profiler.exchange.chrome_damage import (
    BETWEEN,
    BLANKS,
    UNREADABLE,
    is_damaged,
    repair,
    split_events,
    split_last,
)

if TYPE_CHECKING:
    import io
    from collections.abc import Callable, Iterator

_PIECE = 1 << 16  # with its events in the cache of a core
_LONGEST_HEADER = 64 << 20
_LONGEST_TRAILER = 16 << 20
_GZIP = b"\x1f\x8b"
_BOM = b"\xef\xbb\xbf"
_GZIP_RATIO = 300  # traces shrink to a twentieth, a bomb to a thousandth
_GZIP_ALLOWANCE = 64 << 20
_WINDOWS = (1 << 12, 1 << 16)
_MOST_TRIES = 8
_MOST_ENDS = 64
_LONGEST_RETRY = 16 << 20
_ARRAY = re.compile(rb'"traceEvents"\s*:\s*\[')
_LAST = re.compile(rb"\}[\s,]*\]")  # some writers put a comma after each event


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
_DETAILS = msgspec.json.Decoder(list[EventDetails])


class ChromeText:
    """The events of a file or of a part of it, in lists.

    Args:
        path: the file.
        first: where to begin: 0, or where an event begins.
        last: where to stop, if an event begins there; if none does, the part reaches to the end of the file.

    Attributes:
        headers: what the file says about itself, as JSON; complete after the last event.
        damaged: number of damaged stretches or events that were left out.
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
        self._stop_at = last
        self._rest = b""
        self._ended = False

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
                if self._stop_at is not None and source.at <= self._stop_at:
                    source.limit = self._stop_at
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

    def _note(self, text: bytes) -> bool:
        """Keep what the file says about itself; return whether it can be read."""
        text = repair(text)
        if text.endswith(b"}"):
            text = text[:-1].rstrip(BLANKS) + b"}"
        try:
            read_header(text)
        except UNREADABLE:
            return False
        self.headers.append(text)
        return True

    def _next(self, source: _Source) -> tuple[list[ChromeEvent], bytes] | None:
        more = source.read(len(self._rest))
        data = self._rest.lstrip(BLANKS) + more
        data = data.lstrip(BLANKS)
        if not more and source.limit is not None:
            return self._stop(source, data)
        if data.startswith(b"]"):
            return self._finish(source, data[1:], [], b"")
        if not data and not more:
            self._ended = self.truncated = True
            return None
        return self._decode(source, data, at_end=not more)

    def _stop(self, source: _Source, data: bytes) -> tuple[list[ChromeEvent], bytes] | None:
        """Return the events before the end of the part, or read on if an event holds that place."""
        for events_text in (data, repair(data)):
            text = b"[" + events_text.rstrip(BLANKS) + b"]"
            events = _decoded(text)
            if events is not None:
                self._ended, self.is_last = True, False
                return events, text
        self._rest = data
        source.limit = None
        return None

    def _decode(
        self, source: _Source, data: bytes, *, at_end: bool
    ) -> tuple[list[ChromeEvent], bytes] | None:
        if not at_end:
            found = self._up_to_last(data, _unchanged) or self._whole_array(source, data)
            found = found or self._up_to_last(data, repair) or self._whole_array(source, repair(data))
        else:
            repaired = repair(data)
            found = self._whole_array(source, data) or self._whole_array(source, repaired)
            found = found or self._cut_array(data) or self._cut_array(repaired)
        if found is not None or self._ended:
            return found
        if not at_end and len(data) < _LONGEST_RETRY and not self._is_damaged(data):
            self._rest = data  # one event may be longer than a piece
            return None
        return self._salvage(data, at_end=at_end)

    def _is_damaged(self, data: bytes) -> bool:
        border = next(iter(_last_borders(data)), None)
        return border is not None and is_damaged(repair(data[: border.start() + 1]))

    def _up_to_last(
        self, data: bytes, repair: Callable[[bytes], bytes]
    ) -> tuple[list[ChromeEvent], bytes] | None:
        """Return the events before one of the last borders; the rest waits as it is, as it may end within a character."""
        for border in _last_borders(data):
            text = repair(b"".join((b"[", memoryview(data)[: border.start() + 1], b"]")))
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
            text = b"".join((b"[", memoryview(data)[: end.start() + 1], b"]"))
            events = _decoded(text)
            if events is not None:
                return self._finish(source, data[end.end() :], events, text)
        return None

    def _cut_array(self, data: bytes) -> tuple[list[ChromeEvent], bytes] | None:
        """Return the events of a file that ends between two of them."""
        text = b"[" + data.rstrip(BLANKS) + b"]"
        events = _decoded(text)
        if events is None:
            return None
        self._ended = self.truncated = True
        return events, text

    def _salvage(self, data: bytes, *, at_end: bool) -> tuple[list[ChromeEvent], bytes]:
        """Return the events of a damaged text that can be read."""
        borders = [] if at_end else list(BETWEEN.finditer(data))
        cut = borders[-1].end() - 1 if borders else len(data)
        found, rest = split_events(repair(data[:cut]))
        if rest and not rest.startswith(b"]") and (at_end or not found):
            found += split_last(rest.rstrip(BLANKS), len(rest))
            rest = b""
        self._rest = rest + data[cut:]
        self._ended = self.truncated = at_end and not rest
        texts: list[bytes] = []
        events: list[ChromeEvent] = []
        for text in found:
            try:
                events.append(_EVENT.decode(text))
                texts.append(text)
            except UNREADABLE:
                if not self._ended or text is not found[-1] or self._has_end(text):
                    self.damaged += 1
        return events, b"[" + b",".join(texts) + b"]"

    def _has_end(self, text: bytes) -> bool:
        """Return whether a damaged event is followed by the end of the array."""
        end = _LAST.search(text)
        if end:
            self._note(b"{" + text[end.end() :].lstrip(BLANKS))
        self.truncated = end is None
        return end is not None

    def _finish(
        self, source: _Source, trailer: bytes, events: list[ChromeEvent], text: bytes
    ) -> tuple[list[ChromeEvent], bytes] | None:
        source.limit = None
        while len(trailer) < _LONGEST_TRAILER and (more := source.read()):
            trailer += more
        trailer = trailer.strip(BLANKS)
        is_whole = len(trailer) < _LONGEST_TRAILER
        self.damaged += bool(trailer) and not self._note(b"{" + trailer) and is_whole
        self._ended = True
        return (events, text) if events else None


def read_header(text: bytes) -> ChromeHeader:
    """Read what a file says about itself."""
    return _HEADER.decode(text)


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
        data = file.read(_WINDOWS[-1])
    borders = list(BETWEEN.finditer(data))
    for number, border in enumerate(borders):
        begin = border.end() - 1
        for following in borders[number + 1 : number + 1 + _MOST_TRIES]:
            events = _decoded(b"[" + data[begin : following.start() + 1] + b"]")
            if events and events[0].ph:
                return at + begin
    return None


def details(text: bytes) -> list[EventDetails]:
    """Return the details of the events of a list that `ChromeText` has read."""
    return _DETAILS.decode(text)


def _last_borders(data: bytes) -> list[re.Match[bytes]]:
    """Return the last borders between events, the last one first."""
    borders: list[re.Match[bytes]] = []
    for window in _WINDOWS:
        borders = list(BETWEEN.finditer(data, max(0, len(data) - window)))
        if len(borders) >= _MOST_TRIES:
            break
    return borders[: -_MOST_TRIES - 1 : -1]


def _decoded(text: bytes) -> list[ChromeEvent] | None:
    try:
        return _EVENTS.decode(text)
    except UNREADABLE:
        return None


def _unchanged(data: bytes) -> bytes:
    return data


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
        parts: list[bytes] = []
        size = 0
        wanted = max(_PIECE, least)
        if self.limit is not None:
            wanted = min(wanted, self.limit - self.at)
        while size < wanted and not self.is_cut:
            try:
                part = self._file.read1(wanted - size)
            except (EOFError, zlib.error, gzip.BadGzipFile):
                self.is_cut = True
                break
            if not part:
                break
            parts.append(part)
            size += len(part)
        data = b"".join(parts)
        self.at += size
        if self._left is not None:
            self._left -= size
            if self._left < 0:
                raise ProfileError(
                    f"{self._path} unpacks to more than {_GZIP_RATIO} times its size, which no trace does",
                    "unpack it with gunzip first, if you trust it",
                )
        return data
