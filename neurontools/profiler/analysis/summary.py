"""The summary of a profile: metrics per NeuronCore, models, operators and engines, warnings; as text and as JSON.

Modelled and measured numbers never share a table.
"""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from neurontools.base import units
from neurontools.base.text import plural, printable, shorten, table
from neurontools.profiler.analysis.metrics import ProfileMetric, core_metrics, stated_metric
from neurontools.profiler.analysis.operators import top_operators
from neurontools.profiler.analysis.ranks import missing_ranks
from neurontools.profiler.capture.format import DEVICE_TRACKS, IDLE_TRACKS, NO_CORE, Track
from neurontools.profiler.capture.settings import DeviceProfile
from neurontools.profiler.trace.intervals import busy_ns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.profiler.analysis.metrics import ProfileMetric
    from neurontools.profiler.analysis.operators import OperatorTotal
    from neurontools.profiler.capture.format import Meta
    from neurontools.profiler.trace.trace import CoreRuns, Trace, TraceRow


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
        models=tuple(
            _model(trace, runs, int(number)) for runs in trace.runs for number in np.unique(runs.model)
        ),
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


JSON_SCHEMA = 1
_NAME_WIDTH = 26
_ROW_WIDTH = 44
_MOST_ROWS = 20
_NAMED_ROWS = 4


@dataclass(frozen=True, slots=True)
class ProfileReport:
    """Everything that the summary shows."""

    summary: Summary
    engines: tuple[EngineTotal, ...]
    operators: tuple[OperatorTotal, ...]
    operators_title: str
    measured_by: str = ""
    device_rows: tuple[str, ...] = ()


def report(trace: Trace, operators: int | None = 10) -> ProfileReport:
    """Return the report of a trace with the `operators` longest operators."""
    return ProfileReport(
        summarise(trace),
        engine_totals(trace),
        top_operators(trace, operators),
        operators_title(trace),
        trace.measured_by,
        device_rows(trace),
    )


def operators_title(trace: Trace) -> str:
    """Return the title of a table of operators."""
    return f"Operators by {time_of_operators(trace)}"


def time_of_operators(trace: Trace) -> str:
    """Return what the times of operators are: modelled, or measured by another program."""
    if not trace.measured_by:
        return "modelled time"
    where = "device" if trace.rows_of(Track.DEVICE) else "host"
    return f"own time on the {where}, measured by {trace.measured_by}"


def device_rows(trace: Trace) -> tuple[str, ...]:
    """Return the names of the rows of another program's trace that are taken for those of a device."""
    rows = trace.rows_of(Track.DEVICE) if trace.measured_by else ()
    return tuple(f"{row.process_label} {row.label}" for row in rows)


def device_rows_text(names: tuple[str, ...]) -> str:
    """Return a line with the rows of the device, "" without."""
    if not names:
        return ""
    more = f" and {len(names) - _NAMED_ROWS} more" if len(names) > _NAMED_ROWS else ""
    return printable(f"rows of the device: {', '.join(names[:_NAMED_ROWS])}{more}")


def to_text(what: ProfileReport) -> str:
    """Return the report for people, 80 columns wide where names allow, no newline at the end."""
    parts = [
        _head(what.summary, what.measured_by),
        "" if what.measured_by else _wall(what.summary.cores),
        _models_text(what.summary.models),
        _metrics(what.summary.cores, what.measured_by),
        _rows(what) if what.measured_by else _engines(what.engines),
        operators_text(what.operators, what.operators_title),
        device_rows_text(what.device_rows),
    ]
    return "\n\n".join(part for part in parts if part)


def to_json(what: ProfileReport) -> dict[str, Any]:
    """Return the report for programs: base units (ns, s, bytes), vendor metric names, stable keys."""
    summary = what.summary
    return {
        "schema": JSON_SCHEMA,
        "is_simulation": not what.measured_by,
        **(
            {"measured_by": what.measured_by, "device_rows": list(what.device_rows)}
            if what.measured_by
            else {}
        ),
        "event_count": summary.event_count,
        "span_ns": summary.span_ns,
        "processes": [asdict(meta) for meta in summary.processes],
        "cores": [_core_json(core, "stated" if what.measured_by else "modelled") for core in summary.cores],
        "models": [asdict(model) for model in summary.models],
        "engines": [asdict(engine) for engine in what.engines],
        "operators": [asdict(operator) for operator in what.operators],
        "warnings": list(summary.warnings),
    }


def operators_text(operators: tuple[OperatorTotal, ...], title: str = "Operators by modelled time") -> str:
    """Return the operators as a table."""
    rows = [
        (
            shorten(operator.name, 28),
            operator.engine,
            operator.opcode,
            str(operator.count),
            units.format_ns(operator.total_ns),
            f"{operator.share:.1%}",
            units.format_count(operator.flops),
        )
        for operator in operators
    ]
    head = ("operator", "engine", "opcode", "count", "total", "share", "flops")
    return _section(title, head, rows, text_columns=3)


def metric_text(metric: ProfileMetric) -> str:
    """Return a metric's value with its unit."""
    match metric.unit:
        case "s":
            return units.format_ns(metric.value * 1e9)
        case "%":
            return f"{metric.value:.2f} %"
        case "B":
            return units.format_count(metric.value) + "B" if metric.value >= 1000 else f"{metric.value:.0f} B"
        case "#":
            return str(metric.value)
        case _:
            return units.format_count(metric.value)


def _core_json(core: CoreSummary, source: str) -> dict[str, Any]:
    return {
        "process": core.process,
        "pid": core.pid,
        "rank": core.rank,
        "nc_idx": core.nc,
        "core": core.core,
        "wall_span_ns": core.wall_span_ns,
        "wall_busy_ns": core.wall_busy_ns,
        source: {metric.name: metric.value for metric in core.metrics},
    }


def _head(summary: Summary, measured_by: str) -> str:
    kinds = sorted({meta.instance_type for meta in summary.processes})
    counts = (
        plural(len(summary.processes), "process", "processes"),
        *(() if measured_by else (plural(len(summary.cores), "NeuronCore"),)),
        plural(summary.event_count, "event"),
        units.format_ns(summary.span_ns),
    )
    what = f"Trace measured by {measured_by}" if measured_by else f"Profile of a simulated {', '.join(kinds)}"
    lines = [f"{what}: {', '.join(counts)}"]
    for meta in () if measured_by else summary.processes:
        ncs = ",".join(str(core) for core in meta.cores)
        lines.append(f"  {meta.label}, cores {ncs}: {shorten(shlex.join(meta.command), 56)}")
    lines += [f"  warning: {warning}" for warning in summary.warnings]
    return "\n".join(map(printable, lines))


def _section(title: str, head: Sequence[str], rows: Sequence[Sequence[str]], *, text_columns: int = 1) -> str:
    """Return a titled table, "" without rows; the first `text_columns` are aligned to the left."""
    if not rows:
        return ""
    lines = table(head, rows, "<" * text_columns + ">" * (len(head) - text_columns))
    return "\n".join([title, *(f"  {line}" for line in lines.splitlines())])


def _wall(cores: tuple[CoreSummary, ...]) -> str:
    rows = [
        (
            f"{core.pid if core.rank is None else f'rank {core.rank}'} NC{core.nc}",
            units.format_ns(core.wall_span_ns),
            units.format_ns(core.wall_busy_ns),
            f"{core.wall_busy_ns / core.wall_span_ns if core.wall_span_ns else 0:.1%}",
        )
        for core in cores
    ]
    return _section(
        "Wall time, measured on this computer",
        (
            "pid, core" if all(core.rank is None for core in cores) else "worker, core",
            "span",
            "executing",
            "share",
        ),
        rows,
    )


def _models_text(models: tuple[ModelSummary, ...]) -> str:
    rows = [
        (
            shorten(model.name, _NAME_WIDTH),
            f"NC{model.nc}" if model.rank is None else f"rank {model.rank} NC{model.nc}",
            str(model.executions),
            str(model.failures),
            units.format_ns(model.warmup_wall_ns),
            units.format_ns(model.wall_median_ns),
            units.format_ns(model.modelled_ns) if model.modelled_ns else "-",
        )
        for model in models
    ]
    head = ("model", "core", "runs", "failed", "first", "median", "modelled")
    title = "Executions: wall time of the first (done while recording) and of the others, modelled time"
    return _section(title, head, rows)


def _metrics(cores: tuple[CoreSummary, ...], measured_by: str) -> str:
    profiled = [core for core in cores if core.metrics]
    if not profiled:
        return ""
    names = [metric.name for metric in profiled[0].metrics]
    columns = [{metric.name: metric for metric in core.metrics} for core in profiled]
    if len(profiled) == 1:
        title = _metrics_title(f"NC{profiled[0].nc}", measured_by)
        rows: list[tuple[str, ...]] = [(name, metric_text(columns[0][name])) for name in names]
        return _section(title, ("metric", "value"), rows)
    rows = []
    for name in names:
        ordered = sorted(
            (column[name] for column in columns if name in column), key=lambda metric: metric.value
        )
        rows.append(
            (name, *(metric_text(metric) for metric in (ordered[0], ordered[len(ordered) // 2], ordered[-1])))
        )
    title = _metrics_title(f"{len(profiled)} NeuronCores", measured_by)
    return _section(title, ("metric", "least", "median", "most"), rows)


def _metrics_title(of_what: str, measured_by: str) -> str:
    if measured_by:
        return f"Metrics of {of_what}, stated by {measured_by}"
    return f"Device time of {of_what}, modelled (not measured)"


def _rows(what: ProfileReport) -> str:
    """Return the busiest rows of another program's trace."""
    rows = [
        (
            shorten(row.engine, _ROW_WIDTH),
            str(row.count),
            units.format_ns(row.total_ns),
            units.format_ns(row.busy_ns),
        )
        for row in what.engines[:_MOST_ROWS]
    ]
    more = len(what.engines) - len(rows)
    title = f"Rows, measured by {what.measured_by}" + (f", {more} less busy ones left out" if more else "")
    return _section(title, ("row", "events", "sum", "busy"), rows)


def _engines(engines: tuple[EngineTotal, ...]) -> str:
    rows = [
        (engine.engine, str(engine.count), units.format_ns(engine.total_ns), units.format_ns(engine.busy_ns))
        for engine in engines
    ]
    return _section("Engines, modelled", ("engine", "instructions", "sum", "busy"), rows)
