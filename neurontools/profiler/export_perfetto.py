"""Perfetto's native trace format, hand-encoded (profiler.md section 4.2): two packets per event, names interned.

What is the same for every event of an action on a line is encoded once; only the timestamp is new. Events of a line
never overlap (overlapping ones get a line of their own), so begin and end packets nest.
"""

from __future__ import annotations

from typing import IO, TYPE_CHECKING

from neurontools.profiler.export_rows import layout
from neurontools.profiler.protobuf import message, number, text, varint
from neurontools.profiler.records import Track

if TYPE_CHECKING:
    from neurontools.profiler.export_rows import Group, Line, Progress
    from neurontools.profiler.trace import Action, Trace

_BLOCK = 4096
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
_TEXTS = ("opcode", "shape", "source")
_ANNOTATION_NAMES = (*_NUMBERS, *_TEXTS, _EXECUTION)
_PER_EXECUTION = {Track.RUNTIME, Track.HARDWARE, Track.MODEL}


def write_perfetto(trace: Trace, file: IO[bytes], progress: Progress | None = None) -> None:
    """Write a trace.

    Args:
        trace: the events; timestamps in the file are nanoseconds since the first one.
        file: open for bytes.
        progress: called now and then with the events written and their number.
    """
    groups, lines = layout(trace)
    names = _names(trace)
    file.write(_packet(number(_FLAGS, _CLEARED), _interned(names)))
    for group in groups:
        file.write(_packet(_group(group)))
    for line in lines:
        file.write(_packet(_line(line)))
    done = 0
    for line in lines:
        encoder = _LineEncoder(trace, line, names)
        for first in range(0, len(line.events), _BLOCK):
            block = line.events[first : first + _BLOCK]
            file.write(encoder.encode(block))
            done += len(block)
            if progress is not None:
                progress(done, trace.event_count)


class _LineEncoder:
    """Packets of the events of one line."""

    def __init__(self, trace: Trace, line: Line, names: dict[str, int]) -> None:
        self._trace = trace
        self._names = names
        self._uuid = number(_EVENT_UUID, line.number)
        self._end = _tail(number(_TYPE, _END), self._uuid)
        self._begin: dict[int, bytes] = {}

    def encode(self, block: object) -> bytes:
        """Return the packets of some events, by their numbers."""
        trace = self._trace
        parts: list[bytes] = []
        columns = (trace.start, trace.duration, trace.action, trace.execution)
        for start, duration, action, execution in zip(
            *(column[block].tolist() for column in columns), strict=True
        ):
            begin = self._begin.get(action) or self._encode_begin(action, execution)
            parts += (_timed(start, begin), _timed(start + duration, self._end))
        return b"".join(parts)

    def _encode_begin(self, action: int, execution: int) -> bytes:
        known = self._trace.actions[action]
        begin = _tail(
            number(_TYPE, _BEGIN),
            self._uuid,
            number(_NAME_IID, self._names[known.name]),
            _annotations(known, execution),
        )
        if known.track not in _PER_EXECUTION:
            self._begin[action] = begin
        return begin


def _timed(timestamp: int, tail: bytes) -> bytes:
    stamp = varint(timestamp)
    return b"\x0a" + varint(1 + len(stamp) + len(tail)) + b"\x40" + stamp + tail


def _tail(*event: bytes) -> bytes:
    return number(_SEQUENCE_ID, _SEQUENCE) + message(_TRACK_EVENT, *event) + number(_FLAGS, _NEEDS_STATE)


def _annotations(action: Action, execution: int) -> bytes:
    numbers = (action.flops, action.read_bytes, action.write_bytes)
    texts = (action.opcode, action.shape, action.source)
    found = [
        _annotation(name, number(4, value)) for name, value in zip(_NUMBERS, numbers, strict=True) if value
    ]
    found += [_annotation(name, text(6, value)) for name, value in zip(_TEXTS, texts, strict=True) if value]
    if action.track in _PER_EXECUTION:
        found.append(_annotation(_EXECUTION, number(4, execution)))
    return b"".join(found)


def _annotation(name: str, value: bytes) -> bytes:
    return message(_ANNOTATION, number(1, _ANNOTATION_NAMES.index(name) + 1), value)


def _packet(*parts: bytes) -> bytes:
    return message(_TRACE_PACKET, number(_SEQUENCE_ID, _SEQUENCE), *parts)


def _names(trace: Trace) -> dict[str, int]:
    names: dict[str, int] = {}
    for action in trace.actions:
        names.setdefault(action.name, len(names) + 1)
    return names


def _interned(names: dict[str, int]) -> bytes:
    events = [message(2, number(1, iid), text(2, name)) for name, iid in names.items()]
    annotations = [message(3, number(1, iid), text(2, name)) for iid, name in enumerate(_ANNOTATION_NAMES, 1)]
    return message(_INTERNED, *events, *annotations)


def _group(group: Group) -> bytes:
    process = message(_PROCESS, number(1, group.number), text(6, group.name))
    return message(
        _DESCRIPTOR, number(_UUID, _GROUP_UUID + group.number), process, number(_ORDERING, _EXPLICIT)
    )


def _line(line: Line) -> bytes:
    return message(
        _DESCRIPTOR,
        number(_UUID, line.number),
        text(_NAME, line.name),
        number(_PARENT, _GROUP_UUID + line.group),
        number(_RANK, line.number),
    )
