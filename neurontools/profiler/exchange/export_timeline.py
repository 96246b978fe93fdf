"""Timelines for other viewers: groups (one per process, clock and core) of lines on which no events overlap, counters, Chrome JSON.

One event per line of the file. Thread ids count from 1 and are unique, times are microseconds with three decimals that
keep every nanosecond. The file is readable even if writing it was interrupted.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from neurontools.profiler.capture.format import CLOCKS, NO_CORE, SAMPLED_TRACKS, Track
from neurontools.profiler.trace.intervals import LaneChooser, lanes
from neurontools.runtime.host_activity import HostEvent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from neurontools.profiler.trace.rows import EventBlock
    from neurontools.profiler.trace.trace import Trace, TraceAction, TraceRow

    Progress = Callable[[int, int], None]
    from neurontools.profiler.trace.intervals import Floats, Int64s, Mask


BLOCK = 1 << 14  # events at a time


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
    """Return the groups and the lines of a trace; a row whose events overlap becomes several lines.

    Rows of memory have no lines: their events are steps of a counter.
    """
    groups: dict[tuple[int, int, bool], Group] = {}
    lines: list[Line] = []
    for row in trace.rows:
        group = groups.setdefault(_group_key(row), Group(len(groups) + 1, _group_name(row)))
        if row.track is Track.MEMORY or row.track in SAMPLED_TRACKS:
            continue
        for lane in range(_lane_count(row)):
            name = row.name if lane == 0 else f"{row.name} {lane + 1}"
            lines.append(Line(len(lines) + 1, group.number, name, row, lane))
    return tuple(groups.values()), tuple(lines)


def counter_groups(trace: Trace) -> tuple[tuple[int, CounterTrack], ...]:
    """Return the counters of a trace, each with the number of its group."""
    keys = {key: number for number, key in enumerate(dict.fromkeys(map(_group_key, trace.rows)), 1)}
    return tuple((keys[_group_key(track.row)], track) for track in counter_tracks(trace))


def _group_key(row: TraceRow) -> tuple[int, int, bool]:
    return row.process, row.nc, row.track.measured


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
    texts: dict[tuple[int, int], tuple[str, str]] = {}
    for line, block in event_blocks(trace, lines, progress):
        text = []
        for start, duration, action, execution, status in event_tuples(block):
            key = (line.number, action)
            if key not in texts:
                texts[key] = _static(trace, trace.actions[action], f'"pid":{line.group},"tid":{line.number}')
            head, arguments = texts[key]
            text.append(
                f',\n{head},"ts":{_microseconds(start)},"dur":{_microseconds(duration)},'
                f'"args":{{"execution":{execution},"status":{status}{arguments}}}}}'
            )
        file.write("".join(text))
    for group_number, track in counter_groups(trace):
        head = f',\n{{"ph":"C","name":{dump_compact(track.name)},"pid":{group_number},"ts":'
        for times, counted in values(trace, track):
            steps = zip(times.tolist(), counted.tolist(), strict=True)
            file.write(
                "".join(f'{head}{_microseconds(at)},"args":{{"value":{value}}}}}' for at, value in steps)
            )
    file.write("\n]}\n")


def event_tuples(block: EventBlock) -> Iterator[tuple[int, int, int, int, int]]:
    """Return start, duration, action, execution and status of each event."""
    columns = (block.start, block.duration, block.action, block.execution, block.status)
    return zip(*(column.tolist() for column in columns), strict=True)


def event_blocks(
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
            for line in by_row.get(row.first, ()):
                own = block.take(lane == line.lane)
                if len(own):
                    yield line, own
            done += len(block)
            if progress is not None:
                progress(done, trace.event_count)


def _static(trace: Trace, action: TraceAction, place: str) -> tuple[str, str]:
    # The category of another program tells its device from its host.
    category = (trace.measured_by and action.opcode) or ("measured" if action.track.measured else "modelled")
    head = f'{{"ph":"X","name":{dump_compact(action.name)},"cat":{dump_compact(category)},{place}'
    fields: dict[str, Any] = {
        "opcode": action.opcode,
        "queue": action.queue_name,
        "flops": action.flops,
        "read_bytes": action.read_bytes,
        "write_bytes": action.write_bytes,
        "active_time_ns": action.busy_ns,
        "shape": action.shape,
        "source": action.source,
        "stack": list(action.stack),
    }
    return head, "".join(
        f",{dump_compact(name)}:{dump_compact(value)}" for name, value in fields.items() if value
    )


def _microseconds(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03d}"


def _metadata(name: str, pid: int, tid: int, arguments: dict[str, Any]) -> str:
    ids = {"pid": pid, "tid": tid} if tid else {"pid": pid}
    return dump_compact({"ph": "M", "name": name, **ids, "args": arguments})


def _about(trace: Trace) -> dict[str, Any]:
    return {
        "is_simulation": not trace.measured_by,
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
        yield _memory_steps(trace, track.row)
    elif track.row.track is Track.DMA:
        yield from _throughput(trace, track.row)
    else:
        samples = track.row.events.block(0, track.row.events.count)
        yield _last_of_each(samples.start, samples.value)


def _memory_steps(trace: Trace, row: TraceRow) -> tuple[Int64s, Int64s]:
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
        times, changes = _rate_edges(block, moved, times, changes)
        # Ends after the last start wait for the next block, whose events may begin before them.
        ready = len(times) if is_last else int(np.searchsorted(times, block.start[-1], side="left"))
        if ready:
            levels = level + np.cumsum(changes[:ready])
            level = float(levels[-1])
            yield _last_of_each(times[:ready], np.rint(np.maximum(levels, 0)).astype(np.int64))
            times, changes = times[ready:], changes[ready:]


def _rate_edges(block: EventBlock, moved: Int64s, times: Int64s, changes: Floats) -> tuple[Int64s, Floats]:
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
