"""Timelines for other viewers: Chrome trace_event JSON and Perfetto's native format.

Both have groups (one per process, clock and core) of lines on which no events overlap.

Chrome: one event per line of the file. Thread ids count from 1 and are unique, times are microseconds with three decimals
that keep every nanosecond. The file is readable even if writing it was interrupted.

Perfetto: encoded by hand, two packets per event, names interned. The parts that all events of an action on a line share
are encoded once; only the timestamp is new. Events of a line never overlap, so begin and end packets nest.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

from neurontools.base.protowire import encode_message, encode_number, encode_text, encode_varint
from neurontools.profiler.capture.format import CLOCKS, NO_CORE, Track
from neurontools.profiler.trace.intervals import LaneChooser, lanes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from neurontools.profiler.trace.rows import EventBlock
    from neurontools.profiler.trace.trace import Trace, TraceAction, TraceRow

    Progress = Callable[[int, int], None]

BLOCK = 4096  # events at a time

_SEQUENCE = 1
# Field numbers of perfetto/trace/*.proto
_TRACE_PACKET = 1
_TIMESTAMP, _SEQUENCE_ID, _TRACK_EVENT, _INTERNED, _FLAGS, _DESCRIPTOR = 8, 10, 11, 12, 13, 60
_CLEARED, _NEEDS_STATE = 1, 2
_UUID, _NAME, _PROCESS, _THREAD, _PARENT, _ORDERING, _RANK = 1, 2, 3, 4, 5, 11, 12
_EXPLICIT = 3
_TYPE, _EVENT_UUID, _NAME_IID, _ANNOTATION = 9, 11, 10, 4
_BEGIN, _END = 1, 2
_GROUP_UUID = 1 << 32
_EXECUTION = "execution"
_NUMBERS = ("flops", "read_bytes", "write_bytes")
_TEXTS = ("opcode", "queue", "shape", "source")
_ANNOTATION_NAMES = (*_NUMBERS, *_TEXTS, _EXECUTION)
_PER_EXECUTION = {Track.RUNTIME, Track.HARDWARE, Track.MODEL}


@dataclass(frozen=True, slots=True)
class Line:
    """One line of an exported timeline. `number` and `group` are unique and count from 1; `lane` is one of the row's."""

    number: int
    group: int
    name: str
    row: TraceRow
    lane: int


@dataclass(frozen=True, slots=True)
class Group:
    """Lines of one clock of one NeuronCore of one process."""

    number: int
    name: str


def layout(trace: Trace) -> tuple[tuple[Group, ...], tuple[Line, ...]]:
    """Return the groups and the lines of a trace; a row whose events overlap becomes several lines."""
    groups: dict[tuple[int, int, bool], Group] = {}
    lines: list[Line] = []
    for row in trace.rows:
        key = (row.process, row.nc, row.track.measured)
        group = groups.setdefault(key, Group(len(groups) + 1, _group_name(row)))
        for lane in range(_lane_count(row)):
            name = row.name if lane == 0 else f"{row.name} {lane + 1}"
            lines.append(Line(len(lines) + 1, group.number, name, row, lane))
    return tuple(groups.values()), tuple(lines)


def _lane_count(row: TraceRow) -> int:
    """Return how many events of a row overlap at most: those of its parts never overlap each other."""
    return max(int(lanes(part.events.start, part.events.duration).max()) + 1 for part in row.events.parts())


def _group_name(row: TraceRow) -> str:
    clock = "wall clock, measured" if row.track.measured else "device clock, modelled"
    core = "" if row.nc == NO_CORE else f" NC{row.nc}"
    return f"{row.process_label}{core} ({clock})"


def write_chrome(trace: Trace, file: IO[str], progress: Progress | None = None) -> None:
    """Write a trace to a text file; `progress` gets the number of events written and of all."""
    groups, lines = layout(trace)
    file.write('{"displayTimeUnit":"ns","otherData":' + dump_compact(_about(trace)) + ',"traceEvents":[\n')
    metadata = []
    for group in groups:
        metadata.append(_metadata("process_name", group.number, 0, {"name": group.name}))
        metadata.append(_metadata("process_sort_index", group.number, 0, {"sort_index": group.number}))
    for line in lines:
        metadata.append(_metadata("thread_name", line.group, line.number, {"name": line.name}))
        metadata.append(_metadata("thread_sort_index", line.group, line.number, {"sort_index": line.number}))
    file.write(",\n".join(metadata))
    known: dict[tuple[int, int], tuple[str, str]] = {}
    for line, block in _blocks(trace, lines, progress):
        text = []
        for start, duration, action, execution, status in event_tuples(block):
            key = (line.number, action)
            if key not in known:
                known[key] = _static(trace.actions[action], f'"pid":{line.group},"tid":{line.number}')
            head, arguments = known[key]
            text.append(
                f',\n{head},"ts":{_microseconds(start)},"dur":{_microseconds(duration)},'
                f'"args":{{"execution":{execution},"status":{status}{arguments}}}}}'
            )
        file.write("".join(text))
    file.write("\n]}\n")


def event_tuples(block: EventBlock) -> Iterator[tuple[int, int, int, int, int]]:
    """Return start, duration, action, execution and status of each event."""
    columns = (block.start, block.duration, block.action, block.execution, block.status)
    return zip(*(column.tolist() for column in columns), strict=True)


def _blocks(
    trace: Trace, lines: Iterable[Line], progress: Progress | None
) -> Iterator[tuple[Line, EventBlock]]:
    """Yield the events of each line in blocks; report progress after each block of a row."""
    by_row: dict[int, list[Line]] = {}
    for line in lines:
        by_row.setdefault(line.row.first, []).append(line)
    done = 0
    for row in trace.rows:
        chooser = LaneChooser()
        for block in row.events.blocks(BLOCK):
            lane = chooser.choose(block.start, block.duration)
            for line in by_row[row.first]:
                own = block.take(lane == line.lane)
                if len(own):
                    yield line, own
            done += len(block)
            if progress is not None:
                progress(done, trace.event_count)


def _static(action: TraceAction, place: str) -> tuple[str, str]:
    category = "measured" if action.track.measured else "modelled"
    head = f'{{"ph":"X","name":{dump_compact(action.name)},"cat":"{category}",{place}'
    fields: dict[str, Any] = {
        "opcode": action.opcode,
        "queue": action.queue_name,
        "flops": action.flops,
        "read_bytes": action.read_bytes,
        "write_bytes": action.write_bytes,
        "shape": action.shape,
        "source": action.source,
    }
    return head, "".join(
        f",{dump_compact(name)}:{dump_compact(value)}" for name, value in fields.items() if value
    )


def _microseconds(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03d}"


def _metadata(name: str, pid: int, tid: int, arguments: dict[str, Any]) -> str:
    place = {"pid": pid, "tid": tid} if tid else {"pid": pid}
    return dump_compact({"ph": "M", "name": name, **place, "args": arguments})


def _about(trace: Trace) -> dict[str, Any]:
    return {
        "is_simulation": True,
        "origin_unix_ns": str(trace.origin_unix_ns),
        "clocks": CLOCKS,
        "processes": [
            {
                "pid": meta.pid,
                "rank": meta.rank,
                "instance_type": meta.instance_type,
                "command": list(meta.command),
            }
            for meta in trace.processes
        ],
    }


def dump_compact(value: object) -> str:
    """Return JSON without blanks."""
    return json.dumps(value, separators=(",", ":"))


def write_perfetto(trace: Trace, file: IO[bytes], progress: Progress | None = None) -> None:
    """Write a trace to a binary file; timestamps are nanoseconds since the first event.

    `progress` gets the number of events written and of all.
    """
    groups, lines = layout(trace)
    names = _names(trace)
    file.write(_packet(encode_number(_FLAGS, _CLEARED), _interned(names)))
    for group in groups:
        file.write(_packet(_group(group)))
    for line in lines:
        file.write(_packet(_line(line)))
    encoders = {line.number: _LineEncoder(trace, line, names) for line in lines}
    for line, block in _blocks(trace, lines, progress):
        file.write(encoders[line.number].encode(block))


class _LineEncoder:
    """Packets of the events of one line."""

    def __init__(self, trace: Trace, line: Line, names: dict[str, int]) -> None:
        self._trace = trace
        self._names = names
        self._uuid = encode_number(_EVENT_UUID, line.number)
        self._end = _tail(encode_number(_TYPE, _END), self._uuid)
        self._begin: dict[int, bytes] = {}

    def encode(self, block: EventBlock) -> bytes:
        """Return the packets of some events."""
        parts: list[bytes] = []
        for start, duration, action, execution, _ in event_tuples(block):
            begin = self._begin.get(action) or self._encode_begin(action, execution)
            parts += (_timed(start, begin), _timed(start + duration, self._end))
        return b"".join(parts)

    def _encode_begin(self, action: int, execution: int) -> bytes:
        known = self._trace.actions[action]
        begin = _tail(
            encode_number(_TYPE, _BEGIN),
            self._uuid,
            encode_number(_NAME_IID, self._names[known.name]),
            _annotations(known, execution),
        )
        if known.track not in _PER_EXECUTION:
            self._begin[action] = begin
        return begin


def _timed(timestamp: int, tail: bytes) -> bytes:
    stamp = encode_varint(timestamp)
    return b"\x0a" + encode_varint(1 + len(stamp) + len(tail)) + b"\x40" + stamp + tail


def _tail(*event: bytes) -> bytes:
    return (
        encode_number(_SEQUENCE_ID, _SEQUENCE)
        + encode_message(_TRACK_EVENT, *event)
        + encode_number(_FLAGS, _NEEDS_STATE)
    )


def _annotations(action: TraceAction, execution: int) -> bytes:
    numbers = (action.flops, action.read_bytes, action.write_bytes)
    texts = (action.opcode, action.queue_name, action.shape, action.source)
    found = [
        _annotation(name, encode_number(4, value))
        for name, value in zip(_NUMBERS, numbers, strict=True)
        if value
    ]
    found += [
        _annotation(name, encode_text(6, value)) for name, value in zip(_TEXTS, texts, strict=True) if value
    ]
    if action.track in _PER_EXECUTION:
        found.append(_annotation(_EXECUTION, encode_number(4, execution)))
    return b"".join(found)


def _annotation(name: str, value: bytes) -> bytes:
    return encode_message(_ANNOTATION, encode_number(1, _ANNOTATION_NAMES.index(name) + 1), value)


def _packet(*parts: bytes) -> bytes:
    return encode_message(_TRACE_PACKET, encode_number(_SEQUENCE_ID, _SEQUENCE), *parts)


def _names(trace: Trace) -> dict[str, int]:
    names: dict[str, int] = {}
    for action in trace.actions:
        names.setdefault(action.name, len(names) + 1)
    return names


def _interned(names: dict[str, int]) -> bytes:
    events = [encode_message(2, encode_number(1, iid), encode_text(2, name)) for name, iid in names.items()]
    annotations = [
        encode_message(3, encode_number(1, iid), encode_text(2, name))
        for iid, name in enumerate(_ANNOTATION_NAMES, 1)
    ]
    return encode_message(_INTERNED, *events, *annotations)


def _group(group: Group) -> bytes:
    process = encode_message(_PROCESS, encode_number(1, group.number), encode_text(6, group.name))
    return encode_message(
        _DESCRIPTOR,
        encode_number(_UUID, _GROUP_UUID + group.number),
        process,
        encode_number(_ORDERING, _EXPLICIT),
    )


def _line(line: Line) -> bytes:
    return encode_message(
        _DESCRIPTOR,
        encode_number(_UUID, line.number),
        encode_text(_NAME, line.name),
        encode_number(_PARENT, _GROUP_UUID + line.group),
        encode_number(_RANK, line.number),
    )
