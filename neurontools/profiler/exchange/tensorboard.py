"""TensorBoard's profile plugin: an XSpace protocol buffer in the directories that it looks for (xplane.proto, OpenXLA).

    <directory>/plugins/profile/<run>/<host>.xplane.pb

A plane is a clock of a NeuronCore, as a group of the other timelines is; a line has events that never overlap.
"""

from __future__ import annotations

import os
import socket
import time
from typing import TYPE_CHECKING

import numpy as np

from neurontools.base.protowire import encode_message, encode_number, encode_text
from neurontools.profiler.exchange.export_timeline import event_blocks, layout
from neurontools.profiler.exchange.wire_columns import constant, join, message, varints

if TYPE_CHECKING:
    from neurontools.profiler.exchange.export_timeline import Line, Progress
    from neurontools.profiler.trace.rows import EventBlock
    from neurontools.profiler.trace.trace import Trace

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
        events[line.number].append(_events(block))
    return [
        encode_message(
            _PLANES,
            encode_number(_PLANE_ID, number),
            encode_text(_PLANE_NAME, names[number]),
            *(_line(trace, line, events[line.number]) for line in lines if line.group == number),
            *(_metadata(action + 1, trace.actions[action].name) for action in sorted(used[number])),
        )
        for number in names
    ]


def _events(block: EventBlock) -> bytes:
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


def _line(trace: Trace, line: Line, events: list[bytes]) -> bytes:
    return encode_message(
        _LINES,
        encode_number(_LINE_ID, line.number),
        encode_text(_LINE_NAME, line.name),
        encode_number(_TIMESTAMP_NS, trace.origin_unix_ns),
        *events,
        encode_text(_DISPLAY_NAME, line.name),
    )


def _metadata(number: int, name: str) -> bytes:
    metadata = encode_message(
        _MAP_VALUE, encode_number(_METADATA_ID, number), encode_text(_METADATA_NAME, name)
    )
    return encode_message(_EVENT_METADATA, encode_number(_MAP_KEY, number), metadata)
