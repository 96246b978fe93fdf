"""Events of a Chrome trace file by columns: complete events, pairs of begin and end, names of processes and threads."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import msgspec
import numpy as np

from neurontools.base.text import plural
from neurontools.profiler.exchange.chrome_text import UNREADABLE, ChromeText, details

if TYPE_CHECKING:
    from neurontools.profiler.exchange.chrome_text import ChromeEvent, ChromeHeader, EventDetails
    from neurontools.profiler.trace.intervals import Codes, Floats, Int64s

Id: TypeAlias = int | float | str | None
ASYNC = "async"
_COMPLETE, _METADATA = "X", "M"
_ASYNC_PAIRS = frozenset("be")
_PAIRS = frozenset("BE") | _ASYNC_PAIRS
_DETAILED = _ASYNC_PAIRS | {_METADATA}
_LONGEST_US = 2.0**62 / 1000
_FRACTIONS_US = 2.0**43  # from here on a double no longer tells nanoseconds apart
_NANOSECONDS_DIGITS = 3


@dataclass(frozen=True, slots=True)
class ForeignEvents:
    """The events of a file by columns, in no order.

    Args:
        start, duration: nanoseconds on the file's own axis.
        name: by event, a number in `names`.
        track: by event, a number in `tracks`.
        names: name and category.
        tracks: process and thread, or process and (ASYNC, category).
        processes: names of processes; `labels` say more, such as the device.
        threads: names of threads by process and thread.
        headers: what the file says about itself.
        problems: what was left out, one line each.
        program: that measured, where the file says so.
    """

    start: Int64s
    duration: Int64s
    name: Codes
    track: Codes
    names: tuple[tuple[str, str], ...]
    tracks: tuple[tuple[Id, Id | tuple[str, str]], ...]
    processes: dict[Id, str]
    labels: dict[Id, str]
    threads: dict[tuple[Id, Id], str]
    headers: tuple[ChromeHeader, ...]
    problems: tuple[str, ...]
    program: str = ""


def read_chrome(path: str) -> ForeignEvents:
    """Read the events of a Chrome trace file.

    Raises:
        ProfileError: the file cannot be read, or is not a Chrome trace.
    """
    text = ChromeText(path)
    columns = _Columns()
    for events, source in text.events():
        columns.add(events, source)
    return columns.result(text)


class _Numbers(dict[tuple[object, object], int]):
    """Numbers keys in the order in which they are first asked for."""

    def __missing__(self, key: tuple[object, object]) -> int:
        number = self[key] = len(self)
        return number


class _NameArguments(msgspec.Struct):
    name: str = ""
    labels: str = ""


@dataclass(slots=True)
class _Open:
    """Begin events that wait for their ends, by their key."""

    stacks: dict[object, list[tuple[int, int, int]]] = field(default_factory=dict)
    lonely_ends: int = 0

    @property
    def unfinished(self) -> int:
        return sum(map(len, self.stacks.values()))


class _Columns:
    """Collects columns list by list."""

    def __init__(self) -> None:
        self._names = _Numbers()
        self._tracks = _Numbers()
        self._parts: list[tuple[Int64s, Int64s, Codes, Codes]] = []
        self._pairs: list[tuple[int, ChromeEvent, object]] = []
        self._processes: dict[Id, str] = {}
        self._labels: dict[Id, str] = {}
        self._threads: dict[tuple[Id, Id], str] = {}
        self._impossible = 0

    def add(self, events: list[ChromeEvent], source: bytes) -> None:
        """Add events; `source` is their text."""
        phases = [event.ph for event in events]
        kinds = set(phases)
        microseconds: Floats = np.array([event.ts for event in events], dtype=np.float64)
        is_rounded = bool(((microseconds >= _FRACTIONS_US) & (microseconds % 1 != 0)).any())
        more = details(source) if is_rounded or not kinds.isdisjoint(_DETAILED) else []
        start = _nanoseconds(microseconds)
        if is_rounded:
            start = np.array([_exact_ns(each.ts) for each in more], dtype=np.int64)
        if kinds != {_COMPLETE}:
            for number, phase in enumerate(phases):
                if phase in _PAIRS:
                    key = _pair_key(events[number], more[number] if phase in _ASYNC_PAIRS else None)
                    self._pairs.append((int(start[number]), events[number], key))
                elif phase == _METADATA:
                    self._add_metadata(events[number], more[number].args)
            start = start[np.array([phase == _COMPLETE for phase in phases], dtype=bool)]
            events = [event for event in events if event.ph == _COMPLETE]
        names, tracks = self._names, self._tracks
        self._keep((
            start,
            _nanoseconds(np.array([event.dur for event in events], dtype=np.float64)),
            np.array([names[event.name, event.cat] for event in events], dtype=np.uint32),
            np.array([tracks[event.pid, event.tid] for event in events], dtype=np.uint32),
        ))  # fmt: skip

    def _keep(self, part: tuple[Int64s, Int64s, Codes, Codes]) -> None:
        possible = (part[1] >= 0) & (part[0] != _IMPOSSIBLE) & (part[1] != _IMPOSSIBLE)
        if not possible.all():
            self._impossible += int((~possible).sum())
            start, duration, name, track = part
            part = start[possible], duration[possible], name[possible], track[possible]
        self._parts.append(part)

    def _add_metadata(self, event: ChromeEvent, text: msgspec.Raw) -> None:
        try:
            arguments = msgspec.json.decode(bytes(text).decode("utf-8", "replace"), type=_NameArguments)
        except UNREADABLE:
            return
        match event.name:
            case "process_name":
                self._processes[event.pid] = arguments.name
            case "process_labels":
                self._labels[event.pid] = arguments.labels
            case "thread_name":
                self._threads[event.pid, event.tid] = arguments.name

    def _join_pairs(self) -> _Open:
        """Make events of begins and ends."""
        opened = _Open()
        found: list[tuple[int, int, int, int]] = []
        self._pairs.sort(key=lambda pair: pair[0])
        for at, event, key in self._pairs:
            if at == _IMPOSSIBLE:
                self._impossible += 1
                continue
            stack = opened.stacks.setdefault(key, [])
            if event.ph in "Bb":
                is_async = event.ph in _ASYNC_PAIRS
                track = (event.pid, (ASYNC, event.cat or "")) if is_async else (event.pid, event.tid)
                stack.append((at, self._names[event.name, event.cat], self._tracks[track]))
            elif stack:
                start, name, track_number = stack.pop()
                found.append((start, at - start, name, track_number))
            else:
                opened.lonely_ends += 1
        self._pairs = []
        if found:
            columns: Int64s = np.array(found, dtype=np.int64)
            self._keep((
                columns[:, 0].copy(), columns[:, 1].copy(),
                columns[:, 2].astype(np.uint32), columns[:, 3].astype(np.uint32),
            ))  # fmt: skip
        return opened

    def result(self, text: ChromeText) -> ForeignEvents:
        """Return everything."""
        opened = self._join_pairs()
        counts = (
            (text.damaged, "{} damaged and left out"),
            (self._impossible, "{} with negative or impossible times left out"),
            (opened.lonely_ends, "{} that end what never began left out"),
            (opened.unfinished, "{} that never end left out"),
        )
        problems = [line.format(plural(count, "event")) for count, line in counts if count]
        if text.truncated:
            problems.insert(0, "the file has no end: events after it are missing")
        joined = self._joined()
        return ForeignEvents(
            *joined,
            names=tuple((str(name or ""), str(category or "")) for name, category in self._names),
            tracks=tuple(self._tracks),  # type: ignore[arg-type]
            processes=self._processes,
            labels=self._labels,
            threads=self._threads,
            headers=tuple(text.headers),
            problems=tuple(problems),
        )

    def _joined(self) -> tuple[Int64s, Int64s, Codes, Codes]:
        parts, self._parts = self._parts, []
        nothing: Int64s = np.zeros(0, dtype=np.int64)
        codes: Codes = np.zeros(0, dtype=np.uint32)
        if not parts:
            return nothing, nothing, codes, codes
        start, duration, name, track = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        return start, duration, name, track


def _pair_key(event: ChromeEvent, more: EventDetails | None) -> object:
    """Return what the begin and the end of an event have in common."""
    if more is None:
        return event.pid, event.tid
    return event.pid, event.cat, bytes(more.id), bytes(more.id2), event.name


_IMPOSSIBLE = np.iinfo(np.int64).min
"""Stands for a time that no clock shows."""


def _nanoseconds(times: Floats) -> Int64s:
    """Return microseconds as nanoseconds; _IMPOSSIBLE where they are out of range."""
    wild = ~(np.abs(times) < _LONGEST_US)
    times = np.where(wild, 0.0, times)
    whole = np.floor(times)
    found: Int64s = whole.astype(np.int64) * 1000 + np.rint((times - whole) * 1000).astype(np.int64)
    found[wild] = _IMPOSSIBLE
    return found


def _exact_ns(raw: msgspec.Raw) -> int:
    """Return a time as nanoseconds without rounding it to a float."""
    text = bytes(raw).decode().strip('"')
    whole, _, fraction = text.partition(".")
    if whole.removeprefix("-").isdecimal() and (not fraction or fraction.isdecimal()):
        found = int(whole) * 1000 + int(fraction[:_NANOSECONDS_DIGITS].ljust(_NANOSECONDS_DIGITS, "0"))
        return found if abs(found) < 1 << 62 else int(_IMPOSSIBLE)
    return int(_nanoseconds(np.array([float(text)]))[0])
