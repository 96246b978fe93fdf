"""All captures of a directory on one axis: rows of events, and the tables that they point into."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from neurontools.compiler.engines.dma import DmaQueue, queue_of
from neurontools.compiler.engines.kernel_program import NAMESPACE
from neurontools.profiler.capture.format import NAMED_TRACKS, NO_CORE, Track, process_label
from neurontools.profiler.trace.rows import EventBlock, Part
from neurontools.runtime.host_activity import HostEvent

if TYPE_CHECKING:
    from collections.abc import Iterable

    from neurontools.profiler.capture.format import LoadedModel, Meta, NeffProgram
    from neurontools.profiler.trace.intervals import Codes, Int64s, Mask
    from neurontools.profiler.trace.rows import ExecutionFilter, RowEvents


_KERNELS = f"{NAMESPACE}."


class TraceAction(msgspec.Struct, frozen=True, gc=False):
    """What an event does: an operation of a program, a system event, or a whole model.

    An engine works for `busy_ns` of the event, 0 if for all of it, on `tiles` instructions. `layer` is the path of the
    module that called the operator, such as `GPT.blocks.3.attn`; `place` the position in the program's schedule, -1
    for what is in none. `stack` holds `function file:line` of the program's frames, the innermost first.
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
    layer: str = ""
    place: int = -1
    stack: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """What it is called between other events: the operator, but the instruction itself within a kernel."""
        return self.opcode if self.name.startswith(_KERNELS) and self.place >= 0 else self.name

    @property
    def queue(self) -> DmaQueue | None:
        """The DMA queue of a transfer."""
        return queue_of(self.opcode, self.write_bytes) if self.track is Track.DMA else None

    @property
    def queue_name(self) -> str:
        """Its name, empty for anything but transfers."""
        return self.queue.name if self.queue else ""


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One line of the timeline: a track of a NeuronCore of a process; its events are `first` to `last` exclusive.

    Rows of other programs' traces have names of their own: `title` for the line and `group` for its process or device.
    """

    process: int
    pid: int
    nc: int
    core: int
    track: Track
    first: int
    last: int
    events: RowEvents = field(repr=False, compare=False)
    rank: int | None = None
    title: str = ""
    group: str = ""

    @property
    def process_label(self) -> str:
        """The process, with its rank if it is one of several workers."""
        return self.group or process_label(self.pid, self.rank)

    @property
    def name(self) -> str:
        """The name of the line among those of its core."""
        return self.title or self.track.label

    @property
    def label(self) -> str:
        """The row's name; with the process only where the reader asks for it."""
        return self.name if self.nc == NO_CORE else f"NC{self.nc} {self.name}"


@dataclass(frozen=True, slots=True)
class CoreRuns:
    """The executions on one NeuronCore of a process, in order of their wall-clock start, by columns.

    Args:
        process, nc, core, rank: whose they are; numbers as in `TraceRow`.
        wall_start, wall_ns: measured; nanoseconds, starts since the first event of the trace.
        device_start, device_ns: modelled; -1 and 0 without device records.
        model: number in the table of the trace.
        number: the model's executions count from 1.
        status: NRT status.
    """

    process: int
    nc: int
    core: int
    rank: int | None
    wall_start: Int64s
    wall_ns: Int64s
    device_start: Int64s
    device_ns: Int64s
    model: Codes
    number: Codes
    status: Codes

    def take(self, chosen: Mask | Int64s) -> CoreRuns:
        """Return some of them."""
        columns = ("wall_start", "wall_ns", "device_start", "device_ns", "model", "number", "status")
        return replace(self, **{name: getattr(self, name)[chosen] for name in columns})


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """One event. Times are nanoseconds, `start` since the first event of the trace; `value` as in `EventBlock`."""

    number: int
    row: TraceRow
    action: TraceAction
    start: int
    duration: int
    model: int
    execution: int
    status: int
    value: int


@dataclass(frozen=True, slots=True)
class ActionColumns:
    """Numbers of the actions, by number of the action."""

    flops: Int64s
    read_bytes: Int64s
    write_bytes: Int64s
    tiles: Int64s
    busy_ns: Int64s

    def worked_ns(self, action: Codes, duration: Int64s) -> Int64s:
        """Return how long the engine works within events; never longer than the event."""
        busy = self.busy_ns[action]
        return np.where(busy > 0, np.minimum(busy, duration), duration)


@dataclass(frozen=True)
class Trace:
    """Events of several processes on one axis.

    Args:
        processes: the description of every capture.
        rows: in order of process, NC and track.
        models: by the numbers in events.
        actions: by the numbers in events.
        runs: the executions of every NeuronCore; empty for traces of other programs.
        programs: of the models, by the hash of their NEFF; None where the NEFF cannot be read.
        origin_unix_ns: unix time of the first event.
        problems: what is wrong with the files, one line each.
        measured_by: the other program that measured all of it; empty for captures of ours.
        directories: of the captures, where the copies of their NEFFs are.
        stated: metrics that another program's file states, by name, with their NeuronCore; none of a part of a trace.
    """

    processes: tuple[Meta, ...]
    rows: tuple[TraceRow, ...]
    models: tuple[LoadedModel, ...]
    actions: tuple[TraceAction, ...]
    runs: tuple[CoreRuns, ...]
    programs: dict[str, NeffProgram | None]
    origin_unix_ns: int
    problems: tuple[str, ...] = ()
    measured_by: str = ""
    directories: tuple[str, ...] = ()
    stated: tuple[tuple[int, dict[str, float]], ...] = ()

    @property
    def event_count(self) -> int:
        """Number of events."""
        return self.rows[-1].last if self.rows else 0

    @cached_property
    def start_ns(self) -> int:
        """Start of the first event, nanoseconds since the origin; 0 unless a part was chosen."""
        return min((row.events.start_ns for row in self.rows), default=0)

    @cached_property
    def end_ns(self) -> int:
        """End of the last event, nanoseconds since the origin."""
        return max((row.events.end_ns for row in self.rows), default=0)

    @cached_property
    def columns(self) -> ActionColumns:
        """The numbers of the actions."""
        names = ("flops", "read_bytes", "write_bytes", "tiles", "busy_ns")
        return ActionColumns(
            *(np.fromiter(map(attrgetter(name), self.actions), np.int64, len(self.actions)) for name in names)
        )

    @cached_property
    def host_kinds(self) -> Int64s:
        """The `HostEvent` of each action, -1 for actions of the device."""
        kinds = {kind.name: kind.value for kind in HostEvent}
        return np.array(
            [kinds.get(action.opcode, -1) if action.track in NAMED_TRACKS else -1 for action in self.actions],
            dtype=np.int64,
        )

    def rows_of(self, *tracks: Track) -> tuple[TraceRow, ...]:
        """Return the rows of some tracks."""
        return tuple(row for row in self.rows if row.track in tracks)

    @cached_property
    def _lasts(self) -> Int64s:
        return np.array([row.last for row in self.rows], dtype=np.int64)

    def place_of(self, number: int) -> int:
        """Return the place among the rows of the row of an event."""
        return int(np.searchsorted(self._lasts, number, side="right"))

    def row_of(self, number: int) -> TraceRow:
        """Return the row of an event."""
        return self.rows[self.place_of(number)]

    def event(self, number: int) -> TraceEvent:
        """Return an event."""
        row = self.row_of(number)
        block = row.events.block(number - row.first, number - row.first + 1)
        return TraceEvent(
            number,
            row,
            self.actions[block.action[0]],
            *(
                int(column[0])
                for column in (
                    block.start,
                    block.duration,
                    block.model,
                    block.execution,
                    block.status,
                    block.value,
                )
            ),
        )

    def with_rows(self, rows: Iterable[TraceRow], runs: Iterable[CoreRuns]) -> Trace:
        """Return the trace with other events in its rows; rows without events vanish, numbers count anew."""
        made = replace(self, rows=numbered(rows), runs=tuple(runs), stated=())
        made.__dict__["columns"] = self.columns  # they have the same actions
        return made

    def of_executions(self, wanted: ExecutionFilter) -> Trace:
        """Return the trace with the chosen executions only; what the host did stays."""
        rows = [
            row
            if row.track in NAMED_TRACKS or self.measured_by
            else replace(row, events=row.events.of_executions(wanted))
            for row in self.rows
        ]
        runs = [each.take(wanted.chosen(each.model, each.number, each.wall_start)) for each in self.runs]
        return self.with_rows(rows, runs)


def executions_of(rows: Iterable[TraceRow]) -> tuple[Part, ...]:
    """Return what happens on several rows in each kind of execution of each core, and how often."""
    by_execution: dict[object, list[Part]] = {}
    for row in rows:
        for part in row.events.parts():
            by_execution.setdefault((row.process, row.nc, part.key), []).append(part)
    return tuple(
        Part(parts[0].weight, EventBlock.joined([part.events for part in parts]), key)
        for key, parts in by_execution.items()
    )


def numbered(rows: Iterable[TraceRow]) -> tuple[TraceRow, ...]:
    """Return the rows that have events, with the numbers of their first and last events."""
    kept, first = [], 0
    for row in rows:
        if row.events.count:
            last = first + row.events.count
            kept.append(replace(row, first=first, last=last))
            first = last
    return tuple(kept)
