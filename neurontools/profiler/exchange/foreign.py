"""Traces of other programs as a `Trace`: rows with their own names, on a device or on the host, all of them measured."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from typing import TYPE_CHECKING, Any

import numpy as np

from neurontools.base.text import plural
from neurontools.profiler.capture.format import NO_CORE, Meta, ProfileError, Track
from neurontools.profiler.exchange.chrome_events import read_chrome
from neurontools.profiler.exchange.parquet import has_tables, read_tables
from neurontools.profiler.trace.load import load
from neurontools.profiler.trace.rows import EventBlock, FlatEvents
from neurontools.profiler.trace.trace import Trace, TraceAction, TraceRow, numbered

if TYPE_CHECKING:
    from collections.abc import Iterable

    from neurontools.profiler.exchange.chrome_columns import Id
    from neurontools.profiler.exchange.chrome_events import ForeignEvents
    from neurontools.profiler.trace.intervals import Codes, Int64s, Mask

_MOST_ROWS = 4096
_SNIFFED = 64
_DEVICE_CATEGORIES = re.compile(r"kernel|gpu_\w+|privateuse1_\w+|modelled|Memcpy|Memset", re.IGNORECASE)
_DEVICE_NAMES = re.compile(r"(/device:(?!CPU)|GPU|TPU|XPU|stream\b)", re.IGNORECASE)
_MODEL_ROW = re.compile(rf"{Track.MODEL.label}( \d+)?")
_OURS = "neurontools"
_UNIX_NS = 1 << 59  # times from 1988 on, on an axis that begins in 1970
_BOOT = "foreign"


def open_trace(path: str, session: int | None = None) -> Trace:
    """Open a capture of ours, or a trace of another program: a Chrome trace file, a directory of Parquet tables.

    Args:
        path: the directory of captures, or a file.
        session: which run, as in `load`.

    Raises:
        ProfileError: nothing there that can be read.
    """
    if _is_json(path):
        return open_chrome(path)
    if has_tables(path):
        return _trace(read_tables(path), path)
    return load(path, session)


def _is_json(path: str) -> bool:
    if not os.path.isfile(path) or os.path.basename(path) == "meta.json":
        return False
    try:
        with open(path, "rb") as file:
            first = file.read(_SNIFFED)
    except OSError:
        return False
    named = path.endswith((".json", ".json.gz"))
    return (
        named
        or first.startswith(b"\x1f\x8b")
        or first.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in {b"{", b"["}
    )


def open_chrome(path: str) -> Trace:
    """Open a Chrome trace file, plain or gzip.

    Raises:
        ProfileError: the file cannot be read, is not a Chrome trace, or has no events.
    """
    return _trace(read_chrome(path), path)


def _trace(events: ForeignEvents, path: str) -> Trace:
    if len(events.start) == 0:
        raise ProfileError(
            "; ".join((f"{path} has no events with a duration", *events.problems)), "export the trace again"
        )
    return _Builder(events).trace()


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a track is shown."""

    process: Id
    track: Track
    title: str
    group: str


class _Builder:
    """Makes rows of events."""

    def __init__(self, events: ForeignEvents) -> None:
        self._events = events
        self._problems = list(events.problems)

    def trace(self) -> Trace:
        """Return the trace."""
        events = self._events
        origin = int(events.start.min())
        base = int(max((header.baseTimeNanoseconds for header in events.headers), default=0))
        rows = self._rows(origin)
        names = {row.process: row.group for row in rows}
        return Trace(
            processes=tuple(
                _description(names.get(number, ""), row_pid) for number, row_pid in self._pids(rows)
            ),
            rows=numbered(rows),
            models=(),
            actions=self._actions(),
            runs=(),
            programs={},
            origin_unix_ns=origin + base if base or origin > _UNIX_NS else 0,
            problems=tuple(self._problems),
            measured_by=_program(events),
            stated=events.stated,
        )

    def _pids(self, rows: list[TraceRow]) -> list[tuple[int, int]]:
        pids = {row.process: row.pid for row in rows}
        return [(number, pids.get(number, 0)) for number in range(max(pids) + 1)]

    def _actions(self) -> tuple[TraceAction, ...]:
        events = self._events
        of_track: Codes = np.full(len(events.tracks), Track.HOST, dtype=np.uint32)
        of_track[self._kept] = [place.track for place in self._places]
        of_name: Codes = np.full(len(events.names), Track.HOST, dtype=np.uint32)
        for track in (Track.MODEL, Track.DEVICE):
            if np.any(of_track == track):
                of_name[events.name[np.repeat(of_track == track, np.diff(events.bounds))]] = track
        facts: Iterable[dict[str, Any]] = events.facts or repeat({})
        return tuple(
            TraceAction(name, category, Track(track), **more)
            for (name, category), track, more in zip(events.names, of_name.tolist(), facts, strict=False)
        )

    def _rows(self, origin: int) -> list[TraceRow]:
        chosen, places = self._merge_rows()
        pids = {place.process: None for place in places}
        numbers = {process: number for number, process in enumerate(pids)}
        rows = []
        for events_of_row, place in zip(chosen, places, strict=True):
            rows.append(
                TraceRow(
                    process=numbers[place.process],
                    pid=_pid(place.process),
                    nc=NO_CORE,
                    core=NO_CORE,
                    track=place.track,
                    first=0,
                    last=0,
                    events=self._flat(events_of_row, origin),
                    title=place.title,
                    group=place.group,
                )
            )
        rows.sort(key=lambda row: (row.process, row.track, row.title))
        return rows

    def _of_track(self, number: int) -> slice:
        return slice(*self._events.bounds[number : number + 2].tolist())

    def _flat(self, chosen: slice | Mask, origin: int) -> FlatEvents:
        events = self._events
        start, duration, action = events.start[chosen], events.duration[chosen], events.name[chosen]
        start = start - origin
        if np.any(start[1:] < start[:-1]):
            order = np.lexsort((-duration, start))  # what holds another event comes before it
            start, duration, action = start[order], duration[order], action[order]
        nothing = np.broadcast_to(np.uint32(0), len(start))
        zeros = np.broadcast_to(np.int64(0), len(start))
        return FlatEvents(EventBlock(start, duration, action, nothing, nothing, nothing, zeros))

    @cached_property
    def _kept(self) -> Int64s:
        """The tracks with rows of their own: all, or the largest where there are very many."""
        order: Int64s = np.argsort(-np.diff(self._events.bounds), kind="stable")
        return np.sort(order[:_MOST_ROWS])

    @cached_property
    def _is_ours(self) -> bool:
        return _writer(self._events) == _OURS

    @cached_property
    def _places(self) -> list[_Place]:
        events = self._events
        of_device = np.array([bool(_DEVICE_CATEGORIES.fullmatch(category)) for _, category in events.names])
        before: Codes = np.zeros(len(events.name) + 1, dtype=np.uint32)
        np.cumsum(of_device[events.name], out=before[1:])
        device_events = before[events.bounds[1:]] > before[events.bounds[:-1]]
        return [
            self._place(*events.tracks[number], has_device_events=bool(device_events[number]))
            for number in self._kept.tolist()
        ]

    def _place(self, process: Id, thread: Id | tuple[str, str], *, has_device_events: bool) -> _Place:
        events = self._events
        name, label = events.processes.get(process, ""), events.labels.get(process, "")
        group = label if label and label != "CPU" else f"{name} (pid {process})" if name else f"pid {process}"
        if isinstance(process, str):
            group = process
        if isinstance(thread, tuple):
            title = thread[1] or thread[0]
        else:
            title = events.threads.get((process, thread)) or f"thread {thread}"
        on_device = has_device_events or bool(_DEVICE_NAMES.match(name) or _DEVICE_NAMES.match(label))
        track = Track.DEVICE if on_device else Track.HOST
        if on_device and self._is_ours and _MODEL_ROW.fullmatch(title):
            track = Track.MODEL  # whole executions, which hold the operators of the other rows
        return _Place(process, track, title, group)

    def _merge_rows(self) -> tuple[list[slice | Mask], list[_Place]]:
        """Return the events of each row, and the rows: small tracks share one where there are very many."""
        places = self._places
        kept = list(map(self._of_track, self._kept.tolist()))
        count = len(self._events.tracks)
        left = count - len(places)
        if not left:
            return [*kept], places
        is_small: Mask = np.ones(count, dtype=np.bool_)
        is_small[self._kept] = False
        self._problems.append(f"{plural(count, 'track')}: the {left} smallest share one row")
        shared = _Place(places[0].process, Track.HOST, f"{left} other tracks", "other tracks")
        others: Mask = np.repeat(is_small, np.diff(self._events.bounds))
        return [*kept, others], [*places, shared]


def _pid(process: Id) -> int:
    return process if isinstance(process, int) and 0 <= process < 1 << 62 else 0


def _description(name: str, pid: int) -> Meta:
    """Return what is known of a process of another program."""
    return Meta(
        instance_type="",
        instance_id="",
        lnc=1,
        cores=(),
        pid=pid,
        command=(name,),
        boot_id=_BOOT,
        started_ns=0,
        started_unix_ns=0,
        device_profile="",
        max_events_per_nc=0,
        ended_ns=1,
    )


def _program(events: ForeignEvents) -> str:
    """Return the name of the program that wrote a file, and whether its device times are those of a simulation."""
    if events.program:
        return events.program
    name = _writer(events)
    is_modelled = any(process.endswith("modelled)") for process in events.processes.values())
    return f"{name} (device times modelled)" if is_modelled else name


def _writer(events: ForeignEvents) -> str:
    for header in events.headers:
        if header.otherData.get("is_simulation"):
            return _OURS
        if bytes(header.deviceProperties) or header.baseTimeNanoseconds:
            return "torch.profiler"
        if bytes(header.viztracer_metadata):
            return "viztracer"
    categories = {category for _, category in events.names}
    return "torch.profiler" if "cpu_op" in categories else "another program"
