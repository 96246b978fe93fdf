"""The summary of a profile: metrics per NeuronCore, models, operators and engines, warnings; details of one event."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from neurontools.base import units
from neurontools.profiler.analysis.metrics import ProfileMetric, core_metrics, worked_ns
from neurontools.profiler.capture.format import CLOCKS, DEVICE_TRACKS, NC_EXEC_RUNNING, NRT_EXECUTE, Track
from neurontools.profiler.trace.intervals import busy_ns

if TYPE_CHECKING:
    from neurontools.profiler.capture.format import Meta
    from neurontools.profiler.trace.intervals import Int64s
    from neurontools.profiler.trace.trace import Trace, TraceRow


@dataclass(frozen=True, slots=True)
class CoreSummary:
    """One NeuronCore of one process; `metrics` is empty without a device profile. Wall times are measured."""

    process: int
    pid: int
    nc: int
    core: int
    metrics: tuple[ProfileMetric, ...]
    wall_span_ns: int
    wall_busy_ns: int
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class ModelSummary:
    """Executions of one loaded model.

    `warmup_wall_ns` is the measured time of the first execution; the other wall times leave it out when there are
    more. `modelled_ns` is the device time of one execution, 0 without a device profile.
    """

    process: int
    pid: int
    nc: int
    model_id: int
    name: str
    executions: int
    failures: int
    warmup_wall_ns: int
    wall_sum_ns: int
    wall_min_ns: int
    wall_median_ns: int
    wall_max_ns: int
    modelled_ns: int
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class Summary:
    """All of it. `span_ns` is from the first event to the end of the last."""

    processes: tuple[Meta, ...]
    cores: tuple[CoreSummary, ...]
    models: tuple[ModelSummary, ...]
    event_count: int
    span_ns: int
    warnings: tuple[str, ...]


def summarise(trace: Trace) -> Summary:
    """Return the summary of a trace."""
    return Summary(
        processes=trace.processes,
        cores=tuple(_core(trace, rows) for rows in _by_core(trace)),
        models=_models(trace),
        event_count=trace.event_count,
        span_ns=trace.end_ns - (int(trace.start.min()) if trace.event_count else 0),
        warnings=tuple(_warnings(trace)),
    )


def _by_core(trace: Trace) -> list[tuple[TraceRow, ...]]:
    cores: dict[tuple[int, int], list[TraceRow]] = {}
    for row in trace.rows:
        cores.setdefault((row.process, row.nc), []).append(row)
    return [tuple(rows) for rows in cores.values()]


def _core(trace: Trace, rows: tuple[TraceRow, ...]) -> CoreSummary:
    device = tuple(row for row in rows if not row.track.measured)
    wall = [row for row in rows if row.track.measured]
    busy = next((row for row in wall if row.track is Track.HARDWARE), None)
    first = min((int(trace.start[row.first]) for row in wall), default=0)
    last = max((int((trace.start[row.span] + trace.duration[row.span]).max()) for row in wall), default=0)
    head = rows[0]
    return CoreSummary(
        process=head.process,
        pid=head.pid,
        nc=head.nc,
        core=head.core,
        metrics=core_metrics(trace, device, trace.processes[head.process].peaks) if device else (),
        wall_span_ns=last - first,
        wall_busy_ns=busy_ns(trace.start[busy.span], trace.duration[busy.span]) if busy else 0,
        rank=head.rank,
    )


def _models(trace: Trace) -> tuple[ModelSummary, ...]:
    found: list[ModelSummary] = []
    modelled = _modelled(trace)
    for row in _execution_rows(trace):
        executions: Int64s = (
            np.flatnonzero(np.isin(trace.action[row.span], (NRT_EXECUTE, NC_EXEC_RUNNING))) + row.first
        )
        for number in np.unique(trace.model[executions]):
            own_executions = executions[trace.model[executions] == number]
            own_executions = own_executions[np.argsort(trace.execution[own_executions], kind="stable")]
            found.append(_model(trace, row, int(number), own_executions, int(modelled[number])))
    return tuple(found)


def _execution_rows(trace: Trace) -> list[TraceRow]:
    """Return for every core the row that shows executions in wall time: neuron_rt, or neuron_hw when it is filtered."""
    rows: dict[tuple[int, int], TraceRow] = {}
    for row in trace.rows_of(Track.RUNTIME, Track.HARDWARE):
        known = rows.get((row.process, row.nc))
        if known is None or NRT_EXECUTE not in trace.action[known.span]:
            rows[row.process, row.nc] = row
    return list(rows.values())


def _modelled(trace: Trace) -> Int64s:
    """Return by model number the modelled time of one execution."""
    modelled: Int64s = np.zeros(len(trace.models), dtype=np.int64)
    for row in trace.rows_of(Track.MODEL):
        modelled[trace.model[row.span]] = trace.duration[row.span]
    return modelled


def _model(trace: Trace, row: TraceRow, number: int, executions: Int64s, modelled_ns: int) -> ModelSummary:
    value = trace.models[number]
    wall = trace.duration[executions]
    warm = wall[1:] if len(wall) > 1 else wall
    return ModelSummary(
        process=row.process,
        pid=row.pid,
        nc=row.nc,
        model_id=value.model_id,
        name=value.name,
        executions=len(executions),
        failures=int((trace.status[executions] != 0).sum()),
        warmup_wall_ns=int(wall[0]),
        wall_sum_ns=int(warm.sum()),
        wall_min_ns=int(warm.min()),
        wall_median_ns=int(np.sort(warm)[len(warm) // 2]),
        wall_max_ns=int(warm.max()),
        modelled_ns=modelled_ns,
        rank=row.rank,
    )


def _warnings(trace: Trace) -> list[str]:
    found = []
    if trace.event_count == 0:
        found.append("no events: the program executed nothing on a NeuronCore")
    elif all(row.track.measured for row in trace.rows):
        found.append(
            "no device profile: only wall times were captured (NEURON_RT_INSPECT_DEVICE_PROFILE=1 adds modelled ones)"
        )
    if _follow_each_other(trace.processes):
        found.append(
            "these runs followed one another: name the directory of one process to see only that run"
        )
    for meta in trace.processes:
        if not meta.ended_ns:
            found.append(
                f"process {meta.pid} is still running or did not exit cleanly: its last events may be missing"
            )
        for nc, system, executions in meta.dropped:
            count = f"{system} system events and the device records of {executions} executions"
            at_least = "" if meta.ended_ns else "at least "
            found.append(
                f"process {meta.pid}, NC {nc}: {at_least}{count} were dropped over the limit of "
                f"{meta.max_events_per_nc}"
            )
    return found


def _follow_each_other(processes: tuple[Meta, ...]) -> bool:
    """Return whether one process began after all earlier ones had ended."""
    latest_ns = 0
    for meta in sorted(processes, key=lambda meta: meta.started_unix_ns):
        if 0 < latest_ns < meta.started_unix_ns:
            return True
        lasted_ns = meta.ended_ns - meta.started_ns if meta.ended_ns else 0
        latest_ns = max(latest_ns, meta.started_unix_ns + lasted_ns)
    return False


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
    """One engine over all NeuronCores. `busy_ns` is the union per core, added up; times are modelled, without waiting."""

    engine: str
    count: int
    total_ns: int
    busy_ns: int


def top_operators(trace: Trace, limit: int | None = None) -> tuple[OperatorTotal, ...]:
    """Return the operators with the largest total time first, at most `limit` of them."""
    rows = trace.rows_of(*DEVICE_TRACKS)
    count: Int64s = np.zeros(len(trace.actions), dtype=np.int64)
    total: Int64s = np.zeros(len(trace.actions), dtype=np.int64)
    for row in rows:
        action = trace.action[row.span]
        count += np.bincount(action, minlength=len(count))
        np.add.at(total, action, worked_ns(trace, row.span))
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
    for track in DEVICE_TRACKS:
        rows = trace.rows_of(track)
        if rows:
            worked = [int(worked_ns(trace, row.span).sum()) for row in rows]
            duration = [int(trace.duration[row.span].sum()) for row in rows]
            covered = [busy_ns(trace.start[row.span], trace.duration[row.span]) for row in rows]
            found.append(
                EngineTotal(
                    engine=track.label,
                    count=sum(row.last - row.first for row in rows),
                    total_ns=sum(worked),
                    busy_ns=sum(covered) - sum(duration) + sum(worked),
                )
            )
    return tuple(found)


def event_details(trace: Trace, event: int) -> tuple[tuple[str, str], ...]:
    """Return names and values of an event as text, without empty ones."""
    row = next(row for row in trace.rows if row.first <= event < row.last)
    action = trace.actions[trace.action[event]]
    start, duration = int(trace.start[event]), int(trace.duration[event])
    model = trace.models[trace.model[event]]
    seconds = duration / 1e9
    moved = action.read_bytes + action.write_bytes
    fields = (
        ("name", action.name),
        ("opcode", action.opcode),
        ("engine", "" if row.track.measured else row.track.label),
        ("start", f"{units.format_ns(start)} ({start} ns after the first event)"),
        ("duration", f"{units.format_ns(duration)} ({duration} ns)"),
        ("clock", CLOCKS["wall" if row.track.measured else "device"]),
        ("queue", action.queue_name),
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
        ("process", f"{row.process_label}, NC{row.nc} (core {row.core} of the machine)"),
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
