"""The columns of the process table: heads with sort keys, widths, and cell texts."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from neurontools.base.text import printable
from neurontools.dashboard.process_table import Column, user_name
from neurontools.machine.machine_names import core_ranges
from neurontools.tui.top.numbers import size
from neurontools.tui.top.pages.job_rows import user_role
from neurontools.tui.top.pages.trends import TREND
from neurontools.tui.widgets.frames import row
from neurontools.tui.widgets.lines import Line, Role, Span, fit, fixed, width_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from neurontools.dashboard.process_rows import ProcessJob, ProcessRow
    from neurontools.dashboard.process_table import Sorting

_LEAST_COMMAND = 16
_MARK_WIDTH = 2
_ALERTED = frozenset({Column.PID, Column.TAG, Column.COMMAND})

DEFAULT_COLUMNS = tuple(column for column in Column if column is not Column.ORIGIN)


class ColumnStyle(NamedTuple):
    """The layout of a column. `key` sorts by it and is underlined in the head; the highest `rank` is dropped first."""

    head: str
    key: str
    width: int
    right: bool
    rank: int
    text: Callable[[ProcessRow], str]


def duration(seconds: float) -> str:
    """Format an age in at most six cells: `42s`, `12m05s`, `3h07m`, `12d03h`."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"


def latency(seconds: float | None) -> str:
    """Format a latency: `850us`, `12.3ms`, `1.20s`, `-` for none."""
    if seconds is None:
        return "-"
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f}us"
    return f"{seconds * 1e3:.1f}ms" if seconds < 1 else f"{seconds:.2f}s"


def _modelled(row: ProcessRow) -> str:
    return "~" if row.is_modelled else ""


COLUMN_STYLES: dict[Column, ColumnStyle] = {
    Column.PID: ColumnStyle("PID", "P", 8, True, 0, lambda row: str(row.process.pid)),
    Column.USER: ColumnStyle("USER", "U", 8, False, 7, lambda row: user_name(row.process.uid)),
    Column.TAG: ColumnStyle("TAG", "T", 16, False, 2, lambda row: printable(row.process.tag)),
    Column.CORES: ColumnStyle("CORES", "C", 7, False, 1, lambda row: core_ranges(tuple(use.core for use in row.process.cores))),
    Column.MEMORY: ColumnStyle("MEM", "M", 8, True, 1, lambda row: size(row.device_bytes)),
    Column.UTILIZATION: ColumnStyle("UTIL", "I", 6, True, 0, lambda row: f"{100 * row.utilization:.1f}%"),
    Column.EXECUTIONS: ColumnStyle("EXEC/S", "X", 8, True, 3, lambda row: f"{row.executions_s:.1f}"),
    Column.ERRORS: ColumnStyle("ERR", "E", 6, True, 6, lambda row: f"{100 * row.failed_share:.1f}%" if row.failed_executions else "-"),
    Column.P50: ColumnStyle("LAT50", "L", 7, True, 5, lambda row: latency(row.latency_s(50))),
    Column.P99: ColumnStyle("LAT99", "A", 7, True, 4, lambda row: latency(row.latency_s(99))),
    Column.RUNTIME: ColumnStyle("VERSION", "V", 9, False, 11, lambda row: printable(row.process.runtime_version)),
    Column.AGE: ColumnStyle("AGE", "G", 6, True, 8, lambda row: duration(row.age_s)),
    Column.CPU: ColumnStyle("HOST", "H", 6, True, 9, lambda row: f"{_modelled(row)}{100 * row.host.cpu_share:.0f}%" if row.host else "-"),
    Column.RESIDENT: ColumnStyle("RSS", "R", 8, True, 10, lambda row: f"{_modelled(row)}{size(row.host.resident_bytes)}" if row.host else "-"),
    Column.ORIGIN: ColumnStyle("ORIGIN", "O", 9, False, 12, lambda row: row.process.origin),
    Column.COMMAND: ColumnStyle("COMMAND", "N", _LEAST_COMMAND, False, -1, lambda row: printable(row.process.command)),
}  # fmt: skip


_LEAST_FOR_TREND = 118


class ProcessColumns(NamedTuple):
    """The columns that fit, in their order, and the cells of the sparkline after the utilization, 0 for none."""

    columns: tuple[Column, ...]
    trend: int

    def width_of(self, column: Column) -> int:
        """Return the cells of a column without the blank after it."""
        extra = self.trend + 1 if self.trend and column is Column.UTILIZATION else 0
        return COLUMN_STYLES[column].width + extra


def fitting(columns: Sequence[Column], width: int) -> ProcessColumns:
    """Return the columns that fit, in their order; the least important are dropped first."""
    trend = TREND if width >= _LEAST_FOR_TREND and Column.UTILIZATION in columns else 0
    left = list(columns)
    room = width - (trend + 1 if trend else 0)
    while len(left) > 1 and _MARK_WIDTH + sum(COLUMN_STYLES[column].width + 1 for column in left) > room:
        left.remove(max(left, key=lambda column: COLUMN_STYLES[column].rank))
    return ProcessColumns(tuple(left), trend)


def head_line(shown: ProcessColumns, sorting: Sorting, width: int) -> Line:
    """Return the heads, with sort keys in the colour of keys and an arrow at the sort column."""
    spans: list[Span] = [(" " * _MARK_WIDTH, Role.DIM)]
    for column in shown.columns:
        look = COLUMN_STYLES[column]
        arrow = ("↓" if sorting.descending else "↑") if column is sorting.column else ""
        text = fixed(look.head + arrow, look.width)
        if look.right:
            text = (look.head + arrow).rjust(look.width)[-look.width :]
        at = text.index(look.key)
        own = Role.VALUE if arrow else Role.DIM
        spans += [(text[:at], own), (text[at], Role.FRAME_KEY), (text[at + 1 :], own), (" ", own)]
        if shown.trend and column is Column.UTILIZATION:
            spans.append((" " * (shown.trend + 1), own))
    return fit(spans, width)


class RowState(Struct, frozen=True):
    """How a row is drawn: its mark, what is before its last column, whether it is selected, its role if it has one."""

    mark: str = " "
    indent: str = ""
    selected: bool = False
    role: Role | None = None


def row_line(shown: ProcessColumns, one: ProcessRow, width: int, state: RowState, trend: str = "") -> Line:
    """Return a process's line.

    Args:
        shown: the visible columns.
        one: the process.
        width: cells in the line.
        state: how it is drawn.
        trend: its sparkline.
    """
    texts = {column: COLUMN_STYLES[column].text(one) for column in shown.columns}
    return _table_line(shown, texts, width, state, trend, one.process.uid)


def job_line(shown: ProcessColumns, job: ProcessJob, width: int, state: RowState, trend: str = "") -> Line:
    """Return a job's line: sums of its ranks, and its slowest one."""
    first = job.rows[0]
    cores = tuple(sorted({use.core for one in job.rows for use in one.process.cores}))
    found = {
        Column.PID: f"x{len(job.rows)}",
        Column.USER: user_name(first.process.uid),
        Column.TAG: printable(job.name),
        Column.CORES: core_ranges(cores),
        Column.MEMORY: size(job.device_bytes),
        Column.UTILIZATION: f"{100 * job.utilization:.1f}%",
        Column.EXECUTIONS: f"{job.executions_s:.1f}",
        Column.AGE: duration(max(one.age_s for one in job.rows)),
    }
    text = f"{printable(job.name)} x{len(job.rows)}"
    if job.slowest:
        slowest = f"slowest rank {job.slowest[0]}"
        text = f"{text}, {slowest} ({job.slowest[1]:.1f}x the median latency)"
        others = [column for column in shown.columns if column is not Column.COMMAND]
        room = width - _MARK_WIDTH - sum(shown.width_of(column) + 1 for column in others)
        if width_of(state.indent + text) > room:
            text = slowest  # tag and number of ranks have columns of their own
    found[Column.COMMAND] = text
    texts = {column: found.get(column, "") for column in shown.columns}
    return _table_line(shown, texts, width, state, trend, first.process.uid)


def _table_line(
    shown: ProcessColumns, texts: dict[Column, str], width: int, state: RowState, trend: str, uid: int
) -> Line:
    spans: list[Span] = [(state.mark, Role.ALERT)]
    used = _MARK_WIDTH
    last = shown.columns[-1]
    for column in shown.columns:
        look, text = COLUMN_STYLES[column], texts[column]
        if column is last and column is Column.COMMAND:
            text = fixed(state.indent + text, max(0, width - used))
        elif look.right:
            text = " " * max(0, look.width - width_of(text)) + fixed(text, min(look.width, width_of(text)))
        else:
            text = fixed(text, look.width)
        used += width_of(text) + 1
        own = user_role(uid) if column is Column.USER else _role(column, text)
        is_marked = state.role is Role.DIM or column in _ALERTED
        spans += [(text, (state.role if is_marked else None) or own), (" ", Role.PLAIN)]
        if shown.trend and column is Column.UTILIZATION:
            spans.append((f"{trend:<{shown.trend}} ", Role.GRAPH))
            used += shown.trend + 1
    return row(spans, width, selected=state.selected)


def column_at(shown: ProcessColumns, x: int) -> Column | None:
    """Return the column whose head is at a cell; the last column takes the rest."""
    left = _MARK_WIDTH
    for column in shown.columns:
        left += shown.width_of(column) + 1
        if x < left:
            return column
    return shown.columns[-1] if shown.columns else None


def _role(column: Column, text: str) -> Role:
    value = text.strip().removeprefix("~")
    if value in {"-", "0.0%", "0.0", "0.0B", "0%"}:
        return Role.DIM
    if column in {Column.UTILIZATION, Column.MEMORY}:
        return Role.VALUE if column is Column.UTILIZATION else Role.PLAIN
    return Role.ALERT if column is Column.ERRORS else Role.PLAIN
