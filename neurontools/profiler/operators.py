"""Totals by operator and engine, and the details of one event."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from neurontools.base import units
from neurontools.profiler.intervals import busy_ns
from neurontools.profiler.meta import CLOCKS
from neurontools.profiler.records import ENGINES, Track

if TYPE_CHECKING:
    from neurontools.profiler.intervals import Int64s
    from neurontools.profiler.trace import Trace, TraceRow


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


@dataclass(frozen=True, slots=True)
class EngineTotal:
    """One engine over all NeuronCores. `busy_ns` is the union per core, added up; times are modelled."""

    engine: str
    count: int
    total_ns: int
    busy_ns: int


def top_operators(trace: Trace, limit: int | None = None) -> tuple[OperatorTotal, ...]:
    """Return the operators with the largest total time first, at most `limit` of them."""
    rows = trace.rows_of(*ENGINES, Track.DMA)
    count: Int64s = np.zeros(len(trace.actions), dtype=np.int64)
    total: Int64s = np.zeros(len(trace.actions), dtype=np.int64)
    for row in rows:
        action = trace.action[row.span]
        count += np.bincount(action, minlength=len(count))
        np.add.at(total, action, trace.duration[row.span])
    groups: dict[tuple[str, str, str], list[int]] = {}
    for number in np.flatnonzero(count):
        action = trace.actions[number]
        sums = groups.setdefault((action.name, action.opcode, action.track.label), [0, 0, 0, 0])
        calls = int(count[number])
        sums[0] += calls
        sums[1] += int(total[number])
        sums[2] += calls * action.flops
        sums[3] += calls * (action.read_bytes + action.write_bytes)
    everything = int(total.sum()) or 1
    found = [
        OperatorTotal(
            *key,
            count=sums[0],
            total_ns=sums[1],
            share=sums[1] / everything,
            flops=sums[2],
            bytes_moved=sums[3],
        )
        for key, sums in groups.items()
    ]
    found.sort(key=lambda operator: (-operator.total_ns, operator.name, operator.engine, operator.opcode))
    return tuple(found[:limit])


def engine_totals(trace: Trace) -> tuple[EngineTotal, ...]:
    """Return the time of every engine that did something."""
    found = []
    for track in (*ENGINES, Track.DMA):
        rows = trace.rows_of(track)
        if rows:
            found.append(
                EngineTotal(
                    engine=track.label,
                    count=sum(row.last - row.first for row in rows),
                    total_ns=sum(int(trace.duration[row.span].sum()) for row in rows),
                    busy_ns=sum(busy_ns(trace.start[row.span], trace.duration[row.span]) for row in rows),
                )
            )
    return tuple(found)


def event_details(trace: Trace, event: int) -> tuple[tuple[str, str], ...]:
    """Return names and values of an event as text, without empty ones."""
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
        ("start", f"{units.format_ns(start)} ({start} ns after the first event)"),
        ("duration", f"{units.format_ns(duration)} ({duration} ns)"),
        ("clock", CLOCKS["wall" if row.track.measured else "device"]),
        ("shape", action.shape),
        ("source", action.source),
        ("flops", _rate(action.flops, seconds, "flop/s")),
        ("read", f"{action.read_bytes} B" if action.read_bytes else ""),
        ("written", f"{action.write_bytes} B" if action.write_bytes else ""),
        ("throughput", f"{units.format_count(moved / seconds)}B/s" if moved and seconds else ""),
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
    return f"{amount} ({units.format_count(amount / seconds)}{unit})" if seconds else str(amount)


def _gap(trace: Trace, row: TraceRow, event: int) -> str:
    if event == row.first:
        return ""
    before = event - 1
    gap = int(trace.start[event] - trace.start[before] - trace.duration[before])
    name = trace.actions[trace.action[before]].name
    return f"{units.format_ns(gap)} after {name}" if gap >= 0 else f"overlaps {name}"
