"""Counters of a timeline: device memory in use, bytes a second that the DMA moves, samples of the computer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from neurontools.profiler.capture.format import Track
from neurontools.runtime.host_activity import HostEvent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from neurontools.profiler.trace.intervals import Floats, Int64s, Mask
    from neurontools.profiler.trace.rows import EventBlock
    from neurontools.profiler.trace.trace import Trace, TraceRow

_NAMES = {
    Track.MEMORY: "HBM bytes",
    Track.DMA: "DMA bytes/s",
    Track.CPU: "host CPU %",
    Track.RAM: "host memory bytes",
}


@dataclass(frozen=True, slots=True)
class CounterTrack:
    """A counter of a row of the trace."""

    name: str
    row: TraceRow


def counter_tracks(trace: Trace) -> tuple[CounterTrack, ...]:
    """Return the counters of a trace."""
    return tuple(CounterTrack(_NAMES[row.track], row) for row in trace.rows_of(*_NAMES))


def values(trace: Trace, track: CounterTrack) -> Iterator[tuple[Int64s, Int64s]]:
    """Yield times and the values from then on, in blocks, in order of time."""
    if track.row.track is Track.MEMORY:
        yield _memory(trace, track.row)
    elif track.row.track is Track.DMA:
        yield from _throughput(trace, track.row)
    else:
        samples = track.row.events.block(0, track.row.events.count)
        yield _last_of_each(samples.start, samples.value)


def _memory(trace: Trace, row: TraceRow) -> tuple[Int64s, Int64s]:
    events = row.events.block(0, row.events.count)
    released = np.array([action.opcode == HostEvent.RELEASE.name for action in trace.actions], dtype=bool)
    changes = np.where(released[events.action], -events.value, events.value)
    # Buffers that are older than the profile may be released in it.
    return _last_of_each(events.start, np.maximum(np.cumsum(changes), 0))


def _throughput(trace: Trace, row: TraceRow) -> Iterator[tuple[Int64s, Int64s]]:
    moved = trace.columns.read_bytes + trace.columns.write_bytes
    times: Int64s = np.zeros(0, dtype=np.int64)
    changes: Floats = np.zeros(0, dtype=np.float64)
    level, count = 0.0, 0
    for block in row.events.blocks():
        count += len(block)
        is_last = count == row.events.count
        times, changes = _edges(block, moved, times, changes)
        # Ends after the last start wait for the next block, whose events may begin before them.
        ready = len(times) if is_last else int(np.searchsorted(times, block.start[-1], side="left"))
        if ready:
            levels = level + np.cumsum(changes[:ready])
            level = float(levels[-1])
            yield _last_of_each(times[:ready], np.rint(np.maximum(levels, 0)).astype(np.int64))
            times, changes = times[ready:], changes[ready:]


def _edges(block: EventBlock, moved: Int64s, times: Int64s, changes: Floats) -> tuple[Int64s, Floats]:
    """Return the edges of events, together with those that wait, in order of time."""
    lasting = block.duration > 0
    start, duration = block.start[lasting], block.duration[lasting]
    rate = moved[block.action[lasting]] * 1e9 / duration
    times = np.concatenate((times, start, start + duration))
    changes = np.concatenate((changes, rate, -rate))
    order = np.argsort(times, kind="stable")
    return times[order], changes[order]


def _last_of_each(times: Int64s, found: Int64s) -> tuple[Int64s, Int64s]:
    """Return the last value of each time."""
    last: Mask = np.append(times[1:] != times[:-1], True)
    return times[last], found[last]
