"""Everything that is known about one event."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.profiler import units
from neurontools.profiler.meta import CLOCKS

if TYPE_CHECKING:
    from neurontools.profiler.trace import Row, Trace


def event_details(trace: Trace, event: int) -> tuple[tuple[str, str], ...]:
    """Return names and values, for people; what an event does not have is left out."""
    row = next(row for row in trace.rows if row.first <= event < row.last)
    action = trace.actions[trace.action[event]]
    start, duration = int(trace.start[event]), int(trace.duration[event])
    model = trace.models[trace.model[event]].value
    seconds = duration / 1e9
    moved = action.read_bytes + action.write_bytes
    fields = (
        ("name", action.name),
        ("opcode", action.opcode),
        ("engine", "" if row.track.measured else row.track.label),
        ("start", f"{units.duration(start)} ({start} ns after the first event)"),
        ("duration", f"{units.duration(duration)} ({duration} ns)"),
        ("clock", CLOCKS["wall" if row.track.measured else "device"]),
        ("shape", action.shape),
        ("source", action.source),
        ("flops", _rate(action.flops, seconds, "flop/s")),
        ("read", f"{action.read_bytes} B" if action.read_bytes else ""),
        ("written", f"{action.write_bytes} B" if action.write_bytes else ""),
        ("throughput", f"{units.count(moved / seconds)}B/s" if moved and seconds else ""),
        ("gap before", _gap(trace, row, event)),
        ("model", f"{model.name} (id {model.model_id}, NEFF {model.neff_hash})"),
        ("execution", str(int(trace.execution[event]))),
        ("status", str(int(trace.status[event])) if trace.status[event] else ""),
        ("process", f"{row.pid}, NC{row.nc} (core {row.core} of the machine)"),
    )
    return tuple((name, value) for name, value in fields if value)


def _rate(amount: int, seconds: float, unit: str) -> str:
    if not amount:
        return ""
    return f"{amount} ({units.count(amount / seconds)}{unit})" if seconds else str(amount)


def _gap(trace: Trace, row: Row, event: int) -> str:
    if event == row.first:
        return ""
    before = event - 1
    gap = int(trace.start[event] - trace.start[before] - trace.duration[before])
    name = trace.actions[trace.action[before]].name
    return f"{units.duration(gap)} after {name}" if gap >= 0 else f"overlaps {name}"
