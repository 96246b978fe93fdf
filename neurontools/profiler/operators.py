"""Where device time goes: operators by total time, and time per engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from neurontools.profiler.intervals import busy_ns
from neurontools.profiler.records import ENGINES, Track

if TYPE_CHECKING:
    from neurontools.profiler.arrays import Int64s
    from neurontools.profiler.trace import Trace


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
