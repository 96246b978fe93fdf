"""The page of workers: who is slow, and how far steps are apart."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from textual.binding import Binding

from neurontools.base import units
from neurontools.base.text import plural, printable
from neurontools.errors import NeuronToolsError
from neurontools.profiler.analysis.host import host_work
from neurontools.profiler.analysis.ranks import compare_ranks
from neurontools.profiler.analysis.steady import execution_of_step
from neurontools.profiler.capture.format import process_label
from neurontools.tui.profile.page import ProfileListPage, ShowEvent
from neurontools.tui.widgets.bars import bar
from neurontools.tui.widgets.charts import wide_chart
from neurontools.tui.widgets.frames import beside, chrome_lines, framed, inner_width, is_boxed
from neurontools.tui.widgets.lines import Role, fit
from neurontools.tui.widgets.table_lines import TableColumn, TableLayout

if TYPE_CHECKING:
    from textual.binding import BindingType

    from neurontools.profiler.analysis.host import HostLine, HostWork
    from neurontools.profiler.analysis.ranks import RankReport, RankTotal
    from neurontools.tui.widgets.lines import Line, Span

_BAR = 20
_COLUMNS = (
    TableColumn("rank", 6),
    TableColumn("pid", 8, rank=3),
    TableColumn("step", 10),
    TableColumn("works", 10),
    TableColumn("waits", 10),
    TableColumn("", _BAR, right=False, rank=2),
    TableColumn("slowest in", 10),
    TableColumn("", right=False),
)
_STEP_COLUMNS = (
    TableColumn("step", 6),
    TableColumn("skew", 10),
    TableColumn("most work", 10),
    TableColumn("least", 10, rank=1),
    TableColumn("all waits", 10, rank=2),
    TableColumn("slowest", right=False),
)
_HOST_COLUMNS = (
    TableColumn("what", 12, right=False),
    TableColumn("", right=False, least=16),
    TableColumn("line", 24, right=False, rank=1),
    TableColumn("times", 6),
    TableColumn("time", 10),
    TableColumn("", _BAR, right=False, rank=2),
)
_MOST_CHART = 12
_BESIDE_FROM, _STEPS_WIDTH = 160, 76


class RanksPage(ProfileListPage):
    """Workers in a table, and the skew of their steps as a chart."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "the worker's slowest step in the timeline", key_display="⏎", show=False)
    ]
    title = "Ranks"

    @cached_property
    def _report(self) -> RankReport | NeuronToolsError:
        try:
            return compare_ranks(self._trace)
        except NeuronToolsError as error:
            return error

    @property
    def count(self) -> int:
        """Number of workers."""
        return 0 if isinstance(self._report, NeuronToolsError) else len(self._report.ranks)

    def action_open(self) -> None:
        """Show the execution of the selected worker in the step in which it worked longest."""
        report = self._report
        if isinstance(report, NeuronToolsError):
            return
        step = max(report.steps, key=lambda step: step.works_ns[self.cursor.row]).step
        event = execution_of_step(self._trace, report.ranks[self.cursor.row].pid, step)
        if event is None:
            self.app.bell()
        else:
            self.post_message(ShowEvent(event))

    def lines(self, width: int, height: int) -> list[Line]:
        """Return the table and the chart."""
        report = self._report
        if isinstance(report, NeuronToolsError):
            return self.no_data(report.message, report.remedy or "")
        boxed = is_boxed(width, height)
        inner = inner_width(width, boxed=boxed)
        edges = chrome_lines(boxed=boxed)
        upper = min(self.count + 1 + edges, max(height * 2 // 3, edges + 2))
        layout = TableLayout(_COLUMNS, inner)
        longest = max(rank.step_ns for rank in report.ranks)
        self._top = 2
        body = self.table(layout, upper - edges - 1, report.ranks, lambda rank: _rank_cells(rank, longest))
        lost = f"{units.format_ns(report.lost_ns)} of a step lost to the slowest, measured"
        missing = f", {plural(len(report.missing), 'rank')} missing" if report.missing else ""
        foot = "↑↓ select  ⏎ slowest step in the timeline"
        panes = framed(self.title, body, (width, upper), note=lost + missing, foot=foot, boxed=boxed)
        chart = min(height - upper, _MOST_CHART)
        if chart > edges:
            panes += _skew_chart(report, (width, chart), boxed=boxed)
        lower = height - upper - chart
        if lower <= edges + 1:
            return panes
        if width < _BESIDE_FROM:
            return panes + _worst_steps(report, (width, lower), boxed=boxed)
        worst = _worst_steps(report, (_STEPS_WIDTH, lower), boxed=boxed)
        return panes + beside(worst, self._worker(report, (width - _STEPS_WIDTH, lower), boxed=boxed))

    @cached_property
    def _host(self) -> dict[str, HostWork]:
        return {work.process: work for work in host_work(self._trace)}

    def _worker(self, report: RankReport, size: tuple[int, int], *, boxed: bool) -> list[Line]:
        """Return the work of the selected worker in each step, and what its host did."""
        width, height = size
        inner, edges = inner_width(width, boxed=boxed), chrome_lines(boxed=boxed)
        rank = report.ranks[self.cursor.row]
        works = np.array([step.works_ns[self.cursor.row] for step in report.steps])
        top = max(1, *(step.slowest_ns for step in report.steps))
        host = self._host.get(process_label(rank.pid, rank.rank))
        lines = host.lines if host else ()
        high = max(height - len(lines) - 1 - 2 * edges, min(height // 2, _MOST_CHART) - edges, 1)
        chart = wide_chart((works / top).tolist(), inner, high)
        note = f"up to {units.format_ns(int(works.max()))}, full height {units.format_ns(top)}, measured"
        title = f"Work of rank {rank.rank} in each step"
        panes = framed(title, chart, (width, high + edges), note=note, boxed=boxed)
        if host and height - len(panes) > edges + 1:
            layout = TableLayout(_HOST_COLUMNS, inner)
            body = [layout.head(), *(_host_line(layout, line, host) for line in lines)]
            title = f"Host of rank {rank.rank}, a step"
            panes += framed(title, body, (width, height - len(panes)), note="measured", boxed=boxed)
        return (panes + [fit((), width)] * height)[:height]


def _rank_cells(rank: RankTotal, longest_ns: int) -> tuple[Span | tuple[Span, ...], ...]:
    return (
        (str(rank.rank), Role.STRONG),
        (str(rank.pid), Role.DIM),
        (units.format_ns(rank.step_ns), Role.VALUE),
        (units.format_ns(rank.work_ns), Role.PLAIN),
        (units.format_ns(rank.wait_ns), Role.PLAIN),
        bar(rank.work_ns / max(longest_ns, 1), _BAR),
        (f"{100 * rank.slowest_share:.0f}%", Role.PLAIN),
        ("straggler" if rank.is_straggler else "", Role.ALERT),
    )


def _host_line(layout: TableLayout, line: HostLine, work: HostWork) -> Line:
    each = line.total_ns // max(work.steps, 1)
    cells = (
        (line.kind.name.lower().replace("_", " "), Role.PLAIN),
        (printable(line.name), Role.PLAIN),
        (line.source.rpartition("/")[2] or "-", Role.DIM),
        (f"{line.count / max(work.steps, 1):.3g}", Role.DIM),
        (units.format_ns(each), Role.VALUE),
        bar(each / max(work.step_ns, 1), _BAR),
    )
    return layout.line(cells)


def _skew_chart(report: RankReport, size: tuple[int, int], *, boxed: bool) -> list[Line]:
    inner = inner_width(size[0], boxed=boxed)
    skews = np.array([step.skew_ns for step in report.steps])
    top = max(int(skews.max()), 1)
    chosen = np.linspace(0, len(skews) - 1, min(len(skews), 2 * inner)).astype(np.int64)
    lines = wide_chart((skews[chosen] / top).tolist(), inner, size[1] - chrome_lines(boxed=boxed))
    note = f"up to {units.format_ns(top)} between the fastest and the slowest"
    return framed("Skew of steps", lines, size, note=note, boxed=boxed)


def _worst_steps(report: RankReport, size: tuple[int, int], *, boxed: bool) -> list[Line]:
    """Return the steps whose workers are furthest apart."""
    layout = TableLayout(_STEP_COLUMNS, inner_width(size[0], boxed=boxed))
    body = [layout.head()]
    steps = sorted(report.steps, key=lambda step: (-step.skew_ns, step.step))
    for step in steps[: size[1]]:
        cells = (
            (str(step.step), Role.STRONG),
            (units.format_ns(step.skew_ns), Role.VALUE),
            (units.format_ns(step.slowest_ns), Role.PLAIN),
            (units.format_ns(step.fastest_ns), Role.PLAIN),
            (units.format_ns(step.wait_ns), Role.PLAIN),
            (f"rank {step.slowest_rank}", Role.PLAIN),
        )
        body.append(layout.line(cells))
    return framed("Steps with most skew", body, size, note="measured", boxed=boxed)
