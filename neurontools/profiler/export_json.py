"""The vendor's legacy JSON (profiler.md section 1.5): `summary`, `instruction` and system events in one file, streamed."""

from __future__ import annotations

import json
from typing import IO, TYPE_CHECKING, Any

from neurontools.profiler.summary_text import report, to_json

if TYPE_CHECKING:
    from neurontools.profiler.export_rows import Progress
    from neurontools.profiler.trace import Action, Row, Trace

_BLOCK = 4096


def write_json(trace: Trace, file: IO[str], progress: Progress | None = None) -> None:
    """Write a trace: timestamps are unix nanoseconds, `summary` is what `summary-json` prints.

    Args:
        trace: the events.
        file: open for text.
        progress: called now and then with the events written and their number.
    """
    file.write('{"is_simulation":true,"summary":[' + _dump(to_json(report(trace, None))) + "]")
    done = 0
    for key, measured in (("instruction", False), ("system_profile", True)):
        file.write(f',\n"{key}":[')
        separator = "\n"
        for row in trace.rows:
            if row.track.measured is not measured:
                continue
            for first in range(row.first, row.last, _BLOCK):
                last = min(first + _BLOCK, row.last)
                texts = [_dump(_event(trace, row, number)) for number in range(first, last)]
                file.write(separator + ",\n".join(texts))
                separator = ",\n"
                done += last - first
                if progress is not None:
                    progress(done, trace.event_count)
        file.write("]")
    file.write("}\n")


def _event(trace: Trace, row: Row, number: int) -> dict[str, Any]:
    action = trace.actions[trace.action[number]]
    event = {
        "timestamp": int(trace.start[number]) + trace.origin_unix_ns,
        "duration": int(trace.duration[number]),
        "execution": int(trace.execution[number]),
        "status": int(trace.status[number]),
        "nc_idx": row.nc,
        "process_id": row.pid,
        "instance_id": trace.processes[row.process].instance_id,
    }
    return {**_named(action, row, number), **event}


def _named(action: Action, row: Row, number: int) -> dict[str, Any]:
    if row.track.measured:
        group = f"nrt-nc-{row.nc:03d}"
        return {"id": number, "name": action.name, "trace_event_source": row.track.label, "group": group}
    return {
        "label": row.track.label,
        "hlo_name": action.name,
        "opcode": action.opcode,
        "operands": action.shape,
        "flops": action.flops,
        "read_bytes": action.read_bytes,
        "write_bytes": action.write_bytes,
        "source": action.source,
    }


def _dump(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))
