"""Events of a Chrome trace file, or of a part of it, by columns: what is equal in many events is stored once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import numpy as np

from neurontools.profiler.exchange.chrome_damage import UNREADABLE
from neurontools.profiler.exchange.chrome_text import ChromeText, details

if TYPE_CHECKING:
    from neurontools.profiler.exchange.chrome_text import ChromeEvent, EventDetails
    from neurontools.profiler.trace.intervals import Codes, Floats, Int64s

Id: TypeAlias = int | float | str | None
Kind: TypeAlias = tuple[str, str | None, str | None, Id, Id]
"""Phase, category, name, process and thread of events."""
_COMPLETE = "X"
_WHOLE_RUN = "Trace", "Spans"
"""Category and process of the event with which torch.profiler says how long it ran."""
ASYNC_PAIRS = frozenset("be")
IMPOSSIBLE = np.iinfo(np.int64).min
"""Stands for a time that no clock shows."""
_METADATA = "M"
_PAIRS = frozenset("BE") | ASYNC_PAIRS
_BATCH = 1 << 13
_MOST_PLACES = 1 << 12
_LONGEST_ID = 18
_LONGEST_US = 2.0**62 / 1000
_FRACTIONS_US = 2.0**43  # from here on a double no longer tells nanoseconds apart
_NANOSECONDS_DIGITS = 3


class ChromeNotes(msgspec.Struct):
    """What a part has besides columns.

    Args:
        kinds: what events have in common, in the order of their first events.
        rows: process and thread of the complete events that come together, and their number.
        marks: begins and ends: time in nanoseconds, number of the kind, and the text of the id of an asynchronous one.
        processes, labels, threads: names, in the order of the file.
        devices: process and thread of events that say on which device and stream they ran.
        headers: what the file says about itself, as JSON.
        impossible: number of complete events with negative or impossible times, which are left out.
        damaged: number of damaged events, which are left out.
        truncated: whether the file has no end.
        is_last: whether no part follows.
    """

    kinds: list[Kind]
    rows: list[tuple[Id, Id, int]]
    marks: list[tuple[int, int, bytes]]
    processes: list[tuple[Id, str]]
    labels: list[tuple[Id, str]]
    threads: list[tuple[Id, Id, str]]
    devices: list[tuple[Id, Id]]
    headers: list[bytes]
    impossible: int
    damaged: int
    truncated: bool
    is_last: bool


@dataclass(frozen=True, slots=True)
class ChromePart:
    """The complete events of a part, row by row: start and duration in nanoseconds, number of the kind."""

    start: Int64s
    duration: Int64s
    kind: Codes
    notes: ChromeNotes


def is_shown(kind: Kind) -> bool:
    """Return whether events of a kind are complete events of the program."""
    return kind[0] == _COMPLETE and (kind[1], kind[3]) != _WHOLE_RUN


def read_part(path: str, first: int = 0, last: int | None = None) -> ChromePart:
    """Read the events of a Chrome trace file, or of the part that `ChromeText` describes.

    Raises:
        ProfileError: the file cannot be read, or is not a Chrome trace.
    """
    text = ChromeText(path, first, last)
    columns = _Columns()
    for events, source in text.events():
        columns.add(events, source)
    return columns.part(text)


def group_rows(row: Codes, count: int) -> tuple[Int64s, Int64s]:
    """Return the order in which events of equal rows come together, else in their own order, and where rows begin."""
    # numpy sorts small numbers faster.
    order: Int64s = np.argsort(row.astype(np.uint16) if count <= 1 << 16 else row, kind="stable")
    bounds: Int64s = np.concatenate(([0], np.cumsum(np.bincount(row, minlength=count))))
    return order, bounds


class _Columns:
    """Collects columns list by list."""

    def __init__(self) -> None:
        self._kinds: dict[Kind, int] = {}
        self._texts: dict[str | None, str | None] = {}  # each text once, however many kinds have it
        self._are_complete = bytearray()
        self._places: set[tuple[str | None, Id, Id]] = set()
        self._unseen: set[int] = set()  # kinds of which one event may say that its row is a device
        self._batch: list[int] = []
        self._times: list[float] = []
        self._lengths: list[float] = []
        self._sources: list[bytes] = []
        self._parts: list[tuple[Int64s, Int64s, Codes]] = []
        self._notes = ChromeNotes([], [], [], [], [], [], [], [], 0, 0, truncated=False, is_last=True)

    def add(self, events: list[ChromeEvent], source: bytes) -> None:
        """Add events; `source` is their text."""
        self._batch += self._numbers(events)
        self._times += [event.ts for event in events]
        self._lengths += [event.dur for event in events]
        self._sources.append(source)
        if len(self._batch) >= _BATCH:
            self._flush()

    def _numbers(self, events: list[ChromeEvent]) -> list[int]:
        kinds = self._kinds
        try:  # nearly all events are of a kind that came before
            return [kinds[event.ph, event.cat, event.name, event.pid, event.tid] for event in events]
        except KeyError:
            for event in events:
                kind = event.ph, event.cat, event.name, event.pid, event.tid
                if kind not in kinds:
                    self._add_kind(kind)
            return [kinds[event.ph, event.cat, event.name, event.pid, event.tid] for event in events]

    def _add_kind(self, written: Kind) -> None:
        number = self._kinds[written] = len(self._kinds)
        phase, category, name = (self._texts.setdefault(text, text) for text in written[:3])
        kind = phase or "", category, name, _id(written[3]), _id(written[4])
        self._notes.kinds.append(kind)
        self._are_complete.append(is_shown(kind))
        place = category, *kind[3:]
        if self._are_complete[-1] and place not in self._places and len(self._places) < _MOST_PLACES:
            self._places.add(place)
            self._unseen.add(number)

    def _flush(self) -> None:
        batch, times, lengths, sources = self._batch, self._times, self._lengths, self._sources
        self._batch, self._times, self._lengths, self._sources = [], [], [], []
        kind: Codes = np.array(batch, dtype=np.uint32)
        microseconds: Floats = np.array(times, dtype=np.float64)
        start = _nanoseconds(microseconds)
        is_complete = np.frombuffer(self._are_complete or b"\0", dtype=np.bool_)[kind]
        large: Int64s = np.flatnonzero(microseconds >= _FRACTIONS_US)
        is_rounded = bool((microseconds[large] % 1 != 0).any())
        others: list[int] = np.flatnonzero(~is_complete).tolist()
        if is_rounded or self._unseen or any(self._has_details(batch[place]) for place in others):
            more = [each for source in sources for each in details(source)]
        else:
            more = []
        if is_rounded:
            start[large] = [_exact_ns(more[place].ts) for place in large.tolist()]
        for place in others:
            self._note(batch[place], int(start[place]), more[place] if more else None)
        for number in self._unseen:
            self._note_device(self._notes.kinds[number], more[batch.index(number)].args)
        self._unseen.clear()
        duration = _nanoseconds(np.array(lengths, dtype=np.float64))
        possible = (duration >= 0) & (start != IMPOSSIBLE) & (duration != IMPOSSIBLE)
        self._notes.impossible += int((is_complete & ~possible).sum())
        kept = is_complete & possible
        self._parts.append(
            (start, duration, kind) if kept.all() else (start[kept], duration[kept], kind[kept])
        )

    def _has_details(self, kind: int) -> bool:
        phase = self._notes.kinds[kind][0]
        return phase == _METADATA or phase in ASYNC_PAIRS

    def _note(self, number: int, at: int, more: EventDetails | None) -> None:
        phase, _, name, process, thread = self._notes.kinds[number]
        if phase in _PAIRS:
            ids = b"\0".join((bytes(more.id), bytes(more.id2))) if more and phase in ASYNC_PAIRS else b""
            self._notes.marks.append((at, number, ids))
        elif phase == _METADATA and more:
            self._add_names(name, process, thread, more.args)

    def _note_device(self, kind: Kind, text: msgspec.Raw) -> None:
        try:
            arguments = _DEVICE_ARGUMENTS.decode(text)
        except UNREADABLE:
            return
        if isinstance(arguments.device, int) and isinstance(arguments.stream, int):
            self._notes.devices.append(kind[3:])

    def _add_names(self, name: str | None, process: Id, thread: Id, text: msgspec.Raw) -> None:
        try:
            arguments = msgspec.json.decode(bytes(text).decode("utf-8", "replace"), type=_NameArguments)
        except UNREADABLE:
            return
        match name:
            case "process_name":
                self._notes.processes.append((process, arguments.name))
            case "process_labels":
                self._notes.labels.append((process, arguments.labels))
            case "thread_name":
                self._notes.threads.append((process, thread, arguments.name))

    def part(self, text: ChromeText) -> ChromePart:
        """Return everything."""
        if self._batch or not self._parts:
            self._flush()
        self._kinds.clear()  # as large as everything else where most events have a track of their own
        parts, self._parts = self._parts, []
        start, duration, kind = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        notes = self._notes
        rows: dict[tuple[Id, Id], int] = {}
        row_of: Codes = np.zeros(len(notes.kinds), dtype=np.uint32)
        for number in np.flatnonzero(np.frombuffer(self._are_complete, dtype=np.bool_)).tolist():
            row_of[number] = rows.setdefault(notes.kinds[number][3:], len(rows))
        order, bounds = group_rows(row_of[kind], len(rows))
        counts = np.diff(bounds).tolist()
        notes.rows = [(*row, count) for row, count in zip(rows, counts, strict=True)]
        start, duration, kind = start[order], duration[order], kind[order]
        notes.headers, notes.damaged = text.headers, text.damaged
        notes.truncated, notes.is_last = text.truncated, text.is_last
        return ChromePart(start, duration, kind, notes)


class _NameArguments(msgspec.Struct):
    name: str = ""
    labels: str = ""


class _DeviceArguments(msgspec.Struct):
    device: Any = None
    stream: Any = None


_DEVICE_ARGUMENTS = msgspec.json.Decoder(_DeviceArguments)


def _id(written: Id) -> Id:
    """Return the number of a process or thread; some writers give it as text."""
    is_number = isinstance(written, str) and len(written) <= _LONGEST_ID and written.isdecimal()
    return int(written) if is_number else written  # type: ignore[arg-type]


def _nanoseconds(times: Floats) -> Int64s:
    """Return microseconds as nanoseconds; IMPOSSIBLE where they are out of range."""
    wild = ~(np.abs(times) < _LONGEST_US)
    times = np.where(wild, 0.0, times)
    whole = np.floor(times)
    found: Int64s = whole.astype(np.int64) * 1000 + np.rint((times - whole) * 1000).astype(np.int64)
    found[wild] = IMPOSSIBLE
    return found


def _exact_ns(raw: msgspec.Raw) -> int:
    """Return a time as nanoseconds without rounding it to a float."""
    text = bytes(raw).decode().strip('"')
    whole, _, fraction = text.partition(".")
    if whole.removeprefix("-").isdecimal() and (not fraction or fraction.isdecimal()):
        found = int(whole) * 1000 + int(fraction[:_NANOSECONDS_DIGITS].ljust(_NANOSECONDS_DIGITS, "0"))
        return found if abs(found) < 1 << 62 else int(IMPOSSIBLE)
    return int(_nanoseconds(np.array([float(text)]))[0])
