"""What the trace exporters share: groups (one per process clock and core) and lines on which no events overlap."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from neurontools.profiler.lanes import lanes

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.profiler.arrays import Int64s
    from neurontools.profiler.trace import Row, Trace

    Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Line:
    """One line of an exported timeline. `number` and `group` are unique and count from 1; `events` index the trace."""

    number: int
    group: int
    name: str
    events: Int64s


@dataclass(frozen=True, slots=True)
class Group:
    """Lines of one clock of one NeuronCore of one process."""

    number: int
    name: str


def layout(trace: Trace) -> tuple[tuple[Group, ...], tuple[Line, ...]]:
    """Return the groups and the lines of a trace; a row whose events overlap becomes several lines."""
    groups: dict[tuple[int, int, bool], Group] = {}
    lines: list[Line] = []
    for row in trace.rows:
        key = (row.process, row.nc, row.track.measured)
        group = groups.setdefault(key, Group(len(groups) + 1, _group_name(row)))
        lane = lanes(trace.start[row.span], trace.duration[row.span])
        for number in range(int(lane.max()) + 1 if len(lane) else 0):
            name = row.track.label if number == 0 else f"{row.track.label} {number + 1}"
            events: Int64s = np.flatnonzero(lane == number) + row.first
            lines.append(Line(len(lines) + 1, group.number, name, events))
    return tuple(groups.values()), tuple(lines)


def _group_name(row: Row) -> str:
    clock = "wall clock, measured" if row.track.measured else "device clock, modelled"
    return f"pid {row.pid} NC{row.nc} ({clock})"
