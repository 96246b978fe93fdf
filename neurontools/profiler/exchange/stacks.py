"""Time by stack, for flame graphs: speedscope's file format and folded stacks.

A stack of a capture is module, inner modules, source line, operator, engine; its weight is the modelled time in which the
engine works. With call stacks in the capture, what the host did has stacks of their frames, weighted by measured time, as
a profile of its own. A stack of another program's trace is a thread and the events that hold each other; its weight is their own
time, measured.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from neurontools import __version__
from neurontools.base.text import printable
from neurontools.profiler.analysis.tree import TreeKind, path_of
from neurontools.profiler.capture.format import DEVICE_TRACKS, Track
from neurontools.profiler.trace.intervals import nest
from neurontools.runtime.host_activity import HostEvent

if TYPE_CHECKING:
    from neurontools.profiler.trace.intervals import Int64s
    from neurontools.profiler.trace.trace import Trace, TraceAction, TraceRow

_SCHEMA = "https://www.speedscope.app/file-format-schema.json"


@dataclass(frozen=True, slots=True)
class StackFrame:
    """One level of a stack; `line` is 0 if unknown."""

    name: str
    file: str = ""
    line: int = 0


Stack = tuple[StackFrame, ...]


def stacks(trace: Trace) -> dict[str, dict[Stack, int]]:
    """Return the weights of stacks in nanoseconds, by NeuronCore or by row of another program's trace."""
    if trace.measured_by:
        by_row: dict[str, dict[Stack, int]] = {}
        for row in trace.rows_of(Track.DEVICE, Track.HOST):
            by_row[_unique(f"{row.process_label} {row.label}", by_row)] = _nested(trace, row)
        return by_row
    by_core: dict[str, dict[Stack, int]] = {}
    stack_of: dict[int, Stack] = {}
    for row in trace.rows_of(*DEVICE_TRACKS):
        core = by_core.setdefault(f"{row.process_label} NC{row.nc}", {})
        for action, worked in _sums(trace, row):
            if action not in stack_of:
                stack_of[action] = _stack(trace.actions[action])
            core[stack_of[action]] = core.get(stack_of[action], 0) + worked
    if any(action.stack for action in trace.actions):
        for row in trace.rows_of(Track.HOST):
            by_core[f"{row.process_label} {row.label} (measured)"] = _called(trace, row)
    return by_core


def _called(trace: Trace, row: TraceRow) -> dict[Stack, int]:
    """Return the own time of what the host did by the program's frames; steps hold everything, so they are left out."""
    weights: dict[Stack, int] = {}
    events = row.events.block(0, row.events.count)
    kinds = [action.opcode for action in trace.actions]
    events = events.take(
        np.array([kinds[action] != HostEvent.STEP.name for action in events.action], dtype=bool)
    )
    own_ns = nest(events.start, events.duration).own_ns
    for number, ns in zip(events.action.tolist(), own_ns.tolist(), strict=True):
        if ns:
            action = trace.actions[number]
            frames = (_frame_of(*frame.partition(" ")[::2]) for frame in reversed(action.stack))
            kind = action.opcode.lower()
            stack = (*frames, StackFrame(kind if action.name == kind else f"{kind} {action.name}"))
            weights[stack] = weights.get(stack, 0) + ns
    return weights


def _frame_of(name: str, place: str) -> StackFrame:
    file, _, line = place.rpartition(":")
    return StackFrame(name, file, int(line) if line.isdecimal() else 0)


def _unique(name: str, known: dict[str, dict[Stack, int]]) -> str:
    unique, number = name, 1
    while unique in known:
        number += 1
        unique = f"{name} ({number})"
    return unique


def _sums(trace: Trace, row: TraceRow) -> list[tuple[int, int]]:
    size = len(trace.actions)
    total: Int64s = np.zeros(size, dtype=np.int64)
    for part in row.events.parts():
        worked = trace.columns.worked_ns(part.events.action, part.events.duration)
        np.add.at(total, part.events.action, part.weight * worked)
    return [(number, int(total[number])) for number in np.flatnonzero(total).tolist()]


def _stack(action: TraceAction) -> Stack:
    path = [StackFrame(name) for name in path_of(action, TreeKind.LAYER)] if action.layer else []
    if action.source:
        path.append(_frame_of(action.source, action.source))
    return (*path, StackFrame(action.name), StackFrame(f"{action.opcode} ({action.track.label})"))


def _nested(trace: Trace, row: TraceRow) -> dict[Stack, int]:
    """Return the own time of the events of a row by the events around them."""
    weights: dict[Stack, int] = {}
    for part in row.events.parts():
        nesting = nest(part.events.start, part.events.duration)
        # Stacks by number: that of the event around an event, with its own action.
        stack: Int64s = np.zeros(len(part.events), dtype=np.int64)
        frames: list[Stack] = [()]
        size = len(trace.actions)
        for level in nesting.levels:
            around = nesting.parent[level]
            outer = np.where(around < 0, 0, stack[np.maximum(around, 0)])
            keys, number = np.unique(outer * size + part.events.action[level], return_inverse=True)
            stack[level] = number + len(frames)
            frames += [
                (*frames[key // size], StackFrame(trace.actions[key % size].name)) for key in keys.tolist()
            ]
        total: Int64s = np.zeros(len(frames), dtype=np.int64)
        np.add.at(total, stack, nesting.own_ns)
        for number in np.flatnonzero(total).tolist():
            weights[frames[number]] = weights.get(frames[number], 0) + int(total[number])
    return weights


def write_folded(trace: Trace, file: IO[str]) -> None:
    """Write a line `outer;inner;operator 1234` for each stack, times in nanoseconds."""
    for name, weights in stacks(trace).items():
        for stack, weight in sorted(weights.items(), key=lambda item: -item[1]):
            frames = ";".join(_plain(text) for text in (name, *(frame.name for frame in stack)))
            file.write(f"{frames} {weight}\n")


def _plain(text: str) -> str:
    """Return a frame that cannot be taken for two, or for two lines."""
    return printable(text).replace(";", ",").encode("utf-8", "replace").decode() or "?"


def write_speedscope(trace: Trace, file: IO[str]) -> None:
    """Write a sampled profile for each core: a sample for each stack, its weight the time."""
    frames: dict[StackFrame, int] = {}
    profiles: list[dict[str, Any]] = []
    for name, weights_by_stack in stacks(trace).items():
        ordered = sorted(weights_by_stack.items(), key=lambda item: [frame.name for frame in item[0]])
        samples = [[frames.setdefault(frame, len(frames)) for frame in stack] for stack, _ in ordered]
        weights = [weight for _, weight in ordered]
        profiles.append({
            "type": "sampled", "name": name, "unit": "nanoseconds", "startValue": 0, "endValue": sum(weights),
            "samples": samples, "weights": weights,
        })  # fmt: skip
    json.dump(
        {
            "$schema": _SCHEMA,
            "exporter": f"neurontools@{__version__}",
            "name": "measured" if trace.measured_by else "device time, modelled",
            "activeProfileIndex": 0,
            "shared": {"frames": [_frame(frame) for frame in frames]},
            "profiles": profiles,
        },
        file,
        separators=(",", ":"),
    )
    file.write("\n")


def _frame(frame: StackFrame) -> dict[str, Any]:
    stored: dict[str, Any] = {"name": frame.name}
    if frame.file:
        stored["file"] = frame.file
    if frame.line:
        stored["line"] = frame.line
    return stored
