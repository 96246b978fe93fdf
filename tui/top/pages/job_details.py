"""A process or a job over the last minute or hour as charts, and what the ranks of a job are doing."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from neurontools.base.text import printable
from neurontools.dashboard.machine_history import SECOND_NS, HistorySlot, Measure
from neurontools.dashboard.process_rows import ProcessJob, rank_of
from neurontools.dashboard.process_table import user_name
from neurontools.machine.machine_names import core_ranges
from neurontools.machine.machine_view import process_key
from neurontools.tui.top.numbers import short_percent, size
from neurontools.tui.top.pages.columns import latency
from neurontools.tui.top.pages.curves import CurveUnit, HistoryCurve, chart_pane, mean, merged
from neurontools.tui.top.pages.latency import latency_of, latency_pane, lines_pane
from neurontools.tui.top.pages.memory_tree import CATEGORY_NAMES
from neurontools.tui.widgets.bars import bar
from neurontools.tui.widgets.lines import Line, Role, Span, fact_lines, fit

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from neurontools.dashboard.process_rows import ProcessRow
    from neurontools.tui.top.model import TopModel

_LABEL = 13
_MEMORY_LABEL = 20
_LEAST_LATENCY = 7


class ChartsKey(NamedTuple):
    """What charts are of; the same key has the same charts."""

    second: int
    subject: object
    size: tuple[int, int]
    hour: bool


class SubjectCharts:
    """Utilization, executions and latency of a process or a job, one below the other; drawn once a second."""

    def __init__(self) -> None:
        self._key: ChartsKey | None = None
        self._drawn: list[Line] = []

    def lines(
        self, model: TopModel, one: ProcessRow | ProcessJob, size: tuple[int, int], *, hour: bool
    ) -> list[Line]:
        """Return exactly as many lines as the size has."""
        snapshot = model.shown.snapshot
        second = snapshot.taken_ns // SECOND_NS if snapshot else 0
        subject = one.key if isinstance(one, ProcessJob) else process_key(one.process)
        key = ChartsKey(second, subject, size, hour)
        if key != self._key:
            self._key, self._drawn = key, _charts(model, one, size, hour=hour)
        return self._drawn


def _charts(
    model: TopModel, one: ProcessRow | ProcessJob, size: tuple[int, int], *, hour: bool
) -> list[Line]:
    width, height = size
    rows = one.rows if isinstance(one, ProcessJob) else (one,)
    low = max(_LEAST_LATENCY, height // 3)
    upper = height - low
    heights = (upper - upper // 2, upper // 2)
    drawn = chart_pane(
        utilization_curve(model, rows), "Utilization", (width, heights[0]), hour=hour, boxed=True
    )
    drawn += chart_pane(_executions(model, rows), "Executions/s", (width, heights[1]), hour=hour, boxed=True)
    if isinstance(one, ProcessJob):
        return drawn + _job_latency(model, one, (width, low), hour=hour)
    return drawn + latency_pane(
        model, process_key(one.process), "Latency", (width, low), hour=hour, boxed=True
    )


def utilization_curve(model: TopModel, rows: Sequence[ProcessRow]) -> HistoryCurve:
    """Return the history of the mean over the cores of some processes."""
    cores = [use.core for row in rows for use in row.process.cores]

    def of(*, hour: bool) -> tuple[HistorySlot | None, ...]:
        history = model.history.hour if hour else model.history.minute
        return merged([history(("core", core)) for core in cores], mean)

    return HistoryCurve(CurveUnit.SHARE, partial(of, hour=False), partial(of, hour=True))


def _executions(model: TopModel, rows: Sequence[ProcessRow]) -> HistoryCurve:
    def of(*, hour: bool) -> tuple[HistorySlot | None, ...]:
        measure = Measure.EXECUTIONS
        return merged([latency_of(model, process_key(row.process), measure, hour=hour) for row in rows], sum)

    return HistoryCurve(CurveUnit.RATE, partial(of, hour=False), partial(of, hour=True))


def _job_latency(model: TopModel, job: ProcessJob, size: tuple[int, int], *, hour: bool) -> list[Line]:
    every = [latency_of(model, process_key(row.process), Measure.P50, hour=hour) for row in job.rows]
    histories = (("max", merged(every, max), Role.SHADE_3), ("mean", merged(every, mean), Role.SHADE_5))
    title = "Latency p50 over all ranks: last hour" if hour else "Latency p50 over all ranks: last minute"
    return lines_pane(histories, title, size, boxed=True)


def memory_lines(rows: Sequence[ProcessRow], width: int) -> Iterator[Line]:
    """Yield the memory of processes by category, on the devices and on the host, with bars of their share."""
    for place, uses in (
        ("HBM", [use.memory for row in rows for use in row.process.cores]),
        ("host", [row.process.host_memory for row in rows]),
    ):
        whole = sum(use.total_bytes for use in uses)
        if not whole:
            continue
        yield fit(((f" {f'{place} memory':<{_MEMORY_LABEL}}", Role.HEAD), (size(whole), Role.VALUE)), width)
        for category, name in CATEGORY_NAMES.items():
            count = 0 if category == "total_bytes" else sum(getattr(use, category) for use in uses)
            if count:
                room = max(10, width - _MEMORY_LABEL - 18)
                spans: tuple[Span, ...] = (
                    (f"   {name:<{_MEMORY_LABEL - 2}}", Role.HEAD),
                    *bar(count / whole, room),
                    (f" {size(count):>9} {short_percent(count / whole)}", Role.PLAIN),
                )
                yield fit(spans, width)


def job_lines(model: TopModel, job: ProcessJob, width: int) -> Iterator[Line]:
    """Yield what the ranks of a job share, its memory, and its ranks, slowest first."""
    first = job.rows[0].process
    pids = sorted(row.process.pid for row in job.rows)
    cores = tuple(sorted({use.core for row in job.rows for use in row.process.cores}))
    alerts = {
        f"! {alert.condition}: {printable(alert.text)}": None
        for row in job.rows
        for alert in model.monitor.alerts_of_pid.get(row.process.pid, ())
    }
    for text in alerts:
        yield from fact_lines("", text, width, 1, Role.ALERT)
    facts = (
        ("command", printable(first.command)),
        ("ranks", f"{len(job.rows)}, pids {pids[0]} to {pids[-1]}, user {user_name(first.uid)}"),
        ("cores", f"{len(cores)}: {core_ranges(cores)}"),
        ("runtime", printable(first.runtime_version)),
    )
    for name, text in facts:
        yield from fact_lines(name, text, width, _LABEL)
    yield from memory_lines(job.rows, width)
    yield from _ranks(model, job, width)


def _ranks(model: TopModel, job: ProcessJob, width: int) -> Iterator[Line]:
    timed = [(row.latency_s(50) or 0.0, at, row) for at, row in enumerate(job.rows)]
    most = max((seconds for seconds, _, _ in timed), default=0.0)
    room = max(6, (width - 44) // 2)
    head = (
        f" {'rank':>5} {'pid':>8}  {'median latency, slowest first':<{room + 9}}{'p99':>8}  {'utilization'}"
    )
    yield fit(((head, Role.DIM),), width)
    for seconds, at, row in sorted(timed, key=lambda one: (-one[0], one[1])):
        role = Role.ALERT if row.process.pid in model.monitor.alerts_of_pid else Role.PLAIN
        yield fit(
            (
                (f" {rank_of(row, at):>5} {row.process.pid:>8}  ", role),
                *bar(seconds / most if most else 0.0, room),
                (f" {latency(seconds or None):>7} ", role),
                (f"{latency(row.latency_s(99)):>8}  ", Role.PLAIN),
                *bar(row.utilization, room),
                (f" {100 * row.utilization:5.1f}%", Role.VALUE if row.utilization else Role.DIM),
            ),
            width,
        )
