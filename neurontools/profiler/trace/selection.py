"""Choosing a part of a trace: cores, a stretch of time, models, executions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from neurontools.base.files import read_input
from neurontools.profiler.capture.format import (
    DEVICE_TRACKS,
    NAMED_TRACKS,
    NO_CORE,
    ProfileError,
    Track,
    pairing_hash,
)
from neurontools.profiler.trace.rows import ExecutionFilter, FlatEvents

if TYPE_CHECKING:
    from neurontools.profiler.trace.intervals import Codes, Int64s, Mask
    from neurontools.profiler.trace.trace import CoreRuns, Trace, TraceRow

_ALWAYS_NS = 1 << 62


@dataclass(frozen=True, slots=True)
class SystemFilter:
    """Which events on the wall clock to keep.

    Args:
        ncs: process-local NeuronCores; events of the whole process stay. None for all.
        names: names of events as in NEURON_RT_INSPECT_EVENT_FILTER_TYPE; None for all.
        instances: instance ids; None for all.
    """

    ncs: frozenset[int] | None = None
    names: frozenset[str] | None = None
    instances: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Selection:
    """What to keep.

    Args:
        ncs: process-local NeuronCores; None for all.
        from_ns, to_ns: events that touch this stretch, nanoseconds since the first event; None for no limit.
        skip_warmup: leave out loads and the first execution of every model.
        neff: path of a NEFF; only models loaded from it.
        engines: modelled engines, DMA and collectives to keep; None for all. Other rows stay.
        without_device: leave out what the device did.
        without_system: leave out events on the wall clock.
        system: which of those to keep; None for all.
    """

    ncs: frozenset[int] | None = None
    from_ns: int | None = None
    to_ns: int | None = None
    skip_warmup: bool = False
    neff: str | None = None
    engines: frozenset[Track] | None = None
    without_device: bool = False
    without_system: bool = False
    system: SystemFilter | None = None


def select(trace: Trace, wanted: Selection) -> Trace:
    """Return the chosen part.

    Raises:
        ProfileError: nothing is left, or the NEFF cannot be read or was not loaded.
    """
    if trace.event_count == 0:
        return trace
    if wanted.skip_warmup:
        trace = without_warmup(trace)
    if wanted.ncs is not None:
        cores_of_rows = {row.nc for row in trace.rows} - {NO_CORE}
        if cores_of_rows and not cores_of_rows & wanted.ncs:
            cores = ", ".join(f"NC{nc}" for nc in sorted(cores_of_rows))
            raise ProfileError(
                f"nothing happened on these NeuronCores: the profile has {cores}",
                "choose one of them with --nc",
            )
        trace = trace.with_rows(
            [row for row in trace.rows if row.nc in wanted.ncs or row.nc == NO_CORE],
            [runs for runs in trace.runs if runs.nc in wanted.ncs],
        )
    if wanted.neff is not None:
        trace = trace.of_executions(_OfModels(_loaded_from(trace, wanted.neff)))
    if wanted.engines is not None:
        hidden = set(DEVICE_TRACKS) - wanted.engines
        trace = trace.with_rows([row for row in trace.rows if row.track not in hidden], trace.runs)
    if wanted.without_device:
        trace = _without_device(trace)
    if wanted.without_system:
        trace = trace.with_rows([row for row in trace.rows if _is_of_device(row)], trace.runs)
    elif wanted.system is not None:
        trace = _of_system(trace, wanted.system)
    if wanted.from_ns is not None or wanted.to_ns is not None:
        trace = between(
            trace,
            0 if wanted.from_ns is None else wanted.from_ns,
            _ALWAYS_NS if wanted.to_ns is None else wanted.to_ns,
        )
    if trace.event_count == 0:
        raise ProfileError("no events match the filters", "give fewer filters, or wider ones")
    return trace


def _is_of_device(row: TraceRow) -> bool:
    return row.track in {Track.DEVICE, Track.ANNOTATION} or not row.track.measured


def _without_device(trace: Trace) -> Trace:
    rows = [row for row in trace.rows if not _is_of_device(row)]
    runs = [
        replace(
            runs, device_start=np.full_like(runs.device_start, -1), device_ns=np.zeros_like(runs.device_ns)
        )
        for runs in trace.runs
    ]
    return trace.with_rows(rows, runs)


def _of_system(trace: Trace, wanted: SystemFilter) -> Trace:
    """Return the trace with some of its events on the wall clock."""
    chosen: Mask = np.ones(len(trace.actions), dtype=bool)
    if wanted.names is not None:
        names = [
            action.opcode.lower() if action.track in NAMED_TRACKS else action.name for action in trace.actions
        ]
        chosen = np.array([name in wanted.names for name in names], dtype=bool)
    rows = []
    for row in trace.rows:
        if _is_of_device(row):
            rows.append(row)
            continue
        of_core = wanted.ncs is None or row.nc == NO_CORE or row.nc in wanted.ncs
        of_instance = wanted.instances is None or trace.processes[row.process].instance_id in wanted.instances
        if of_core and of_instance:
            events = row.events.at(row.events.of_actions(chosen))
            rows.append(replace(row, events=FlatEvents(events)))
    return trace.with_rows(rows, trace.runs)


def between(trace: Trace, from_ns: int, to_ns: int) -> Trace:
    """Return the events that touch a stretch of time, and the executions that do on the wall clock or the device's."""
    rows = [replace(row, events=row.events.between(from_ns, to_ns)) for row in trace.rows]
    return trace.with_rows(rows, [_runs_between(runs, from_ns, to_ns) for runs in trace.runs])


def without_warmup(trace: Trace) -> Trace:
    """Return the trace without loads and without the first execution of every model."""
    return trace.of_executions(_WithoutWarmup(trace))


def _runs_between(runs: CoreRuns, from_ns: int, to_ns: int) -> CoreRuns:
    measured = (runs.wall_start <= to_ns) & (runs.wall_start + runs.wall_ns >= from_ns)
    modelled = (runs.device_start <= to_ns) & (runs.device_start + runs.device_ns >= from_ns)
    return runs.take(measured | (modelled & (runs.device_start >= 0)))


class _WithoutWarmup(ExecutionFilter):
    """All but loads (execution 0) and the first recorded execution of every model."""

    def __init__(self, trace: Trace) -> None:
        self._first: Codes = np.full(len(trace.models), np.iinfo(np.uint32).max, dtype=np.uint32)
        for runs in trace.runs:
            np.minimum.at(self._first, runs.model, runs.number)

    def chosen(self, model: Codes, execution: Codes, start: Int64s) -> Mask:  # noqa: ARG002
        return (execution != 0) & (execution != self._first[model])


class _OfModels(ExecutionFilter):
    """Those of some models; `wanted` is by number of the model."""

    def __init__(self, wanted: Mask) -> None:
        self._wanted = wanted

    def chosen(self, model: Codes, execution: Codes, start: Int64s) -> Mask:  # noqa: ARG002
        return self._wanted[model]


def _loaded_from(trace: Trace, path: str) -> Mask:
    neff_hash = pairing_hash(read_input(path, ProfileError, "give the NEFF of the profile"))
    is_loaded: Mask = np.array([model.neff_hash == neff_hash for model in trace.models], dtype=bool)
    if not is_loaded.any():
        raise ProfileError(
            f"the profile has no records of {path} (hash {neff_hash})",
            "the profile's own copies are named neff_<hash>.neff",
        )
    return is_loaded
