"""The columns of the process table, and processes and jobs as short rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import Struct

from neurontools.base.text import printable
from neurontools.dashboard.process_rows import ProcessJob, ProcessRow, find_jobs, rank_of
from neurontools.dashboard.process_table import user_name
from neurontools.machine.machine_names import core_ranges
from neurontools.tui.top.numbers import size
from neurontools.tui.top.pages.trends import TREND, Trends
from neurontools.tui.widgets.bars import blocks
from neurontools.tui.widgets.frames import row
from neurontools.tui.widgets.lines import Line, Role, Span, fit, fixed, width_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from neurontools.tui.top.model import TopModel


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


_LEAST_COMMAND = 16
_MARK_WIDTH = 2
_NO_CORE = [1 << 30]


class Column(NamedTuple):
    """A column of the process table.

    `name` is in the configuration, `json_name` in JSON. `key` sorts by it and is underlined in the head; the highest
    `rank` is dropped first. `value` is in base units; a process without the value is sorted as 0.
    """

    name: str
    json_name: str
    head: str
    key: str
    width: int
    right: bool
    rank: int
    value: Callable[[ProcessRow], Any]
    text: Callable[[ProcessRow], str]

    def order(self, row: ProcessRow) -> Any:
        """Return the value by which rows are sorted."""
        value = self.value(row)
        return _NO_CORE if value == [] else 0.0 if value is None else value

    @property
    def descends(self) -> bool:
        """Whether rows start with the largest value: of all numbers but pids."""
        return self.right and self.name != "pid"


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


COLUMNS = {
    column.name: column
    for column in (
        Column("pid", "pid", "PID", "P", 8, True, 0, lambda row: row.process.pid, lambda row: str(row.process.pid)),
        Column("user", "user", "USER", "U", 8, False, 7, lambda row: user_name(row.process.uid), lambda row: user_name(row.process.uid)),
        Column("tag", "tag", "TAG", "T", 16, False, 2, lambda row: row.process.tag, lambda row: printable(row.process.tag)),
        Column("cores", "cores", "CORES", "C", 7, False, 1, lambda row: [use.core for use in row.process.cores], lambda row: core_ranges(tuple(use.core for use in row.process.cores))),
        Column("memory", "device_memory_bytes", "MEM", "M", 8, True, 1, lambda row: row.device_bytes, lambda row: size(row.device_bytes)),
        Column("utilization", "utilization", "UTIL", "I", 6, True, 0, lambda row: row.utilization, lambda row: f"{100 * row.utilization:.1f}%"),
        Column("executions", "executions_per_s", "EXEC/S", "X", 8, True, 3, lambda row: row.executions_s, lambda row: f"{row.executions_s:.1f}"),
        Column("errors", "failed_share", "ERR", "E", 6, True, 6, lambda row: row.failed_share, lambda row: f"{100 * row.failed_share:.1f}%" if row.failed_executions else "-"),
        Column("p50", "latency_p50_s", "LAT50", "L", 7, True, 5, lambda row: row.latency_s(50), lambda row: latency(row.latency_s(50))),
        Column("p99", "latency_p99_s", "LAT99", "A", 7, True, 4, lambda row: row.latency_s(99), lambda row: latency(row.latency_s(99))),
        Column("runtime", "runtime_version", "VERSION", "V", 9, False, 11, lambda row: row.process.runtime_version, lambda row: printable(row.process.runtime_version)),
        Column("age", "age_s", "AGE", "G", 6, True, 8, lambda row: row.age_s, lambda row: duration(row.age_s)),
        Column("cpu", "host_cpu_share", "HOST", "H", 6, True, 9, lambda row: row.host.cpu_share if row.host else None, lambda row: f"{_modelled(row)}{100 * row.host.cpu_share:.0f}%" if row.host else "-"),
        Column("resident", "host_resident_bytes", "RSS", "R", 8, True, 10, lambda row: row.host.resident_bytes if row.host else None, lambda row: f"{_modelled(row)}{size(row.host.resident_bytes)}" if row.host else "-"),
        Column("origin", "origin", "ORIGIN", "O", 9, False, 12, lambda row: row.process.origin, lambda row: row.process.origin),
        Column("command", "command", "COMMAND", "N", _LEAST_COMMAND, False, -1, lambda row: row.process.command, lambda row: printable(row.process.command)),
    )
}  # fmt: skip
"""The columns by name, in their order."""

_PID, _USER, _CORES, _COMMAND, UTILIZATION = (
    COLUMNS[name] for name in ("pid", "user", "cores", "command", "utilization")
)
_ALERTED = frozenset({"pid", "tag", "command"})
_ROLES = {"utilization": Role.VALUE, "errors": Role.ALERT}
DEFAULT_COLUMNS = tuple(column for column in COLUMNS.values() if column.name != "origin")


class Sorting(Struct, frozen=True):
    """A sort column with its direction, and a second one for equal rows."""

    column: Column = _CORES
    descending: bool = False
    then: tuple[Column, bool] = (_PID, False)

    def by(self, column: Column) -> Sorting:
        """Return the order after choosing a column: the same column reverses it, another one comes first."""
        if column is self.column:
            return Sorting(column, not self.descending, self.then)
        return Sorting(column, column.descends, (self.column, self.descending))


def ordered(rows: Sequence[ProcessRow], sorting: Sorting) -> tuple[ProcessRow, ...]:
    """Return the rows sorted; the sort is stable."""
    by_second = sorted(rows, key=sorting.then[0].order, reverse=sorting.then[1])
    return tuple(sorted(by_second, key=sorting.column.order, reverse=sorting.descending))


_LEAST_FOR_TREND = 118


class ProcessColumns(NamedTuple):
    """The columns that fit, in their order, and the cells of the sparkline after the utilization, 0 for none."""

    columns: tuple[Column, ...]
    trend: int

    def width_of(self, column: Column) -> int:
        """Return the cells of a column without the blank after it."""
        extra = self.trend + 1 if self.trend and column is UTILIZATION else 0
        return column.width + extra


def fitting(columns: Sequence[Column], width: int) -> ProcessColumns:
    """Return the columns that fit, in their order; the least important are dropped first."""
    trend = TREND if width >= _LEAST_FOR_TREND and UTILIZATION in columns else 0
    left = list(columns)
    room = width - (trend + 1 if trend else 0)
    while len(left) > 1 and _MARK_WIDTH + sum(column.width + 1 for column in left) > room:
        left.remove(max(left, key=lambda column: column.rank))
    return ProcessColumns(tuple(left), trend)


def head_line(shown: ProcessColumns, sorting: Sorting, width: int) -> Line:
    """Return the heads, with sort keys in the colour of keys and an arrow at the sort column."""
    spans: list[Span] = [(" " * _MARK_WIDTH, Role.DIM)]
    for column in shown.columns:
        arrow = ("↓" if sorting.descending else "↑") if column is sorting.column else ""
        text = fixed(column.head + arrow, column.width)
        if column.right:
            text = (column.head + arrow).rjust(column.width)[-column.width :]
        at = text.index(column.key)
        own = Role.VALUE if arrow else Role.DIM
        spans += [(text[:at], own), (text[at], Role.FRAME_KEY), (text[at + 1 :], own), (" ", own)]
        if shown.trend and column is UTILIZATION:
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
    texts = {column.name: column.text(one) for column in shown.columns}
    return _table_line(shown, texts, width, state, trend, one.process.uid)


def job_line(shown: ProcessColumns, job: ProcessJob, width: int, state: RowState, trend: str = "") -> Line:
    """Return a job's line: sums of its ranks, and its slowest one."""
    first = job.rows[0]
    cores = tuple(sorted({use.core for one in job.rows for use in one.process.cores}))
    found = {
        "pid": f"x{len(job.rows)}",
        "user": user_name(first.process.uid),
        "tag": printable(job.name),
        "cores": core_ranges(cores),
        "memory": size(job.device_bytes),
        "utilization": f"{100 * job.utilization:.1f}%",
        "executions": f"{job.executions_s:.1f}",
        "age": duration(max(one.age_s for one in job.rows)),
    }
    text = f"{printable(job.name)} x{len(job.rows)}"
    if job.slowest:
        slowest = f"slowest rank {job.slowest[0]}"
        text = f"{text}, {slowest} ({job.slowest[1]:.1f}x the median latency)"
        others = [column for column in shown.columns if column is not _COMMAND]
        room = width - _MARK_WIDTH - sum(shown.width_of(column) + 1 for column in others)
        if width_of(state.indent + text) > room:
            text = slowest  # tag and number of ranks have columns of their own
    found["command"] = text
    return _table_line(shown, found, width, state, trend, first.process.uid)


def _table_line(
    shown: ProcessColumns, texts: dict[str, str], width: int, state: RowState, trend: str, uid: int
) -> Line:
    spans: list[Span] = [(state.mark, Role.ALERT)]
    used = _MARK_WIDTH
    last = shown.columns[-1]
    for column in shown.columns:
        text = texts.get(column.name, "")
        if column is last and column is _COMMAND:
            text = fixed(state.indent + text, max(0, width - used))
        elif column.right:
            text = " " * max(0, column.width - width_of(text)) + fixed(
                text, min(column.width, width_of(text))
            )
        else:
            text = fixed(text, column.width)
        used += width_of(text) + 1
        own = user_role(uid) if column is _USER else _role(column, text)
        is_marked = state.role is Role.DIM or column.name in _ALERTED
        spans += [(text, (state.role if is_marked else None) or own), (" ", Role.PLAIN)]
        if shown.trend and column is UTILIZATION:
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
    return _ROLES.get(column.name, Role.PLAIN)
