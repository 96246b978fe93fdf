"""The page of workers: who is slow, and how far steps are apart."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from neurontools.base import units
from neurontools.base.text import plural
from neurontools.errors import NeuronToolsError
from neurontools.profiler.analysis.ranks import compare_ranks
from neurontools.tui.profile.page import ProfileListPage
from neurontools.tui.widgets.bars import bar
from neurontools.tui.widgets.charts import wide_chart
from neurontools.tui.widgets.frames import chrome_lines, framed, inner_width, is_boxed
from neurontools.tui.widgets.lines import Role
from neurontools.tui.widgets.table_lines import TableColumn, TableLayout

if TYPE_CHECKING:
    from neurontools.profiler.analysis.ranks import RankReport
    from neurontools.tui.widgets.lines import Line

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
_MOST_CHART = 12


class RanksPage(ProfileListPage):
    """Workers in a table, and the skew of their steps as a chart."""

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
        body = [layout.head()]
        self._top = 2
        for number in self.cursor.window(self.count, upper - edges - 1):
            rank = report.ranks[number]
            cells = (
                (str(rank.rank), Role.STRONG),
                (str(rank.pid), Role.DIM),
                (units.format_ns(rank.step_ns), Role.VALUE),
                (units.format_ns(rank.work_ns), Role.PLAIN),
                (units.format_ns(rank.wait_ns), Role.PLAIN),
                bar(rank.work_ns / max(longest, 1), _BAR),
                (f"{100 * rank.slowest_share:.0f}%", Role.PLAIN),
                ("straggler" if rank.is_straggler else "", Role.ALERT),
            )
            body.append(layout.line(cells, selected=number == self.cursor.row))
        lost = f"{units.format_ns(report.lost_ns)} of a step lost to the slowest, measured"
        missing = f", {plural(len(report.missing), 'rank')} missing" if report.missing else ""
        found = framed(self.title, body, (width, upper), note=lost + missing, boxed=boxed)
        chart = min(height - upper, _MOST_CHART)
        if chart > edges:
            found += _skew_chart(report, (width, chart), boxed=boxed)
        if height - upper - chart > edges + 1:
            found += _worst_steps(report, (width, height - upper - chart), boxed=boxed)
        return found


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
