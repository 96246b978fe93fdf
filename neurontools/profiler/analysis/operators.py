"""Totals over the events of the device: by operator, shape, layer, source line, engine, rank or opcode.

All times are modelled. Time is that in which an engine works; what it waits for between the tiles of an operator does
not count. In traces of other programs all times are measured, and time is that of an event without the events in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from operator import mul
from typing import TYPE_CHECKING

import numpy as np

from neurontools.profiler.analysis.annotated_steps import STEP_NAME
from neurontools.profiler.capture.format import DEVICE_TRACKS, IDLE_TRACKS, Track
from neurontools.profiler.trace.intervals import nest
from neurontools.profiler.trace.selection import between

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from neurontools.profiler.trace.intervals import Int64s
    from neurontools.profiler.trace.trace import Trace, TraceAction, TraceRow


UNKNOWN = "(unknown)"


class By(StrEnum):
    """What events are grouped by."""

    OPERATOR = "operator"
    SHAPE = "shape"
    LAYER = "layer"
    SOURCE = "source"
    ENGINE = "engine"
    RANK = "rank"
    OPCODE = "opcode"


@dataclass(frozen=True, slots=True)
class GroupTotal:
    """The events of one group, over all NeuronCores that were chosen.

    Args:
        name: what they share.
        count: number of events.
        total_ns: modelled time in which engines work, added up.
        share: its part (0 to 1) of that time of all events.
        min_ns: shortest event.
        median_ns: the event in the middle.
        max_ns: longest event.
        flops: floating-point operations.
        read_bytes: bytes read from HBM.
        write_bytes: bytes written to HBM.
    """

    name: str
    count: int
    total_ns: int
    share: float
    min_ns: int
    median_ns: int
    max_ns: int
    flops: int
    read_bytes: int
    write_bytes: int

    @property
    def bytes_moved(self) -> int:
        """Bytes read from and written to HBM."""
        return self.read_bytes + self.write_bytes

    @property
    def flops_s(self) -> float:
        """Operations a second of its time."""
        return 1e9 * self.flops / self.total_ns if self.total_ns else 0.0

    @property
    def bytes_s(self) -> float:
        """Bytes a second of its time."""
        return 1e9 * self.bytes_moved / self.total_ns if self.total_ns else 0.0

    @property
    def intensity(self) -> float:
        """Operations a byte of HBM; 0 without bytes."""
        return self.flops / self.bytes_moved if self.bytes_moved else 0.0


@dataclass(frozen=True, slots=True)
class OperatorTotal:
    """All calls of one operator on one engine, over all NeuronCores; times are modelled.

    `share` (0..1) is its part of the summed instruction time of all engines and DMA.
    """

    name: str
    opcode: str
    engine: str
    count: int
    total_ns: int
    share: float
    flops: int
    bytes_moved: int


def layer_pattern(layers: Collection[str]) -> str:
    """Return one path for several modules: `GPT.blocks.*.attn`; empty if they have no such path."""
    paths = [layer.split(".") for layer in layers]
    if not paths or len(set(map(len, paths))) > 1:
        return ""
    pattern = [
        parts[0] if len(set(parts)) == 1 else "*" if all(part.isdecimal() for part in parts) else ""
        for parts in zip(*paths, strict=True)
    ]
    return ".".join(pattern) if all(pattern) else ""


def group_totals(trace: Trace, by: By, limit: int | None = None) -> tuple[GroupTotal, ...]:
    """Return the totals of groups, those with most time first, at most `limit` of them."""
    names: dict[str, int] = {}
    of_row = _row_group(trace, by)
    by_action = np.array(
        [names.setdefault(label_of(action, by), len(names)) for action in trace.actions], dtype=np.int64
    )
    parts = [
        _Events(
            group=np.full(len(action), names.setdefault(of_row(row), len(names)))
            if of_row is not None
            else by_action[action],
            action=action,
            worked=worked,
            weight=weight,
        )
        for row, action, worked, weight in _worked(trace)
    ]
    if not parts:
        return ()
    totals = _totals(trace, parts, list(names))
    totals.sort(key=lambda group: (-group.total_ns, group.name))
    return tuple(totals[:limit])


def top_operators(trace: Trace, limit: int | None = None) -> tuple[OperatorTotal, ...]:
    """Return the operators of each engine with the largest total time first, at most `limit` of them."""
    count, total = action_totals(trace)
    groups: dict[tuple[str, str, Track], list[int]] = {}
    for number in np.flatnonzero(count).tolist():
        found = trace.actions[number]
        groups.setdefault((_operator(found), found.opcode, found.track), []).append(number)
    columns, everything = trace.columns, int(total.sum()) or 1
    operators = []
    for (name, opcode, track), numbers in groups.items():
        calls, total_ns = count[numbers].tolist(), int(total[numbers].sum())
        flops, read, write = (
            sum(map(mul, calls, column[numbers].tolist()))
            for column in (columns.flops, columns.read_bytes, columns.write_bytes)
        )
        share = total_ns / everything
        operators.append(
            OperatorTotal(name, opcode, track.label, sum(calls), total_ns, share, flops, read + write)
        )
    operators.sort(key=lambda operator: (-operator.total_ns, operator.name, operator.engine, operator.opcode))
    return tuple(operators[:limit])


def slowest_event(trace: Trace, by: By, name: str) -> int | None:
    """Return the number of the longest event of a group; of several the one in the middle of the run.

    Args:
        trace: the events.
        by: how events are grouped: by anything but rank.
        name: of the group.
    """
    wanted = np.array([label_of(action, by) == name for action in trace.actions], dtype=bool)
    best: tuple[int, int] | None = None
    for row in trace.rows_of(*DEVICE_TRACKS):
        longest, action = -1, 0
        for part in row.events.parts():
            chosen = np.flatnonzero(wanted[part.events.action])
            if len(chosen):
                at = int(chosen[np.argmax(part.events.duration[chosen])])
                if int(part.events.duration[at]) > longest:
                    longest, action = int(part.events.duration[at]), int(part.events.action[at])
        if longest >= 0 and (best is None or longest > best[0]):
            only = np.arange(len(trace.actions)) == action
            numbers = row.events.of_actions(only)
            numbers = numbers[row.events.at(numbers).duration == longest]
            best = longest, row.first + int(numbers[len(numbers) // 2])
    return None if best is None else best[1]


def action_totals(trace: Trace) -> tuple[Int64s, Int64s]:
    """Return by action how often it happens on the device, and how long engines work for it."""
    size = len(trace.actions)
    count: Int64s = np.zeros(size, dtype=np.int64)
    total: Int64s = np.zeros(size, dtype=np.int64)
    for _, action, worked, weight in _worked(trace):
        count += weight * np.bincount(action, minlength=size)
        total += weight * _sums(action, worked, size)
    return count, total


@dataclass(frozen=True, slots=True)
class GroupPart:
    """Events of a group that share something else, too: what, how many, and the time in which engines work for them."""

    name: str
    count: int
    total_ns: int


class GroupParts:
    """The parts of groups. The trace is read once.

    Args:
        trace: the events.
    """

    def __init__(self, trace: Trace) -> None:
        counts, times = action_totals(trace)
        happened = np.flatnonzero(counts)
        self._actions = [trace.actions[number] for number in happened]
        self._counts, self._times = counts[happened].tolist(), times[happened].tolist()
        self._labels: dict[By, list[str]] = {}

    def of(self, by: By, name: str, over: By) -> tuple[GroupPart, ...]:
        """Return the parts of a group, those with most time first.

        Args:
            by: how events are grouped: by anything but rank, as `over`.
            name: of the group.
            over: what the events of a part share.
        """
        if by not in self._labels:
            self._labels[by] = [label_of(action, by) for action in self._actions]
        parts: dict[str, list[int]] = {}
        for number, label in enumerate(self._labels[by]):
            if label == name:
                part = parts.setdefault(label_of(self._actions[number], over), [0, 0])
                part[0] += self._counts[number]
                part[1] += self._times[number]
        totals = (GroupPart(label, count, total) for label, (count, total) in parts.items())
        return tuple(sorted(totals, key=lambda part: -part.total_ns))


@dataclass(frozen=True, slots=True)
class _Events:
    """Events that happen `weight` times each, by columns."""

    group: Int64s
    action: Int64s
    worked: Int64s
    weight: int


def label_of(action: TraceAction, by: By) -> str:
    """Return the group of an event; that of a rank is its row's."""
    match by:
        case By.OPERATOR:
            return _operator(action)
        case By.SHAPE:
            return f"{_operator(action)} {action.shape}".rstrip()
        case By.LAYER:
            return action.layer or UNKNOWN
        case By.SOURCE:
            return action.source or UNKNOWN
        case By.ENGINE:
            return action.track.label
        case By.OPCODE:
            return action.opcode or UNKNOWN
        case By.RANK:
            return ""


def _operator(action: TraceAction) -> str:
    # Torch's own tables add its steps up under this name, too.
    return f"{STEP_NAME}*" if action.name.startswith(_NUMBERED_STEP) else action.name


_NUMBERED_STEP = f"{STEP_NAME}#"


def _row_group(trace: Trace, by: By) -> Callable[[TraceRow], str] | None:
    """Return how rows are grouped; None where it is the action that has the group."""
    if by is By.RANK:
        return lambda row: row.process_label
    if by is not By.ENGINE or not trace.measured_by:
        return None
    # Of another program's engines or streams only their rows tell; names of threads are those of one run.
    return lambda row: row.name if row.track is Track.DEVICE else row.track.label


def _worked(trace: Trace) -> Iterator[tuple[TraceRow, Int64s, Int64s, int]]:
    """Yield actions and times of the distinct events of each device row, and how often they happen."""
    for row in _operator_rows(trace):
        for part in row.events.parts():
            events = part.events
            if trace.measured_by:
                own_ns = nest(events.start, events.duration).own_ns
                worked = trace.columns.worked_ns(events.action, own_ns)
            else:
                worked = trace.columns.worked_ns(events.action, events.duration)
            yield row, events.action.astype(np.int64), worked, part.weight


def _operator_rows(trace: Trace) -> tuple[TraceRow, ...]:
    """Return the rows of operators; those of the host if another program measured nothing on a device."""
    if trace.measured_by:
        return trace.rows_of(Track.DEVICE) or trace.rows_of(Track.HOST)
    return trace.rows_of(*DEVICE_TRACKS)


def _totals(trace: Trace, parts: list[_Events], names: list[str]) -> list[GroupTotal]:
    group = np.concatenate([part.group for part in parts])
    worked = np.concatenate([part.worked for part in parts])
    action = np.concatenate([part.action for part in parts])
    weight: Int64s = np.repeat(
        np.array([part.weight for part in parts], dtype=np.int64), [len(part.group) for part in parts]
    )
    columns = trace.columns
    counts, times, flops, reads, writes = (
        _sums(group, weight * values, len(names))
        for values in (
            1,
            worked,
            columns.flops[action],
            columns.read_bytes[action],
            columns.write_bytes[action],
        )
    )
    everything = int(times.sum()) or 1
    order = np.lexsort((worked, group))
    group, worked, weight = group[order], worked[order], weight[order]
    edges: Int64s = np.searchsorted(group, np.arange(len(names) + 1))
    totals = []
    for number in np.flatnonzero(counts).tolist():
        own = slice(int(edges[number]), int(edges[number + 1]))
        passed: Int64s = np.cumsum(weight[own])
        middle = int(np.searchsorted(passed, int(passed[len(passed) - 1]) // 2, side="right"))
        totals.append(
            GroupTotal(
                name=names[number],
                count=int(counts[number]),
                total_ns=int(times[number]),
                share=int(times[number]) / everything,
                min_ns=int(worked[own][0]),
                median_ns=int(worked[own][middle]),
                max_ns=int(worked[own][-1]),
                flops=int(flops[number]),
                read_bytes=int(reads[number]),
                write_bytes=int(writes[number]),
            )
        )
    return totals


def _sums(group: Int64s, values: Int64s, size: int) -> Int64s:
    sums: Int64s = np.zeros(size, dtype=np.int64)
    np.add.at(sums, group, values)
    return sums


@dataclass(frozen=True, slots=True)
class RowUse:
    """A row in a stretch: events that start in it, and how long it works in it.

    As in the summary, an engine that waits between the tiles of an operator does not work.
    """

    row: TraceRow
    events: int
    busy_ns: int


def row_uses(trace: Trace, rows: Iterable[TraceRow], from_ns: int, to_ns: int) -> tuple[RowUse, ...]:
    """Return how busy rows are in a stretch; samples of the computer and annotations are left out.

    Args:
        trace: the events.
        rows: of the trace.
        from_ns: start of the stretch, nanoseconds since the first event.
        to_ns: its end.
    """
    edges = np.array([from_ns, max(to_ns, from_ns + 1)], dtype=np.int64)
    uses = []
    for row in rows:
        if row.track in IDLE_TRACKS:
            continue
        first, last = row.events.first_from(edges).tolist()
        busy = int(row.events.busy_between(edges)[0])
        if not row.track.measured:
            busy -= _waited_ns(trace, row, int(edges[0]), int(edges[1]))
        uses.append(RowUse(row, last - first, max(busy, 0)))
    return tuple(uses)


def _waited_ns(trace: Trace, row: TraceRow, from_ns: int, to_ns: int) -> int:
    """Return how long the events of a row wait within a stretch; waits are spread evenly over an event."""
    total = 0.0
    for part in row.events.between(from_ns, to_ns).parts():
        start, duration = part.events.start, part.events.duration
        waits = duration - trace.columns.worked_ns(part.events.action, duration)
        inside = np.minimum(start + duration, to_ns) - np.maximum(start, from_ns)
        total += part.weight * float((waits * (np.maximum(inside, 0) / np.maximum(duration, 1))).sum())
    return round(total)


def range_operators(trace: Trace, from_ns: int, to_ns: int, limit: int) -> tuple[OperatorTotal, ...]:
    """Return the operators of events that touch a stretch, with their whole length, the longest first."""
    return top_operators(between(trace, from_ns, to_ns), limit)
