"""The summary of a profile: metrics per NeuronCore, models, operators and engines, warnings; details of one event."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from neurontools.base import units
from neurontools.profiler.analysis.metrics import ProfileMetric, core_metrics, stated_metric
from neurontools.profiler.analysis.ranks import missing_ranks
from neurontools.profiler.capture.format import CLOCKS, DEVICE_TRACKS, IDLE_TRACKS, NO_CORE, Track
from neurontools.profiler.capture.settings import DeviceProfile
from neurontools.profiler.trace.intervals import busy_ns

if TYPE_CHECKING:
    from neurontools.profiler.capture.format import Meta
    from neurontools.profiler.trace.trace import CoreRuns, Trace, TraceEvent, TraceRow


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
        cores=(*(_core(trace, rows) for rows in _by_core(trace)), *_stated(trace)),
        models=_models(trace),
        event_count=trace.event_count,
        span_ns=trace.end_ns - trace.start_ns,
        warnings=tuple(_warnings(trace)),
    )


def _stated(trace: Trace) -> list[CoreSummary]:
    return [
        CoreSummary(
            process=0,
            pid=0,
            nc=nc,
            core=nc,
            metrics=tuple(stated_metric(name, value) for name, value in values.items()),
            wall_span_ns=0,
            wall_busy_ns=0,
        )
        for nc, values in trace.stated
    ]


def _by_core(trace: Trace) -> list[tuple[TraceRow, ...]]:
    cores: dict[tuple[int, int], list[TraceRow]] = {}
    for row in trace.rows:
        if row.nc != NO_CORE:
            cores.setdefault((row.process, row.nc), []).append(row)
    return [tuple(rows) for rows in cores.values()]


def _core(trace: Trace, rows: tuple[TraceRow, ...]) -> CoreSummary:
    device = tuple(row for row in rows if not row.track.measured)
    wall = [row for row in rows if row.track in {Track.RUNTIME, Track.HARDWARE}]
    busy = next((row for row in wall if row.track is Track.HARDWARE), None)
    first = min((row.events.start_ns for row in wall), default=0)
    last = max((row.events.end_ns for row in wall), default=0)
    head = rows[0]
    return CoreSummary(
        process=head.process,
        pid=head.pid,
        nc=head.nc,
        core=head.core,
        metrics=core_metrics(trace, device, trace.processes[head.process].peaks) if device else (),
        wall_span_ns=last - first,
        wall_busy_ns=_busy_ns(busy) if busy else 0,
        rank=head.rank,
    )


def _busy_ns(row: TraceRow) -> int:
    return sum(part.weight * busy_ns(part.events.start, part.events.duration) for part in row.events.parts())


def _models(trace: Trace) -> tuple[ModelSummary, ...]:
    return tuple(_model(trace, runs, int(number)) for runs in trace.runs for number in np.unique(runs.model))


def _model(trace: Trace, core: CoreRuns, number: int) -> ModelSummary:
    runs = core.take(core.model == number)
    runs = runs.take(np.argsort(runs.number, kind="stable"))
    value = trace.models[number]
    warm = runs.wall_ns[1:] if len(runs.wall_ns) > 1 else runs.wall_ns
    return ModelSummary(
        process=core.process,
        pid=trace.processes[core.process].pid,
        nc=core.nc,
        model_id=value.model_id,
        name=value.name,
        executions=len(runs.number),
        failures=int((runs.status != 0).sum()),
        warmup_wall_ns=int(runs.wall_ns[0]),
        wall_sum_ns=int(warm.sum()),
        wall_min_ns=int(warm.min()),
        wall_median_ns=int(np.median(warm)),
        wall_max_ns=int(warm.max()),
        modelled_ns=int(runs.device_ns.max()),
        rank=core.rank,
    )


def _warnings(trace: Trace) -> list[str]:
    warnings = []
    if trace.event_count == 0:
        warnings.append("no events: the program executed nothing on a NeuronCore")
    elif not trace.measured_by and all(meta.device_profile == DeviceProfile.OFF for meta in trace.processes):
        warnings.append(
            "no device profile: only wall times were captured (NEURON_RT_INSPECT_DEVICE_PROFILE=1 adds modelled ones)"
        )
    warnings += [
        f"process {meta.pid} is still running or did not exit cleanly: its last events may be missing"
        for meta in trace.processes
        if not meta.ended_ns
    ]
    missing = missing_ranks(trace)
    if missing:
        warnings.append(f"missing in the profile: rank {', '.join(map(str, missing))}")
    return [*warnings, *trace.problems]


@dataclass(frozen=True, slots=True)
class EngineTotal:
    """One engine over all NeuronCores. `busy_ns` is the union per core, added up; times are modelled, without waiting."""

    engine: str
    count: int
    total_ns: int
    busy_ns: int


def engine_totals(trace: Trace) -> tuple[EngineTotal, ...]:
    """Return the time of every engine that did something, or of every row of another program's trace."""
    if trace.measured_by:
        return _row_totals(trace)
    totals = []
    for track in DEVICE_TRACKS:
        rows = trace.rows_of(track)
        if rows:
            total = busy = 0
            for part in (part for row in rows for part in row.events.parts()):
                start, duration = part.events.start, part.events.duration
                worked = int(trace.columns.worked_ns(part.events.action, duration).sum())
                total += part.weight * worked
                busy += part.weight * (busy_ns(start, duration) - int(duration.sum()) + worked)
            totals.append(
                EngineTotal(
                    engine=track.label,
                    count=sum(row.events.count for row in rows),
                    total_ns=total,
                    busy_ns=busy,
                )
            )
    return tuple(totals)


def _row_totals(trace: Trace) -> tuple[EngineTotal, ...]:
    """Return the measured time of every row, the busiest first."""
    totals = [
        EngineTotal(
            engine=f"{row.process_label} {row.label}",
            count=row.events.count,
            total_ns=sum(part.weight * int(part.events.duration.sum()) for part in row.events.parts()),
            busy_ns=_busy_ns(row),
        )
        for row in trace.rows
        if row.track not in IDLE_TRACKS
    ]
    return tuple(sorted(totals, key=lambda total: -total.busy_ns))


def event_details(trace: Trace, event: int) -> tuple[tuple[str, str], ...]:
    """Return names and values of an event as text, without empty ones."""
    found = trace.event(event)
    row, action, start, duration = found.row, found.action, found.start, found.duration
    model = trace.models[found.model] if row.nc != NO_CORE else None
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
        *(("called in", frame) for frame in action.stack),
        ("flops", _rate(action.flops, seconds, "flop/s")),
        ("read", f"{action.read_bytes} B" if action.read_bytes else ""),
        ("written", f"{action.write_bytes} B" if action.write_bytes else ""),
        ("throughput", f"{units.format_count(moved / seconds)}B/s" if moved and seconds else ""),
        ("gap before", _gap(trace, found)),
        ("model", f"{model.name} (id {model.model_id}, NEFF {model.neff_hash})" if model else ""),
        ("execution", str(found.execution) if model else ""),
        ("CPU" if row.track is Track.CPU else "bytes", _value(found)),
        ("status", str(found.status) if found.status else ""),
        (
            "process",
            row.process_label
            + ("" if row.nc == NO_CORE else f", NC{row.nc} (core {row.core} of the machine)"),
        ),
    )
    return tuple((name, value) for name, value in fields if value)


def _value(event: TraceEvent) -> str:
    if event.row.track is Track.CPU:
        return f"{event.value} % of all CPUs"
    return f"{event.value} B" if event.value else ""


def _rate(amount: int, seconds: float, unit: str) -> str:
    if not amount:
        return ""
    return f"{amount} ({units.format_count(amount / seconds)}{unit})" if seconds else str(amount)


def _gap(trace: Trace, event: TraceEvent) -> str:
    if event.number == event.row.first:
        return ""
    before = trace.event(event.number - 1)
    gap = event.start - before.start - before.duration
    return (
        f"{units.format_ns(gap)} after {before.action.name}" if gap >= 0 else f"overlaps {before.action.name}"
    )
