"""The details of a process or a job: alerts, executions and latency over time, cores, memory, models, environment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.base.text import printable
from neurontools.dashboard.local_processes import environment
from neurontools.dashboard.machine_history import LATENCIES, Measure
from neurontools.dashboard.process_rows import ProcessJob
from neurontools.machine.machine_names import core_ranges
from neurontools.machine.machine_view import process_key
from neurontools.tui.top.numbers import percent, size
from neurontools.tui.top.pages.columns import latency
from neurontools.tui.top.pages.curves import columns_for, curve_spans, has_long_history, head_text
from neurontools.tui.top.pages.history import process_curve
from neurontools.tui.top.pages.job_details import SubjectCharts, job_lines, memory_lines
from neurontools.tui.widgets.bars import bar
from neurontools.tui.widgets.frames import beside, chrome_lines, framed, inner_width
from neurontools.tui.widgets.lines import Line, Role, dotted, fact_lines, fit, fixed, width_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from neurontools.dashboard.process_rows import ProcessRow
    from neurontools.machine.machine_view import ProcessKey
    from neurontools.tui.top.model import TopModel
    from neurontools.tui.top.pages.live import LiveLines

_NAME_WIDTH = 13
_METER_WIDTH = 30
_LABEL_WIDTH = 17
_ENVIRONMENT_KEPT = 64
LEAST_FOR_CHARTS = 150
"""Cells from which charts are shown beside the text."""
_LEAST_CHARTS = 16
_TEXT_PERCENT = 54
_PERCENTILES = (("p50", 50), ("p90", 90), ("p99", 99), ("max", 100))


class Details:
    """The details of a process, with their own scroll position; the environment is read once."""

    def __init__(self) -> None:
        self.first = 0
        self.hour = False
        """Whether curves are of the last hour where there is only room for one."""
        self._environments: dict[ProcessKey, tuple[tuple[str, str], ...] | None] = {}
        self._charts = SubjectCharts()
        self._live: LiveLines | None = None

    def toggle_live(self) -> None:
        """Begin or end the live profile of the process."""
        self.first = 0
        if self._live is not None:
            self._live = None
            return
        from neurontools.tui.top.pages.live import LiveLines  # most sessions do without the profiler

        self._live = LiveLines()

    def scroll(self, steps: int) -> None:
        """Move through the lines."""
        self.first = max(0, self.first + steps)

    def lines(
        self,
        model: TopModel,
        one: ProcessRow | ProcessJob | None,
        width: int,
        height: int,
        *,
        boxed: bool = False,
    ) -> Sequence[Line]:
        """Return the visible lines; with plenty of room, charts beside them."""
        if one is None or height < 2:
            return ()
        has_charts = boxed and width >= LEAST_FOR_CHARTS and height >= _LEAST_CHARTS
        left = width * _TEXT_PERCENT // 100 if has_charts else width
        inner = inner_width(left, boxed=boxed)
        if isinstance(one, ProcessJob):
            title, found = f"Job {printable(one.name)} x{len(one.rows)}", list(job_lines(model, one, inner))
        else:
            title = f"Process {one.process.pid}"
            found = list(self.all_lines(model, one, inner, has_charts=has_charts))
        room = height - chrome_lines(boxed=boxed)
        self.first = max(0, min(self.first, len(found) - room))
        shown = found[self.first : self.first + room]
        note = (
            ""
            if len(shown) == len(found)
            else f"{self.first + 1}-{self.first + len(shown)} of {len(found)}, < > scroll"
        )
        drawn = framed(title, shown, (left, height), note=note, boxed=boxed)
        if not has_charts:
            return drawn
        return beside(drawn, self._charts.lines(model, one, (width - left, height), hour=self.hour))

    def all_lines(
        self, model: TopModel, row: ProcessRow, width: int, *, has_charts: bool = False
    ) -> Iterator[Line]:
        """Yield all lines; charts beside them replace the curves."""
        process = row.process
        for alert in model.monitor.alerts_of_pid.get(process.pid, ()):
            yield from fact_lines("", f"! {alert.condition}: {printable(alert.text)}", width, 1, Role.ALERT)
        if self._live is not None:
            yield from self._live.lines(model, process, width)
        note = " (scenario process: host CPU and memory are modelled)" if row.is_modelled else ""
        facts = (
            ("command", printable(process.command)),
            (
                "origin",
                f"{process.origin}{note}, cores {core_ranges(tuple(use.core for use in process.cores)) or 'none'}",
            ),
            (
                "latency",
                ", ".join(f"{name} {latency(row.latency_s(percent))}" for name, percent in _PERCENTILES),
            ),
            ("failures", f"{row.failed_executions} of this interval's executions failed"),
        )
        for name, text in (*facts, *_gpsimd(row)):
            yield from fact_lines(name, text, width, _NAME_WIDTH)
        if has_charts:
            yield from memory_lines((row,), width)
        else:
            yield from self._curves(model, row, width)
        yield from _cores(model, row, width)
        yield from _models(row, width)
        yield from self._environment(row, width)

    def _curves(self, model: TopModel, row: ProcessRow, width: int) -> Iterator[Line]:
        columns = columns_for(width, _LABEL_WIDTH, hour=self.hour, has_hour=has_long_history(model))
        yield fit(((f" {'over time':<{columns.label - 1}}{head_text(columns)}", Role.HEAD),), width)
        key = process_key(row.process)
        for measure in Measure:
            name = f"latency {measure}" if measure in LATENCIES else "executions/s"
            spans = curve_spans(process_curve(model, key, measure), columns)
            yield fit(((f"   {name:<{columns.label - 3}}", Role.HEAD), *spans), width)

    def _environment(self, row: ProcessRow, width: int) -> Iterator[Line]:
        process = row.process
        if process.origin != "live":
            yield fit(((f" environment: none, the process is {process.origin}", Role.DIM),), width)
            return
        key = process_key(process)
        if key not in self._environments:
            if len(self._environments) >= _ENVIRONMENT_KEPT:
                self._environments.clear()
            self._environments[key] = environment(*key)
        found = self._environments[key]
        if found is None:
            yield fit(((" environment: not readable (another user's process, or gone)", Role.DIM),), width)
            return
        yield fit(((" environment", Role.HEAD),), width)
        for name, value in found:
            named = f"   {printable(name)}"
            text = fixed(f"={printable(value)}", width - width_of(named))
            yield fit(((named, Role.STRONG), (text, Role.PLAIN)), width)


def _gpsimd(row: ProcessRow) -> Iterator[tuple[str, str]]:
    total_ns = sum(use.gpsimd_ns for use in row.process.cores)
    if total_ns:
        spent, total = (latency(time_ns / 1e9) for time_ns in (row.gpsimd_ns, total_ns))
        yield "custom ops", f"{spent} of GPSIMD time in this interval, {total} in all (modelled)"


def _cores(model: TopModel, row: ProcessRow, width: int) -> Iterator[Line]:
    cells = max(_METER_WIDTH, min(width - 30, 3 * _METER_WIDTH))
    if row.process.cores:
        yield fit(((f" {'core':<8}{'utilization':<{cells + 10}}{'memory':>9}", Role.HEAD),), width)
    for use in row.process.cores:
        rate = model.shown.rates.get(use.core)
        share = rate.utilization if rate else 0.0
        spans = (
            (f"   {use.core:<6}", Role.PLAIN),
            *bar(share, cells),
            (f" {percent(share):>8}", Role.VALUE if share else Role.DIM),
            (f" {size(use.memory.total_bytes):>9}", Role.VALUE),
        )
        yield fit(spans, width)


def _models(row: ProcessRow, width: int) -> Iterator[Line]:
    models = row.process.models
    if models:
        yield fit(((f" {'model':<8}{'core':>5}{'memory':>10}  name", Role.HEAD),), width)
    for model in models:
        role = Role.PLAIN if model.running else Role.DIM
        text = f"   {model.model_id:<6}{model.core:>5}{size(model.memory.total_bytes):>10}  {printable(model.name)}"
        yield dotted(((text, role),), width)
