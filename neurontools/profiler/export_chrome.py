"""Chrome trace_event JSON, one event per line (profiler.md section 4.1): Perfetto, chrome://tracing, viztracer.

Thread ids count from 1 and are unique, events of a thread never overlap, times are microseconds with three decimals
that hold every nanosecond. The file is readable even when writing it was interrupted.
"""

from __future__ import annotations

import json
from typing import IO, TYPE_CHECKING, Any

from neurontools.profiler.export_rows import layout
from neurontools.profiler.meta import CLOCKS
from neurontools.profiler.records import Track

if TYPE_CHECKING:
    from neurontools.profiler.export_rows import Line, Progress
    from neurontools.profiler.trace import Action, Trace

_BLOCK = 4096


def write_chrome(trace: Trace, file: IO[str], progress: Progress | None = None) -> None:
    """Write a trace.

    Args:
        trace: the events.
        file: open for text.
        progress: called now and then with the events written and their number.
    """
    groups, lines = layout(trace)
    file.write('{"displayTimeUnit":"ns","otherData":' + _dump(_about(trace)) + ',"traceEvents":[\n')
    metadata = []
    for group in groups:
        metadata.append(_metadata("process_name", group.number, 0, {"name": group.name}))
        metadata.append(_metadata("process_sort_index", group.number, 0, {"sort_index": group.number}))
    for line in lines:
        metadata.append(_metadata("thread_name", line.group, line.number, {"name": line.name}))
        metadata.append(_metadata("thread_sort_index", line.group, line.number, {"sort_index": line.number}))
    file.write(",\n".join(metadata))
    done = 0
    for line in lines:
        done = _write_line(trace, line, file, done, progress)
    file.write("\n]}\n")


def _write_line(trace: Trace, line: Line, file: IO[str], done: int, progress: Progress | None) -> int:
    known: dict[int, tuple[str, str]] = {}
    place = f'"pid":{line.group},"tid":{line.number}'
    for first in range(0, len(line.events), _BLOCK):
        block = line.events[first : first + _BLOCK]
        columns = (trace.start, trace.duration, trace.action, trace.execution, trace.status)
        text = []
        for start, duration, action, execution, status in zip(
            *(column[block].tolist() for column in columns), strict=True
        ):
            if action not in known:
                known[action] = _static(trace.actions[action], place)
            head, arguments = known[action]
            text.append(
                f',\n{head},"ts":{_microseconds(start)},"dur":{_microseconds(duration)},'
                f'"args":{{"execution":{execution},"status":{status}{arguments}}}}}'
            )
        file.write("".join(text))
        done += len(block)
        if progress is not None:
            progress(done, trace.event_count)
    return done


def _static(action: Action, place: str) -> tuple[str, str]:
    category = "modelled" if action.track > Track.HARDWARE else "measured"
    head = f'{{"ph":"X","name":{_dump(action.name)},"cat":"{category}",{place}'
    fields: dict[str, Any] = {
        "opcode": action.opcode,
        "flops": action.flops,
        "read_bytes": action.read_bytes,
        "write_bytes": action.write_bytes,
        "shape": action.shape,
        "source": action.source,
    }
    return head, "".join(f",{_dump(name)}:{_dump(value)}" for name, value in fields.items() if value)


def _microseconds(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03d}"


def _metadata(name: str, pid: int, tid: int, arguments: dict[str, Any]) -> str:
    place = {"pid": pid, "tid": tid} if tid else {"pid": pid}
    return _dump({"ph": "M", "name": name, **place, "args": arguments})


def _about(trace: Trace) -> dict[str, Any]:
    return {
        "is_simulation": True,
        "origin_unix_ns": str(trace.origin_unix_ns),
        "clocks": CLOCKS,
        "processes": [
            {"pid": meta.pid, "instance_type": meta.instance_type, "command": list(meta.command)}
            for meta in trace.processes
        ],
    }


def _dump(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))
