"""Traces of other programs as a `Trace`: rows with their own names, on a device or on the host, all of them measured."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import IntFlag
from functools import cached_property
from itertools import repeat
from typing import TYPE_CHECKING, Any

import numpy as np

from neurontools.base.text import plural
from neurontools.profiler.analysis.annotated_steps import STEP_NAME
from neurontools.profiler.capture.format import NO_CORE, Meta, ProfileError, Track
from neurontools.profiler.exchange.chrome_events import read_chrome
from neurontools.profiler.exchange.chrome_text import device_ids
from neurontools.profiler.trace.rows import EventBlock, FlatEvents
from neurontools.profiler.trace.trace import Trace, TraceAction, TraceRow, numbered

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from neurontools.profiler.exchange.chrome_columns import Id
    from neurontools.profiler.exchange.chrome_events import ForeignEvents
    from neurontools.profiler.trace.intervals import Codes, Int64s, Mask

_MOST_ROWS = 4096
# The activity types of Kineto (libkineto/include/ActivityType.h) and of its forks for other devices.
_MAKERS = "cuda|gpu|xpu|hpu|npu|mlu|gcu|musa|hip|mtia|privateuse1"
_WORK = re.compile(
    r"(\w+_)?(kernel|memcpy|memset)|gpu_(?!user_annotation)\w+|hpu_op|mtia_ccp_events|modelled",
    re.IGNORECASE,
)
_DEVICE_SPAN = re.compile(
    rf"\w+_user_annotation|({_MAKERS})_(sync|event|profiler_range|scope_profiler)", re.IGNORECASE
)
_HOST = re.compile(
    r"cpu_\w+|\w+_(runtime|driver)|python_function|overhead|external_correlation|operator|runtime",
    re.IGNORECASE,
)
_DEVICE_NAMES = re.compile(
    rf".*/device:(?!(xla_)?cpu)|({_MAKERS}|tpu)[\s:#_/-]*(\d|stream\b)|stream\s*[:#]?\s*(\d|$)|[xnht]pu$",
    re.IGNORECASE,
)
_MODEL_ROW = re.compile(rf"{Track.MODEL.label}( \d+)?")
_OURS = "neurontools"
_UNIX_NS = 1 << 59  # times from 1988 on, on an axis that begins in 1970
_DAY_NS = 86_400 * 10**9
_NO_TIME_NS = 1000
_BOOT = "foreign"


def open_chrome(path: str) -> Trace:
    """Open a Chrome trace file, plain or gzip.

    Raises:
        ProfileError: the file cannot be read, is not a Chrome trace, or has no events.
    """
    return _trace(read_chrome(path), path)


def open_tables(path: str) -> Trace:
    """Open a directory of Neuron Explorer's Parquet tables.

    Raises:
        ProfileError: no table with events, a damaged one, or one of a newer schema.
        MissingDependencyError: DuckDB is not installed.
    """
    from neurontools.profiler.exchange.parquet import read_tables

    return _trace(read_tables(path), path)


def _trace(events: ForeignEvents, path: str) -> Trace:
    if len(events.start) == 0:
        raise ProfileError(
            "; ".join((f"{path} has no events with a duration", *events.problems)), "export the trace again"
        )
    return _Builder(_without_timeless(events)).trace()


def _without_timeless(events: ForeignEvents) -> ForeignEvents:
    """Leave out events at time 0 among events that begin at least a day later: programs write 0 for an unknown time."""
    start = events.start
    if abs(int(start.min())) >= _NO_TIME_NS:
        return events
    timed: Mask = np.abs(start) >= _NO_TIME_NS
    first = int(start[timed].min(initial=np.iinfo(np.int64).max))
    if not timed.any() or first < _DAY_NS:
        return events
    if first < _UNIX_NS:
        timed |= start + events.duration >= first
    count = len(start) - int(timed.sum())
    if not count:
        return events
    before: Int64s = np.concatenate(([0], np.cumsum(timed)))
    return replace(
        events,
        start=start[timed],
        duration=events.duration[timed],
        name=events.name[timed],
        bounds=before[events.bounds],
        problems=(*events.problems, f"{plural(count, 'event')} without a time left out"),
    )


class _Nature(IntFlag):
    """What an event is, as far as its category and name tell."""

    WORK = 1
    SPAN = 2
    ON_DEVICE = 4
    ON_HOST = 8


def _nature(name: str, category: str) -> _Nature:
    """Return what events are: work of a device, or spans around it such as annotations and waits, or the host's."""
    if _HOST.fullmatch(category):
        return _Nature.ON_HOST
    if _DEVICE_SPAN.fullmatch(category):
        return _Nature.SPAN | _Nature.ON_DEVICE
    if category == "user_annotation" or name.startswith(f"{STEP_NAME}#"):
        return _Nature.SPAN
    return _Nature.WORK if _WORK.fullmatch(category) else _Nature(0)


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
        of_name: Codes = np.full(len(events.names), Track.HOST, dtype=np.uint32)
        for track in (Track.MODEL, Track.ANNOTATION, Track.DEVICE):
            for chosen, place in zip(*self._shown_rows, strict=True):
                if place.track is track:
                    of_name[events.name[chosen]] = track
        facts: Iterable[dict[str, Any]] = events.facts or repeat({})
        return tuple(
            TraceAction(name, category, Track(track), **more)
            for (name, category), track, more in zip(events.names, of_name.tolist(), facts, strict=False)
        )

    def _rows(self, origin: int) -> list[TraceRow]:
        chosen, places = self._shown_rows
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

    def _flat(self, chosen: slice | Int64s, origin: int) -> FlatEvents:
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
    def _natures(self) -> NDArray[np.uint8]:
        """What events are, by number of their name."""
        return np.array([_nature(name, category) for name, category in self._events.names], dtype=np.uint8)

    @cached_property
    def _of_tracks(self) -> NDArray[np.uint8]:
        """What any of the events of each track is."""
        bounds = self._events.bounds
        filled = np.flatnonzero(np.diff(bounds))
        natures: NDArray[np.uint8] = np.zeros(len(self._events.tracks), dtype=np.uint8)
        natures[filled] = np.bitwise_or.reduceat(self._natures[self._events.name], bounds[filled])
        return natures

    @cached_property
    def _hosts(self) -> set[Id]:
        """The processes of a host."""
        tracks = zip(self._events.tracks, self._of_tracks.tolist(), strict=True)
        return {process for (process, _), nature in tracks if nature & _Nature.ON_HOST}

    @cached_property
    def _devices(self) -> set[Id]:
        """The processes that stand for a device."""
        events = self._events
        stated = {number for header in events.headers for number in device_ids(header)}
        named = {
            process
            for process, _ in events.tracks
            for text in (events.processes.get(process, ""), events.labels.get(process, ""), process)
            if isinstance(text, str) and _DEVICE_NAMES.match(text)
        }
        return (stated | named) - self._hosts

    def _is_device(self, number: int) -> bool:
        track, nature = self._events.tracks[number], int(self._of_tracks[number])
        if nature & (_Nature.WORK | _Nature.ON_HOST):
            return bool(nature & _Nature.WORK)
        return bool(nature & _Nature.ON_DEVICE or track[0] in self._devices or track in self._events.devices)

    def _place(self, number: int) -> _Place:
        events = self._events
        process, thread = events.tracks[number]
        name, label = events.processes.get(process, ""), events.labels.get(process, "")
        group = label if label and label != "CPU" else f"{name} (pid {process})" if name else f"pid {process}"
        if isinstance(process, str):
            group = process
        if isinstance(thread, tuple):
            title = thread[1] or thread[0]
        else:
            title = events.threads.get((process, thread)) or f"thread {thread}"
        track = Track.DEVICE if self._is_device(number) else Track.HOST
        if track is Track.DEVICE and self._is_ours and _MODEL_ROW.fullmatch(title):
            track = Track.MODEL  # whole executions, which hold the operators of the other rows
        return _Place(process, track, title, group)

    def _split(self, number: int) -> list[tuple[slice | Int64s, _Place]]:
        """Return the rows of a track: what a device does, the spans around that, and what another program put there."""
        place, chosen = self._place(number), slice(*self._events.bounds[number : number + 2].tolist())
        if place.track is not Track.DEVICE or not self._of_tracks[number] & ~np.uint8(_Nature.WORK):
            return [(chosen, place)]
        natures = self._natures[self._events.name[chosen]]
        is_host = natures & _Nature.ON_HOST != 0
        is_span = natures & _Nature.SPAN != 0
        annotations = replace(place, track=Track.ANNOTATION, title=f"{place.title} annotations")
        rows = (
            (~is_host & ~is_span, place),
            (is_span, annotations),
            (is_host, replace(place, track=Track.HOST)),
        )
        return [
            (np.flatnonzero(mask) + chosen.start, shown_place) for mask, shown_place in rows if mask.any()
        ]

    @cached_property
    def _shown_rows(self) -> tuple[list[slice | Int64s], list[_Place]]:
        """The events of each row, and the rows: small tracks share one where there are very many."""
        rows = [row for number in self._kept.tolist() for row in self._split(number)]
        chosen, places = [events for events, _ in rows], [place for _, place in rows]
        count, left = len(self._events.tracks), len(self._events.tracks) - len(self._kept)
        if left:
            is_small: Mask = np.ones(count, dtype=np.bool_)
            is_small[self._kept] = False
            self._problems.append(f"{plural(count, 'track')}: the {left} smallest share one row")
            others = np.flatnonzero(np.repeat(is_small, np.diff(self._events.bounds)))
            chosen.append(others)
            places.append(_Place(places[0].process, Track.HOST, f"{left} other tracks", "other tracks"))
        return chosen, places


def _pid(process: Id) -> int:
    return process if isinstance(process, int) and 0 <= process < 1 << 62 else 0


def _description(name: str, pid: int) -> Meta:
    """Describe a process of another program."""
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
