"""Processes and jobs as short rows with a sparkline of their utilization."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.base.text import printable
from neurontools.dashboard.process_rows import ProcessJob, find_jobs, rank_of
from neurontools.dashboard.process_table import user_name
from neurontools.machine.machine_names import core_ranges
from neurontools.tui.top.numbers import size
from neurontools.tui.top.pages.trends import TREND
from neurontools.tui.widgets.bars import blocks
from neurontools.tui.widgets.lines import Role, Span, fixed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from neurontools.dashboard.process_rows import ProcessRow
    from neurontools.tui.top.model import TopModel
    from neurontools.tui.top.pages.trends import Trends

_USERS = (Role.USER_1, Role.USER_2, Role.USER_3, Role.USER_4, Role.USER_5, Role.USER_6)
_NAME, _LEAST_NAME = 18, 10
_WIDE = 80


def user_role(uid: int) -> Role:
    """Return the colour of a user, the same in every pane."""
    return _USERS[uid % len(_USERS)]


def trend_text(values: Sequence[float | None], cells: int) -> str:
    """Return a sparkline of a number of cells, the newest second on the right."""
    return blocks([*values][-cells:], headroom=True).rjust(cells)


def job_heads(width: int) -> Span:
    """Return the heads of the columns of `job_rows`."""
    name = _name_cells(width)
    text = f"{'PROCESS':<{name}} {'UTIL':<{TREND}} {'':>6} {'MEM':>8}"
    if width >= _WIDE:
        text += f" {'CORES':<9} {'USER':<9} {'EXEC/S':>8}"
    return text, Role.DIM


def job_rows(model: TopModel, trends: Trends, width: int, room: int) -> Iterator[tuple[Span, ...]]:
    """Yield the spans of a row for each job or process, busiest first, at most `room`."""
    trends.look(model)
    found = sorted(find_jobs(model.shown.processes), key=lambda one: -len(_rows(one)))
    alerts, has_rates = model.monitor.alerts_of_pid, model.shown.has_rates
    spare = room - len(found)
    shown: list[ProcessJob | ProcessRow] = []
    for one in found:
        shown.append(one)
        if isinstance(one, ProcessJob) and spare > 0:
            slowest_first = sorted(one.rows, key=lambda row: -(row.latency_s(50) or 0.0))
            shown += slowest_first[:spare]
            spare -= len(one.rows)
    ranks = {
        id(row): rank_of(row, at)
        for one in found
        if isinstance(one, ProcessJob)
        for at, row in enumerate(one.rows)
    }
    for one in shown[:room]:
        rows = _rows(one)
        slowest = one.slowest if isinstance(one, ProcessJob) else None
        values = trends.of_job(one) if isinstance(one, ProcessJob) else trends.of(one)
        has_alert = any(row.process.pid in alerts for row in rows)
        mark = "!" if has_alert else ""
        label = f"  {mark}rank {ranks[id(one)]}" if id(one) in ranks else mark + _label(one)
        share = one.utilization
        spans: list[Span] = [
            (f"{fixed(label, _name_cells(width))} ", Role.ALERT if has_alert else Role.PLAIN),
            (trend_text(values, TREND), Role.GRAPH),
            (f" {100 * share:5.1f}%" if has_rates else f"{'-':>7}", Role.VALUE if share else Role.DIM),
            (f" {size(one.device_bytes):>8}", Role.PLAIN if one.device_bytes else Role.DIM),
        ]
        if width >= _WIDE:
            uid = rows[0].process.uid
            cores = core_ranges(tuple(sorted({use.core for row in rows for use in row.process.cores})))
            spans += [
                (f" {fixed(cores, 9)}", Role.PLAIN),
                (f" {fixed(user_name(uid), 9)}", user_role(uid)),
                (f" {one.executions_s:8.1f}", Role.PLAIN if one.executions_s else Role.DIM),
            ]
        if slowest:
            spans.append((f"  slowest rank {slowest[0]}", Role.ALERT))
        yield tuple(spans)


def _rows(one: ProcessJob | ProcessRow) -> tuple[ProcessRow, ...]:
    return one.rows if isinstance(one, ProcessJob) else (one,)


def _label(one: ProcessJob | ProcessRow) -> str:
    if isinstance(one, ProcessJob):
        return f"{printable(one.name)} x{len(one.rows)}"
    return printable(one.process.tag) or printable(one.process.command)


def _name_cells(width: int) -> int:
    return max(_LEAST_NAME, min(_NAME, width - TREND - 18))
