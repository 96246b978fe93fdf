"""Protocol buffers of other programs, encoded by hand: Perfetto's native format and TensorBoard's XSpace.

Perfetto (perfetto/trace/*.proto): two packets an event, names interned. The parts that all events of an action on a line
share are encoded once; only the timestamp is new. Events of a line never overlap, so begin and end packets nest.

TensorBoard's profile plugin (xplane.proto, OpenXLA): `<directory>/plugins/profile/<run>/<host>.xplane.pb`. A plane is a
clock of a NeuronCore, as a group of the other timelines is; a line has events that never overlap.
"""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from neurontools.base.protowire import encode_message, encode_number, encode_text, encode_varint
from neurontools.profiler.capture.format import Track
from neurontools.profiler.exchange.export_timeline import counter_groups, event_blocks, layout, values

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.profiler.exchange.export_timeline import Group, Line, Progress
    from neurontools.profiler.trace.intervals import Int64s
    from neurontools.profiler.trace.rows import EventBlock
    from neurontools.profiler.trace.trace import Trace, TraceAction


Bytes: TypeAlias = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class ByteColumn:
    """Bytes by event: the first `length` of each row."""

    data: Bytes
    length: Int64s

    def take(self, numbers: Int64s) -> ByteColumn:
        """Return rows by number."""
        return ByteColumn(self.data[numbers], self.length[numbers])


def constant(content: bytes, count: int) -> ByteColumn:
    """Return the same bytes for all events."""
    row = np.frombuffer(content, dtype=np.uint8)
    return ByteColumn(np.broadcast_to(row, (count, len(row))), np.broadcast_to(np.int64(len(row)), (count,)))


def texts(contents: Sequence[bytes]) -> ByteColumn:
    """Return a row for each text."""
    length: Int64s = np.array([len(content) for content in contents], dtype=np.int64)
    width = int(length.max(initial=0))
    joined = b"".join(content.ljust(width, b"\0") for content in contents)
    return ByteColumn(np.frombuffer(joined, dtype=np.uint8).reshape(len(contents), width), length)


def varints(values: Int64s) -> ByteColumn:
    """Return non-negative numbers as base-128 varints."""
    length: Int64s = np.ones(len(values), dtype=np.int64)
    largest = int(values.max(initial=0))
    width = max(1, -(-largest.bit_length() // 7))
    data: Bytes = np.empty((len(values), width), dtype=np.uint8)
    rest = values
    for place in range(width):
        low = rest & 0x7F
        rest = rest >> 7
        more = rest > 0
        length += more
        data[:, place] = low | (more.astype(np.int64) << 7)
    return ByteColumn(data, length)


def message(*columns: ByteColumn) -> tuple[ByteColumn, ...]:
    """Return columns behind their common length: the content of a length-delimited field."""
    return varints(sum((column.length for column in columns), start=np.zeros(1, dtype=np.int64))), *columns


def join(*columns: ByteColumn) -> bytes:
    """Return the bytes of all events, one event after another."""
    data = np.concatenate([column.data for column in columns], axis=1)
    chosen = np.concatenate(
        [np.arange(column.data.shape[1]) < column.length[:, None] for column in columns], axis=1
    )
    joined: bytes = data[chosen].tobytes()
    return joined


_SEQUENCE = 1
# Field numbers of perfetto/trace/*.proto
_TRACE_PACKET = 1
_TIMESTAMP, _SEQUENCE_ID, _TRACK_EVENT, _INTERNED, _FLAGS, _DESCRIPTOR = 8, 10, 11, 12, 13, 60
_CLEARED, _NEEDS_STATE = 1, 2
_UUID, _NAME, _PROCESS, _THREAD, _PARENT, _ORDERING, _RANK = 1, 2, 3, 4, 5, 11, 12
_EXPLICIT = 3
_TYPE, _EVENT_UUID, _NAME_IID, _ANNOTATION = 9, 11, 10, 4
_BEGIN, _END, _COUNTER = 1, 2, 4
_COUNTER_TRACK = 8
_LARGEST_MATRIX = 1 << 26  # bytes
_GROUP_UUID = 1 << 32
_EXECUTION = "execution"
_NUMBERS = ("flops", "read_bytes", "write_bytes", "active_time_ns")
_TEXTS = ("opcode", "queue", "shape", "source")
_ANNOTATION_NAMES = (*_NUMBERS, *_TEXTS, _EXECUTION)
_PER_EXECUTION = {Track.RUNTIME, Track.HARDWARE, Track.MODEL}
_PACKET_FIELD = bytes((_TRACE_PACKET << 3 | 2,))
_STAMP_FIELD = bytes((_TIMESTAMP << 3,))
_EVENT_FIELD = bytes((_TRACK_EVENT << 3 | 2,))
_COUNTER_VALUE = encode_varint(30 << 3)


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
    for line, block in event_blocks(trace, lines, progress):
        file.write(encoders[line.number].encode(block))
    for number, (group_number, track) in enumerate(counter_groups(trace), len(lines) + 1):
        file.write(_packet(_counter(number, group_number, track.name)))
        for times, counted in values(trace, track):
            file.write(_counter_packets(number, times, counted))


def _counter_packets(number: int, times: Int64s, found: Int64s) -> bytes:
    """Return the packets of the steps of a counter."""
    count = len(times)
    head = encode_number(_TYPE, _COUNTER) + encode_number(_EVENT_UUID, number) + _COUNTER_VALUE
    event = message(constant(head, count), varints(found))
    return join(
        constant(_PACKET_FIELD, count),
        *message(
            constant(_STAMP_FIELD, count),
            varints(times),
            constant(encode_number(_SEQUENCE_ID, _SEQUENCE) + _EVENT_FIELD, count),
            *event,
            constant(encode_number(_FLAGS, _NEEDS_STATE), count),
        ),
    )


class _LineEncoder:
    """Packets of the events of one line."""

    def __init__(self, trace: Trace, line: Line, names: dict[str, int]) -> None:
        self._trace = trace
        self._names = names
        self._uuid = encode_number(_EVENT_UUID, line.number)
        self._end = _tail(encode_number(_TYPE, _END), self._uuid)
        self._begin: dict[tuple[int, int], bytes] = {}
        self._has_executions = line.row.track in _PER_EXECUTION

    def encode(self, block: EventBlock) -> bytes:
        """Return the packets of some events."""
        count = len(block)
        key = block.action.astype(np.int64) << 32
        if self._has_executions:
            key |= block.execution
            self._begin.clear()  # each begin occurs once
        keys, number = np.unique(key, return_inverse=True)
        tails = texts([self._tail_of(key >> 32, key & 0xFFFFFFFF) for key in keys.tolist()])
        if count > 1 and count * tails.data.shape[1] > _LARGEST_MATRIX:
            middle = count // 2
            return self.encode(block.take(slice(middle))) + self.encode(block.take(slice(middle, count)))
        begin = tails.take(number)
        field, stamp = constant(_PACKET_FIELD, count), constant(_STAMP_FIELD, count)
        return join(
            field,
            *message(stamp, varints(block.start), begin),
            field,
            *message(stamp, varints(block.start + block.duration), constant(self._end, count)),
        )

    def _tail_of(self, action: int, execution: int) -> bytes:
        tail = self._begin.get((action, execution))
        if tail is None:
            traced = self._trace.actions[action]
            tail = self._begin[action, execution] = _tail(
                encode_number(_TYPE, _BEGIN),
                self._uuid,
                encode_number(_NAME_IID, self._names[traced.name]),
                _annotations(traced, execution),
            )
        return tail


def _tail(*event: bytes) -> bytes:
    return (
        encode_number(_SEQUENCE_ID, _SEQUENCE)
        + encode_message(_TRACK_EVENT, *event)
        + encode_number(_FLAGS, _NEEDS_STATE)
    )


def _annotations(action: TraceAction, execution: int) -> bytes:
    numbers = (action.flops, action.read_bytes, action.write_bytes, action.busy_ns)
    texts = (action.opcode, action.queue_name, action.shape, action.source)
    annotations = [
        _annotation(name, encode_number(4, value))
        for name, value in zip(_NUMBERS, numbers, strict=True)
        if value
    ]
    annotations += [
        _annotation(name, encode_text(6, value)) for name, value in zip(_TEXTS, texts, strict=True) if value
    ]
    if action.track in _PER_EXECUTION:
        annotations.append(_annotation(_EXECUTION, encode_number(4, execution)))
    return b"".join(annotations)


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


def _counter(number: int, group: int, name: str) -> bytes:
    return encode_message(
        _DESCRIPTOR,
        encode_number(_UUID, number),
        encode_text(_NAME, name),
        encode_number(_PARENT, _GROUP_UUID + group),
        encode_message(_COUNTER_TRACK),
        encode_number(_RANK, number),
    )


# Field numbers of xplane.proto
_PLANES = 1
_PLANE_ID, _PLANE_NAME, _LINES, _EVENT_METADATA = 1, 2, 3, 4
_LINE_ID, _LINE_NAME, _EVENTS, _DISPLAY_NAME, _TIMESTAMP_NS = 1, 2, 4, 11, 3
_MAP_KEY, _MAP_VALUE, _METADATA_ID, _METADATA_NAME = 1, 2, 1, 2
_PS = 1000


def write_tensorboard(trace: Trace, directory: str, progress: Progress | None = None) -> None:
    """Write the log directory; earlier runs in it stay."""
    run = time.strftime("%Y_%m_%d_%H_%M_%S", time.gmtime(trace.origin_unix_ns // 10**9 or None))
    folder = os.path.join(directory, "plugins", "profile", run)
    os.makedirs(folder)
    with open(os.path.join(folder, f"{socket.gethostname()}.xplane.pb"), "wb") as file:
        file.writelines(_planes(trace, progress))


def _planes(trace: Trace, progress: Progress | None) -> list[bytes]:
    groups, lines = layout(trace)
    events: dict[int, list[bytes]] = {line.number: [] for line in lines}
    used: dict[int, set[int]] = {group.number: set() for group in groups}
    names = {group.number: f"/device:CUSTOM:{group.name}" for group in groups}
    for line, block in event_blocks(trace, lines, progress):
        used[line.group].update(np.unique(block.action).tolist())
        events[line.number].append(_line_events(block))
    return [
        encode_message(
            _PLANES,
            encode_number(_PLANE_ID, number),
            encode_text(_PLANE_NAME, names[number]),
            *(_plane_line(trace, line, events[line.number]) for line in lines if line.group == number),
            *(_event_metadata(action + 1, trace.actions[action].name) for action in sorted(used[number])),
        )
        for number in names
    ]


def _line_events(block: EventBlock) -> bytes:
    count = len(block)
    return join(
        constant(bytes((_EVENTS << 3 | 2,)), count),
        *message(
            constant(b"\x08", count),
            varints(block.action.astype(np.int64) + 1),
            constant(b"\x10", count),
            varints(block.start * _PS),
            constant(b"\x18", count),
            varints(block.duration * _PS),
        ),
    )


def _plane_line(trace: Trace, line: Line, events: list[bytes]) -> bytes:
    return encode_message(
        _LINES,
        encode_number(_LINE_ID, line.number),
        encode_text(_LINE_NAME, line.name),
        encode_number(_TIMESTAMP_NS, trace.origin_unix_ns),
        *events,
        encode_text(_DISPLAY_NAME, line.name),
    )


def _event_metadata(number: int, name: str) -> bytes:
    metadata = encode_message(
        _MAP_VALUE, encode_number(_METADATA_ID, number), encode_text(_METADATA_NAME, name)
    )
    return encode_message(_EVENT_METADATA, encode_number(_MAP_KEY, number), metadata)
