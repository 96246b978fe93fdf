"""Events of a Chrome trace file by columns: values that many events share are stored once.

A large file is read in parts, each by a process of its own.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import numpy as np

from neurontools.base.files import open_input
from neurontools.profiler.exchange.chrome_text import (
    UNREADABLE,
    ChromeText,
    find_border,
    is_packed,
    read_details,
)

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
_SMALLEST_PART = 64 << 20
_LEAD = 64 << 20  # read while another process starts
_MOST_PARTS = 8
_MOST_PLACES = 1 << 12
_LONGEST_ID = 18
_LONGEST_US = 2.0**62 / 1000
_FRACTIONS_US = 2.0**43  # from here on a double no longer tells nanoseconds apart
_NANOSECONDS_DIGITS = 3


@dataclass(slots=True)
class ChromePart:
    """The events of a file, or of a part of it.

    Args:
        start, duration, kind: of the complete events, row by row: nanoseconds, and number of the kind.
        kinds: what events have in common, in the order of their first events.
        rows: process and thread of the complete events that come together, and their number.
        marks: begins and ends: time in nanoseconds, number of the kind, and the text of the id of an asynchronous one.
        processes, threads: names.
        labels: what processes stand for, such as a device.
        devices: process and thread of events that say on which device and stream they ran.
        headers: what the file says about itself, as JSON.
        impossible: number of complete events with negative or impossible times, which are left out.
        damaged: number of damaged events, which are left out.
        truncated: whether the file has no end.
        is_last: whether no part follows.
    """

    start: Int64s = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    duration: Int64s = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    kind: Codes = field(default_factory=lambda: np.zeros(0, dtype=np.uint32))
    kinds: list[Kind] = field(default_factory=list)
    rows: list[tuple[Id, Id, int]] = field(default_factory=list)
    marks: list[tuple[int, int, bytes]] = field(default_factory=list)
    processes: dict[Id, str] = field(default_factory=dict)
    labels: dict[Id, str] = field(default_factory=dict)
    threads: dict[tuple[Id, Id], str] = field(default_factory=dict)
    devices: set[tuple[Id, Id]] = field(default_factory=set)
    headers: list[bytes] = field(default_factory=list)
    impossible: int = 0
    damaged: int = 0
    truncated: bool = False
    is_last: bool = True


def is_shown(kind: Kind) -> bool:
    """Return whether events of a kind are complete events of the program."""
    return kind[0] == _COMPLETE and (kind[1], kind[3]) != _WHOLE_RUN


def read_parts(path: str) -> list[ChromePart]:
    """Read a Chrome trace file, with several processes if it is large.

    Raises:
        ProfileError: the file cannot be read, or is not a Chrome trace.
    """
    try:
        borders = _find_borders(path)
    except OSError:
        borders = []
    with ExitStack() as stack:
        ends = list(zip_longest(borders, borders[1:]))
        readers = [_start_reader(stack, path, *part) for part in ends]
        parts = [read_part(path, 0, borders[0] if borders else None)]
        for reader, part in zip(readers, ends, strict=True):
            if parts[-1].is_last:
                break
            output = reader.communicate()[0]
            parts.append(read_part(path, *part) if reader.returncode else pickle.loads(output))  # noqa: S301 # our own
    if len(parts) > 1 and any(part.damaged for part in parts):
        return [read_part(path)]  # what damage costs depends on where a reader begins
    return parts


def _find_borders(path: str) -> list[int]:
    """Return where the parts after the first one begin; none if one process reads everything."""
    with open_input(path) as file:
        size = 0 if is_packed(file) else os.fstat(file.fileno()).st_size
    size -= _LEAD
    count = min(len(os.sched_getaffinity(0)), _MOST_PARTS, size // _SMALLEST_PART)
    candidates = (find_border(path, _LEAD + size * number // count) for number in range(1, count))
    return sorted({border for border in candidates if border is not None})


def _start_reader(stack: ExitStack, path: str, first: int, last: int | None) -> subprocess.Popen[bytes]:
    """Start a process that reads a part, and ends with the context at the latest."""
    code = f"from {__name__} import write_part; write_part({path!r}, {first}, {last})"
    reader = subprocess.Popen(
        [sys.executable, "-P", "-c", code],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    stack.enter_context(reader)
    stack.callback(reader.kill)
    return reader


def write_part(path: str, first: int, last: int | None) -> None:
    """Read a part, and write it for the process that asked for it."""
    pickle.dump(read_part(path, first, last), sys.stdout.buffer, protocol=5)


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
        self._part = ChromePart()

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
        self._part.kinds.append(kind)
        self._are_complete.append(is_shown(kind))
        row = category, *kind[3:]
        if self._are_complete[-1] and row not in self._places and len(self._places) < _MOST_PLACES:
            self._places.add(row)
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
            more = [details for source in sources for details in read_details(source)]
        else:
            more = []
        if is_rounded:
            start[large] = [_exact_ns(more[place].ts) for place in large.tolist()]
        for place in others:
            self._note(batch[place], int(start[place]), more[place] if more else None)
        for number in self._unseen:
            self._note_device(self._part.kinds[number], more[batch.index(number)].args)
        self._unseen.clear()
        duration = _nanoseconds(np.array(lengths, dtype=np.float64))
        possible = (duration >= 0) & (start != IMPOSSIBLE) & (duration != IMPOSSIBLE)
        self._part.impossible += int((is_complete & ~possible).sum())
        kept = is_complete & possible
        self._parts.append(
            (start, duration, kind) if kept.all() else (start[kept], duration[kept], kind[kept])
        )

    def _has_details(self, kind: int) -> bool:
        phase = self._part.kinds[kind][0]
        return phase == _METADATA or phase in ASYNC_PAIRS

    def _note(self, number: int, at: int, more: EventDetails | None) -> None:
        phase, _, name, process, thread = self._part.kinds[number]
        if phase in _PAIRS:
            ids = b"\0".join((bytes(more.id), bytes(more.id2))) if more and phase in ASYNC_PAIRS else b""
            self._part.marks.append((at, number, ids))
        elif phase == _METADATA and more:
            self._add_names(name, process, thread, more.args)

    def _note_device(self, kind: Kind, text: msgspec.Raw) -> None:
        try:
            arguments = _DEVICE_ARGUMENTS.decode(text)
        except UNREADABLE:
            return
        if isinstance(arguments.device, int) and isinstance(arguments.stream, int):
            self._part.devices.add(kind[3:])

    def _add_names(self, name: str | None, process: Id, thread: Id, text: msgspec.Raw) -> None:
        try:
            arguments = msgspec.json.decode(bytes(text).decode("utf-8", "replace"), type=_NameArguments)
        except UNREADABLE:
            return
        match name:
            case "process_name":
                self._part.processes[process] = arguments.name
            case "process_labels":
                self._part.labels[process] = arguments.labels
            case "thread_name":
                self._part.threads[process, thread] = arguments.name

    def part(self, text: ChromeText) -> ChromePart:
        """Return everything."""
        if self._batch or not self._parts:
            self._flush()
        self._kinds.clear()  # as large as everything else where most events have a track of their own
        parts, self._parts = self._parts, []
        start, duration, kind = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        part = self._part
        rows: dict[tuple[Id, Id], int] = {}
        row_of: Codes = np.zeros(len(part.kinds), dtype=np.uint32)
        for number in np.flatnonzero(np.frombuffer(self._are_complete, dtype=np.bool_)).tolist():
            row_of[number] = rows.setdefault(part.kinds[number][3:], len(rows))
        order, bounds = group_rows(row_of[kind], len(rows))
        counts = np.diff(bounds).tolist()
        part.rows = [(*row, count) for row, count in zip(rows, counts, strict=True)]
        part.start, part.duration, part.kind = start[order], duration[order], kind[order]
        part.headers, part.damaged = text.headers, text.damaged
        part.truncated, part.is_last = text.truncated, text.is_last
        return part


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
    nanoseconds: Int64s = whole.astype(np.int64) * 1000 + np.rint((times - whole) * 1000).astype(np.int64)
    nanoseconds[wild] = IMPOSSIBLE
    return nanoseconds


def _exact_ns(raw: msgspec.Raw) -> int:
    """Return a time as nanoseconds without rounding it to a float."""
    text = bytes(raw).decode().strip('"')
    whole, _, fraction = text.partition(".")
    if whole.removeprefix("-").isdecimal() and (not fraction or fraction.isdecimal()):
        ns = int(whole) * 1000 + int(fraction[:_NANOSECONDS_DIGITS].ljust(_NANOSECONDS_DIGITS, "0"))
        return ns if abs(ns) < 1 << 62 else int(IMPOSSIBLE)
    return int(_nanoseconds(np.array([float(text)]))[0])
