"""Processes and jobs as short rows with a sparkline of their utilization."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from neurontools.base.text import printable
from neurontools.dashboard.history import SECOND_NS, SLOTS
from neurontools.dashboard.jobs import ProcessJob, find_jobs
from neurontools.dashboard.process_table import user_name
from neurontools.machine.machine_names import core_ranges
from neurontools.machine.machine_view import process_key
from neurontools.tui.top.numbers import size
from neurontools.tui.widgets.bars import blocks
from neurontools.tui.widgets.lines import Role, Span, fixed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from neurontools.dashboard.process_rows import ProcessRow
    from neurontools.machine.machine_view import ProcessKey
    from neurontools.tui.top.model import TopModel

_USERS = (Role.USER_1, Role.USER_2, Role.USER_3, Role.USER_4, Role.USER_5, Role.USER_6)
_NAME, _LEAST_NAME = 18, 10
_TREND = 12
_WIDE = 80


def user_role(uid: int) -> Role:
    """Return the colour of a user, the same in every pane."""
    return _USERS[uid % len(_USERS)]


class Trends:
    """The utilization of each process in the last minute, second by second, recorded while it is looked at.

    Seconds without a look repeat the value before them, unless `forget` says that they were not watched.
    """

    def __init__(self) -> None:
        self._second = -1
        self._is_watched = False
        self._values: dict[ProcessKey, deque[float | None]] = {}

    def look(self, model: TopModel) -> None:
        """Record the current second; what came before is taken from the history of the cores."""
        snapshot = model.shown.snapshot
        if snapshot is None or snapshot.taken_ns // SECOND_NS == self._second:
            return
        second = snapshot.taken_ns // SECOND_NS
        skipped = second - self._second - 1
        follows = skipped == 0 or (self._is_watched and 0 < skipped <= SLOTS)
        self._second, self._is_watched = second, True
        former, self._values = self._values, {}
        for row in model.shown.processes:
            key = process_key(row.process)
            values = former.get(key) if follows else None
            if values is None:
                values = deque(_from_cores(model, row), maxlen=SLOTS)
            else:
                values.extend([values[-1] if values else None] * skipped)
                values.append(row.utilization)
            self._values[key] = values

    def forget(self) -> None:
        """Take what comes before the next look from the history of the cores."""
        self._is_watched = False

    def of(self, row: ProcessRow) -> Sequence[float | None]:
        """Return the last minute of a process."""
        return self._values.get(process_key(row.process), ())

    def of_job(self, job: ProcessJob) -> Sequence[float | None]:
        """Return the last minute of a job: the mean of its ranks."""
        columns = [[*self.of(row)][-_TREND:] for row in job.rows]
        length = min(map(len, columns), default=0)
        return [_mean([column[len(column) - length + at] for column in columns]) for at in range(length)]


def _from_cores(model: TopModel, row: ProcessRow) -> Iterator[float | None]:
    series = [model.history.minute(("core", use.core)) for use in row.process.cores]
    age_s = max(1, int(row.age_s))
    for at in range(SLOTS if series else 0):
        slots = [slots[at] for slots in series if slots]
        known = [slot.mean for slot in slots if slot]
        yield sum(known) / len(known) if known and at >= SLOTS - age_s else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def trend_text(values: Sequence[float | None], cells: int) -> str:
    """Return a sparkline of a number of cells, the newest second on the right."""
    return blocks([*values][-cells:], headroom=True).rjust(cells)


def job_heads(width: int) -> Span:
    """Return the heads of the columns of `job_rows`."""
    name = _name_cells(width)
    text = f"{'PROCESS':<{name}} {'UTIL':<{_TREND}} {'':>6} {'MEM':>8}"
    if width >= _WIDE:
        text += f" {'CORES':<9} {'USER':<9} {'EXEC/S':>8}"
    return text, Role.DIM


def job_rows(model: TopModel, trends: Trends, width: int, room: int) -> Iterator[tuple[Span, ...]]:
    """Yield the spans of a row for each job or process, busiest first, at most `room`."""
    trends.look(model)
    found = sorted(find_jobs(model.shown.processes), key=lambda one: -len(_rows(one)))
    alerts = model.monitor.alerts_of_pid
    spare = room - len(found)
    shown: list[ProcessJob | ProcessRow] = []
    for one in found:
        shown.append(one)
        if isinstance(one, ProcessJob) and spare > 0:
            slowest_first = sorted(one.rows, key=lambda row: -(row.latency_s(50) or 0.0))
            shown += slowest_first[:spare]
            spare -= len(one.rows)
    ranks = {id(row) for one in found if isinstance(one, ProcessJob) for row in one.rows}
    for one in shown[:room]:
        rows = _rows(one)
        slowest = one.slowest if isinstance(one, ProcessJob) else None
        values = trends.of_job(one) if isinstance(one, ProcessJob) else trends.of(one)
        has_alert = any(row.process.pid in alerts for row in rows)
        indent = "  " if id(one) in ranks else ""
        name = fixed(f"{indent}{'!' if has_alert else ''}{_label(one)}", _name_cells(width))
        share = one.utilization
        spans: list[Span] = [
            (f"{name} ", Role.ALERT if has_alert else Role.PLAIN),
            (trend_text(values, _TREND), Role.GRAPH),
            (f" {100 * share:5.1f}%", Role.VALUE if share else Role.DIM),
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
    return max(_LEAST_NAME, min(_NAME, width - _TREND - 18))
