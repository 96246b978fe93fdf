"""All captures of a directory as one set of columns: rows of a timeline, each sorted by time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from neurontools.compiler.engines.placement import COLLECTIVE_OPCODE
from neurontools.compiler.engines.queues import queue_of
from neurontools.profiler.capture.format import (
    NRT_LOAD,
    SYSTEM_EVENTS,
    TRACK_OF_LABEL,
    ProfileError,
    Track,
    pairing_hash,
    process_label,
)
from neurontools.profiler.trace.reader import ProcessCapture, open_captures

if TYPE_CHECKING:
    from neurontools.compiler.engines.queues import DmaQueue
    from neurontools.profiler.capture.format import LoadedModel, Meta
    from neurontools.profiler.trace.intervals import Codes, Int64s, Mask


@dataclass(frozen=True, slots=True)
class TraceAction:
    """What an event does: an operation of a program, a system event, or a whole model.

    An engine works for `busy_ns` of the event, 0 if for all of it, on `tiles` instructions.
    """

    name: str
    opcode: str
    track: Track
    flops: int = 0
    read_bytes: int = 0
    write_bytes: int = 0
    shape: str = ""
    source: str = ""
    busy_ns: int = 0
    tiles: int = 1

    @property
    def queue(self) -> DmaQueue | None:
        """The DMA queue of a transfer; captures of earlier versions have collectives among the transfers."""
        if self.track is not Track.DMA or self.opcode == COLLECTIVE_OPCODE:
            return None
        return queue_of(self.opcode, self.write_bytes)

    @property
    def queue_name(self) -> str:
        """Its name, empty for anything but transfers."""
        return self.queue.name if self.queue else ""


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One line of the timeline: a track of a NeuronCore of a process; its events are `first` to `last` exclusive."""

    process: int
    pid: int
    nc: int
    core: int
    track: Track
    first: int
    last: int
    rank: int | None = None

    @property
    def process_label(self) -> str:
        """The process, with its rank if it is one of several workers."""
        return process_label(self.pid, self.rank)

    @property
    def label(self) -> str:
        """The row's name; with the process only where the reader asks for it."""
        return f"NC{self.nc} {self.track.label}"

    @property
    def span(self) -> slice:
        """Its events among all."""
        return slice(self.first, self.last)


@dataclass(frozen=True, slots=True)
class Trace:
    """Events of several processes on one axis.

    Args:
        processes: the description of every capture.
        rows: in order of process, NC and track.
        models: by the numbers in `model`.
        actions: by the numbers in `action`.
        start: int64 nanoseconds since `origin_unix_ns`.
        duration: int64 nanoseconds.
        action, model, execution, status: numbers, one per event.
        origin_unix_ns: unix time of the first event.
    """

    processes: tuple[Meta, ...]
    rows: tuple[TraceRow, ...]
    models: tuple[LoadedModel, ...]
    actions: tuple[TraceAction, ...]
    start: Int64s
    duration: Int64s
    action: Codes
    model: Codes
    execution: Codes
    status: Codes
    origin_unix_ns: int

    @property
    def event_count(self) -> int:
        """Number of events."""
        return len(self.start)

    @property
    def end_ns(self) -> int:
        """End of the last event, nanoseconds since the origin."""
        return int((self.start + self.duration).max()) if self.event_count else 0

    def rows_of(self, *tracks: Track) -> tuple[TraceRow, ...]:
        """Return the rows of some tracks."""
        return tuple(row for row in self.rows if row.track in tracks)

    def keep(self, wanted: Mask) -> Trace:
        """Return the trace with some events only; rows without events vanish."""
        before = np.concatenate(([0], np.cumsum(wanted)))
        rows = tuple(
            replace(row, first=int(before[row.first]), last=int(before[row.last]))
            for row in self.rows
            if before[row.first] < before[row.last]
        )
        return replace(
            self,
            rows=rows,
            start=self.start[wanted],
            duration=self.duration[wanted],
            action=self.action[wanted],
            model=self.model[wanted],
            execution=self.execution[wanted],
            status=self.status[wanted],
        )

    def first_executions(self) -> Codes:
        """Return by model number the number of its first recorded execution: the warm-up."""
        first: Codes = np.full(len(self.models), np.iinfo(np.uint32).max, dtype=np.uint32)
        for row in self.rows:
            executed = self.action[row.span] != NRT_LOAD
            np.minimum.at(first, self.model[row.span][executed], self.execution[row.span][executed])
        return first

    def without_warmup(self) -> Trace:
        """Return the trace without loads and without the first execution of every model."""
        return self.keep((self.execution != self.first_executions()[self.model]) & (self.action != NRT_LOAD))


def load(path: str) -> Trace:
    """Open every capture at or below a directory as one trace. Raises the errors of `open_captures`."""
    return merge(open_captures(path))


def merge(captures: tuple[ProcessCapture, ...]) -> Trace:
    """Put captures on one axis: the monotonic clock where they share a boot, else unix time."""
    table = _Table()
    columns = _Columns([table.columns(index, capture) for index, capture in enumerate(captures)])
    start, key = columns.take(0), columns.take(6)
    order = np.lexsort((start, key))
    start, key = start[order], key[order]
    origin = int(start.min()) if len(start) else 0
    return Trace(
        processes=tuple(capture.meta for capture in captures),
        rows=_rows(key, captures),
        models=tuple(table.models),
        actions=tuple(table.actions),
        start=start - origin,
        duration=columns.take(1)[order],
        action=columns.take(2)[order],
        model=columns.take(3)[order],
        execution=columns.take(4)[order],
        status=columns.take(5)[order],
        origin_unix_ns=origin + captures[0].meta.started_unix_ns - captures[0].meta.started_ns,
    )


class _Columns:
    """Columns of several captures, joined one at a time and freed when taken: large profiles are in memory once."""

    def __init__(self, parts: list[tuple[Int64s, ...]]) -> None:
        self._columns = [list(column) for column in zip(*parts, strict=True)]

    def take(self, number: int) -> Int64s:
        joined: Int64s = np.concatenate(self._columns[number])
        self._columns[number] = []
        return joined


class _Table:
    """Numbers for actions and models over all captures; programs that several processes share appear once."""

    def __init__(self) -> None:
        self.actions: list[TraceAction] = [
            TraceAction(name, "", Track.HARDWARE if name.startswith("nc_") else Track.RUNTIME)
            for name in SYSTEM_EVENTS
        ]
        self.models: list[LoadedModel] = []
        self._programs: dict[str, int] = {}
        self._boot: Meta | None = None

    def columns(self, process: int, capture: ProcessCapture) -> tuple[Int64s, ...]:
        """Return start, duration, action, model, execution, status and row key of a capture's events."""
        events = capture.events
        first_model = len(self.models)
        names, bases = [], []
        for value in capture.models:
            self.models.append(value)
            names.append(len(self.actions))
            self.actions.append(TraceAction(value.name, "MODEL", Track.MODEL))
            bases.append(self._program(capture, value.neff_hash))
        track = events["track"].astype(np.int64)
        if capture.models:
            base = np.array(bases, dtype=np.int64)[events["model"]]
            name = np.array(names, dtype=np.int64)[events["model"]]
        else:
            base = name = np.zeros(0, dtype=np.int64)
        action = np.where(track < Track.MODEL, 0, base) + events["operation"]
        return (
            events["start_ns"] + self._offset(capture.meta),
            events["duration_ns"].astype(np.int64),
            np.where(track == Track.MODEL, name, action).astype(np.uint32),
            (events["model"] + np.uint32(first_model)).astype(np.uint32),
            events["execution"].astype(np.uint32),
            events["status"].astype(np.uint32),
            (process << 16) + (events["nc"].astype(np.int64) << 8) + track,
        )

    def _program(self, capture: ProcessCapture, neff_hash: str) -> int:
        if neff_hash not in self._programs:
            self._programs[neff_hash] = len(self.actions)
            self.actions += [
                TraceAction(
                    operation.name,
                    operation.opcode,
                    TRACK_OF_LABEL[operation.engine],
                    operation.flops,
                    operation.read_bytes,
                    operation.write_bytes,
                    operation.shape,
                    operation.source,
                    operation.busy_ns,
                    operation.count,
                )
                for operation in capture.programs[neff_hash].operations
            ]
        return self._programs[neff_hash]

    def _offset(self, meta: Meta) -> int:
        if self._boot is None:
            self._boot = meta
        if meta.boot_id and meta.boot_id == self._boot.boot_id:
            return 0
        own = meta.started_unix_ns - meta.started_ns
        return own - (self._boot.started_unix_ns - self._boot.started_ns)


def _rows(key: Int64s, captures: tuple[ProcessCapture, ...]) -> tuple[TraceRow, ...]:
    keys, firsts = np.unique(key, return_index=True)
    lasts = [*firsts, len(key)][1:]
    rows = []
    for number, first, last in zip(keys, firsts, lasts, strict=True):
        process, nc = int(number) >> 16, (int(number) >> 8) & 0xFF
        meta = captures[process].meta
        core = meta.cores[nc] if nc < len(meta.cores) else nc
        rows.append(
            TraceRow(process, meta.pid, nc, core, Track(int(number) & 0xFF), int(first), int(last), meta.rank)
        )
    return tuple(rows)


@dataclass(frozen=True, slots=True)
class Selection:
    """What to keep.

    Args:
        ncs: process-local NeuronCores; None for all.
        from_ns, to_ns: events that touch this stretch, nanoseconds since the first event; None for no limit.
        skip_warmup: leave out loads and the first execution of every model.
        neff: path of a NEFF; only models loaded from it.
    """

    ncs: frozenset[int] | None = None
    from_ns: int | None = None
    to_ns: int | None = None
    skip_warmup: bool = False
    neff: str | None = None


def select(trace: Trace, wanted: Selection) -> Trace:
    """Return the chosen part.

    Raises:
        ProfileError: nothing is left, or the NEFF cannot be read or was not loaded.
    """
    if trace.event_count == 0:
        return trace
    if wanted.skip_warmup:
        trace = trace.without_warmup()
    keep = _stretch(trace, wanted)
    if wanted.ncs is not None:
        chosen: Mask = np.zeros(trace.event_count, dtype=bool)
        for row in trace.rows:
            chosen[row.span] = row.nc in wanted.ncs
        keep &= chosen
    if wanted.neff is not None:
        keep &= _loaded_from(trace, wanted.neff)[trace.model]
    if not keep.any():
        raise ProfileError("no events match the filters", "widen --nc, --from, --to or -n")
    return trace if keep.all() else trace.keep(keep)


def _stretch(trace: Trace, wanted: Selection) -> Mask:
    keep: Mask = np.ones(trace.event_count, dtype=bool)
    if wanted.from_ns is not None:
        keep &= trace.start + trace.duration >= wanted.from_ns
    if wanted.to_ns is not None:
        keep &= trace.start <= wanted.to_ns
    return keep


def _loaded_from(trace: Trace, path: str) -> Mask:
    try:
        with open(path, "rb") as file:
            neff_hash = pairing_hash(file.read())
    except OSError as error:
        raise ProfileError(f"cannot read {path}: {error.strerror}", "give the NEFF of the profile") from error
    found: Mask = np.array([model.neff_hash == neff_hash for model in trace.models], dtype=bool)
    if not found.any():
        raise ProfileError(
            f"the profile has no records of {path} (hash {neff_hash})",
            "the profile's own copies are named neff_<hash>.neff",
        )
    return found
