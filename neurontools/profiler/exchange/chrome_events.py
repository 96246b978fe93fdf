"""Events of a Chrome trace file by columns: complete events, pairs of begin and end, names of processes and threads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from neurontools.base.text import plural
from neurontools.profiler.exchange.chrome_columns import ASYNC_PAIRS, IMPOSSIBLE, is_shown, read_parts
from neurontools.profiler.exchange.chrome_text import read_header

if TYPE_CHECKING:
    from neurontools.profiler.exchange.chrome_columns import ChromePart, Id, Kind
    from neurontools.profiler.exchange.chrome_text import ChromeHeader
    from neurontools.profiler.trace.intervals import Codes, Int64s

ASYNC = "async"


@dataclass(frozen=True, slots=True)
class ForeignEvents:
    """The events of a file by columns, those of a track together.

    Args:
        start, duration: nanoseconds on the file's own axis.
        name: by event, a number in `names`.
        bounds: by track, where its events begin; the last one is their number.
        names: name and category.
        tracks: process and thread, or process and (ASYNC, category).
        processes: names of processes; `labels` say more, such as the device.
        threads: names of threads by process and thread.
        headers: what the file says about itself.
        problems: what was left out, one line each.
        devices: process and thread of rows whose events say on which device and stream they ran.
        program: that measured, where the file says so.
        facts: by number in `names`, what else is known: fields of `TraceAction`. Empty if nothing is.
        stated: metrics, as in `Trace`.
    """

    start: Int64s
    duration: Int64s
    name: Codes
    bounds: Int64s
    names: tuple[tuple[str, str], ...]
    tracks: tuple[tuple[Id, Id | tuple[str, str]], ...]
    processes: dict[Id, str]
    labels: dict[Id, str]
    threads: dict[tuple[Id, Id], str]
    headers: tuple[ChromeHeader, ...]
    problems: tuple[str, ...]
    devices: frozenset[tuple[Id, Id | tuple[str, str]]] = frozenset()
    program: str = ""
    facts: tuple[dict[str, Any], ...] = ()
    stated: tuple[tuple[int, dict[str, float]], ...] = ()


def read_chrome(path: str) -> ForeignEvents:
    """Read the events of a Chrome trace file.

    Raises:
        ProfileError: the file cannot be read, or is not a Chrome trace.
    """
    return join_parts(read_parts(path))


def join_parts(parts: list[ChromePart]) -> ForeignEvents:
    """Return the events of all parts of a file, in its order."""
    joined = _Joined()
    for part in parts:
        joined.add(part)
    parts.clear()
    return joined.result()


class _Numbers(dict[tuple[object, object], int]):
    """Numbers keys in the order in which they are first asked for."""

    def __missing__(self, key: tuple[object, object]) -> int:
        number = self[key] = len(self)
        return number


@dataclass(slots=True, eq=False)
class _Begin:
    """A begin event that may wait for its end."""

    at: int
    name: int
    track: int
    is_open: bool = True


class _OpenStack:
    """The open begin events of one thread, or of one asynchronous id."""

    def __init__(self) -> None:
        self._begins: list[_Begin] = []
        self._by_name: dict[str | None, list[_Begin]] = {}

    def push(self, name: str | None, begin: _Begin) -> None:
        """Add a begin event on top."""
        self._begins.append(begin)
        self._by_name.setdefault(name, []).append(begin)

    def pop(self, name: str | None) -> _Begin | None:
        """Close the topmost begin event of a name, or of all if an end has no name, as Perfetto does; None if all are closed."""
        waiting = self._by_name.get(name, []) if name else self._begins
        while waiting:
            begin = waiting.pop()
            if begin.is_open:
                begin.is_open = False
                return begin
        return None

    @property
    def unfinished(self) -> int:
        """Number of begin events without an end."""
        return sum(begin.is_open for begin in self._begins)


class _Joined:
    """Collects parts."""

    def __init__(self) -> None:
        self._names = _Numbers()
        self._tracks = _Numbers()
        self._columns: list[tuple[Int64s, Int64s, Codes]] = []
        self._runs: list[tuple[int, int]] = []  # track and number of events that come together in the columns
        self._marks: list[tuple[int, Kind, bytes]] = []
        self._processes: dict[Id, str] = {}
        self._labels: dict[Id, str] = {}
        self._threads: dict[tuple[Id, Id], str] = {}
        self._devices: set[tuple[Id, Id]] = set()
        self._headers: list[bytes] = []
        self._impossible = self._damaged = 0
        self._truncated = False

    def add(self, part: ChromePart) -> None:
        """Add a part, after all parts before it."""
        names: Codes = np.zeros(len(part.kinds), dtype=np.uint32)
        for number, kind in enumerate(part.kinds):
            if is_shown(kind):
                names[number] = self._names[kind[2], kind[1]]
        self._columns.append((part.start, part.duration, names[part.kind]))
        self._runs += [(self._tracks[process, thread], count) for process, thread, count in part.rows]
        self._marks += [(at, part.kinds[number], ids) for at, number, ids in part.marks]
        self._processes |= part.processes
        self._labels |= part.labels
        self._threads |= part.threads
        self._devices |= part.devices
        self._headers += part.headers
        self._impossible += part.impossible
        self._damaged += part.damaged
        self._truncated |= part.truncated

    def _join_pairs(self) -> tuple[int, int]:
        """Make events of begins and ends; return how many ends end nothing, and how many begins never end."""
        stacks: dict[object, _OpenStack] = {}
        joined: dict[int, list[tuple[int, int, int]]] = {}
        lonely_ends = 0
        self._marks.sort(key=lambda mark: mark[0])
        for at, (phase, category, name, process, thread), ids in self._marks:
            if at == IMPOSSIBLE:
                self._impossible += 1
                continue
            is_async = phase in ASYNC_PAIRS
            key = (process, category, ids, name) if is_async else (process, thread)
            stack = stacks.setdefault(key, _OpenStack())
            if phase in "Bb":
                track = (process, (ASYNC, category or "")) if is_async else (process, thread)
                stack.push(name, _Begin(at, self._names[name, category], self._tracks[track]))
            elif begin := stack.pop(name):
                joined.setdefault(begin.track, []).append((begin.at, at - begin.at, begin.name))
            else:
                lonely_ends += 1
        for track_number, events in joined.items():
            starts, durations, names = np.array(events, dtype=np.int64).T
            self._columns.append((starts, durations, names.astype(np.uint32)))
            self._runs.append((track_number, len(events)))
        return lonely_ends, sum(stack.unfinished for stack in stacks.values())

    def result(self) -> ForeignEvents:
        """Return everything."""
        lonely_ends, unfinished = self._join_pairs()
        counts = (
            (self._damaged, "{} damaged and left out"),
            (self._impossible, "{} with negative or impossible times left out"),
            (lonely_ends, "{} that end what never began left out"),
            (unfinished, "{} that never end left out"),
        )
        problems = [line.format(plural(count, "event")) for count, line in counts if count]
        if self._truncated:
            problems.insert(0, "the file has no end: events after it are missing")
        return ForeignEvents(
            *self._by_track(),
            names=tuple((str(name or ""), str(category or "")) for name, category in self._names),
            tracks=tuple(self._tracks),  # type: ignore[arg-type]
            processes=self._processes,
            labels=self._labels,
            threads=self._threads,
            headers=tuple(map(read_header, self._headers)),
            problems=tuple(problems),
            devices=frozenset(self._devices),
        )

    def _by_track(self) -> tuple[Int64s, Int64s, Codes, Int64s]:
        """Return the columns, and where the events of each track begin in them."""
        columns, self._columns = list(zip(*self._columns, strict=True)), []
        runs: Int64s = np.array(self._runs, dtype=np.int64).reshape(-1, 2)
        order = np.argsort(runs[:, 0], kind="stable")
        track, count = runs[order].T
        source: Int64s | slice = slice(None)
        if np.any(order[1:] < order[:-1]):
            first = np.cumsum(runs[:, 1]) - runs[:, 1]
            source = np.repeat(first[order] - (np.cumsum(count) - count), count)
            source += np.arange(len(source))
        start, duration, name = (np.concatenate(columns.pop(0))[source] for _ in range(3))
        counts = np.bincount(track, count, len(self._tracks)).astype(np.int64)
        return start, duration, name, np.concatenate(([0], np.cumsum(counts)))
