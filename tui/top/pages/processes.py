"""The page of processes: a table in any order, filtered, as a tree, with details, signals and the clipboard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from neurontools.base.filters import FilterError
from neurontools.base.text import plural, printable
from neurontools.dashboard.local_processes import CHOICES, rejection_reason, send_signal
from neurontools.dashboard.process_rows import ProcessJob, find_jobs, presences
from neurontools.dashboard.process_table import ProcessFilter, TreeLine, tree, user_name
from neurontools.errors import NeuronToolsError
from neurontools.machine.machine_view import process_key
from neurontools.machine.snapshot import UNKNOWN_UID
from neurontools.tui.top.page import ListPage, PageKey, switch
from neurontools.tui.top.pages.columns import (
    COLUMNS,
    DEFAULT_COLUMNS,
    Column,
    ProcessColumns,
    RowState,
    Sorting,
    column_at,
    fitting,
    head_line,
    job_line,
    ordered,
    row_line,
    trend_text,
)
from neurontools.tui.top.pages.details import LEAST_FOR_CHARTS, Details
from neurontools.tui.top.pages.trends import Trends
from neurontools.tui.widgets.frames import chrome_lines, framed, inner_width, is_boxed, row
from neurontools.tui.widgets.lines import Line, Role, fit
from neurontools.tui.widgets.requests import Choose, Copy, Notice, Prompt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.dashboard.process_rows import JobKey, ProcessRow
    from neurontools.machine.machine_view import ProcessKey
    from neurontools.tui.top.model import TopModel
    from neurontools.tui.top.page import PageOptions
    from neurontools.tui.widgets.requests import Request

_LEAST_DETAILS, _MOST_DETAILS = 6, 85  # lines, percent
_LEAST_FOR_BOTH = 30
_LEAST_FREE = 14
_HEADS = 4
_FOOT = "⏎ details  / filter  s sort  g group  t tree"
_HINTS = (
    "",
    " neuron-run -- python train.py                  runs a script on the device",
    " neurontools scenario play training-32          plays synthetic load",
)
_FILTER_TITLE = "filter (like neuron-ls --filter; enter keeps it, escape clears it)"
_NO_PROCESS = Notice("no process is selected")


class JobLine(Struct, frozen=True):
    """A line of the table for all ranks of a job, which are listed below it while it is open."""

    job: ProcessJob
    is_open: bool


TableRow = TreeLine | JobLine


def _key(line: TableRow) -> ProcessKey | JobKey | None:
    if isinstance(line, JobLine):
        return line.job.key
    return process_key(line.row.process) if line.row else None


class ProcessesPage(ListPage):
    """The process table; the selection follows its process.

    Args:
        columns: shown as far as they fit.
        readonly: offer no signals.
    """

    name = "processes"
    letter = "p"

    def __init__(self, columns: Sequence[Column] = DEFAULT_COLUMNS, *, readonly: bool = False) -> None:
        super().__init__()
        self._top = 2
        self.readonly = readonly
        self.sorting = Sorting()
        self.filter_text = ""
        self._columns = tuple(columns)
        self._filter = ProcessFilter()
        self._details = Details()
        self._selected: ProcessKey | JobKey | None = None
        self._is_tree = False
        self._has_details: bool | None = None
        """Whether details are shown; None shows them where there is plenty of room."""
        self._shows_details = False
        self._room = 0
        self._shown_columns = ProcessColumns((), 0)
        self._trends = Trends()
        self._is_grouped = True
        self._toggled: set[JobKey] = set()
        self._left = 0

    @classmethod
    def make(cls, options: PageOptions) -> ProcessesPage:
        """Return the page with the columns and the filter of the user."""
        page = cls(options.columns or DEFAULT_COLUMNS, readonly=options.readonly)
        page.filter_by(options.process_filter)
        return page

    def bindings(self) -> tuple[PageKey, ...]:
        """Return its keys."""
        return (
            *self._list_keys("select a process", "ten processes", "first process", "last process", hint=""),
            PageKey("filter", "slash", "filter like neuron-ls", lambda _: Prompt(_FILTER_TITLE, self.filter_text, self.filter_by), "filter"),
            PageKey("no-filter", "escape", "close the details or clear the filter", self._step_back),
            PageKey("details", "enter", "details of the process", self._toggle_details, "details"),
            PageKey("scroll-up", "less_than_sign,comma", "scroll the details up", lambda _: self._details.scroll(-5)),
            PageKey("scroll-down", "greater_than_sign,full_stop", "scroll the details down", lambda _: self._details.scroll(5)),
            PageKey("span", "u", "last minute or last hour in the details", switch(self._details, "hour")),
            PageKey("live", "w", "live profile of the process in its details", self._toggle_live),
            PageKey("tree", "t", "tree by parent process", switch(self, "_is_tree"), "tree"),
            PageKey("group", "g", "ranks of a job as one row, or each on its own", switch(self, "_is_grouped"), "group"),
            PageKey("sort", "s", "sort by the next column", self._sort_next, "sort"),
            PageKey("reverse", "S", "reverse the order", self._sorter(self.sorting.column)),
            PageKey("signal", "K", "send a signal (asks first)", self._ask_signal, "" if self.readonly else "kill"),
            PageKey("copy", "y", "copy the pid", lambda model: self._copy(model, "pid", "pid {}"), "copy pid"),
            PageKey("copy-command", "Y", "copy the command line", lambda model: self._copy(model, "command", "the command line")),
            *(
                PageKey(f"sort-{name}", column.key, f"sort by {name}; again: reverse", self._sorter(column))
                for name, column in COLUMNS.items()
            ),
        )  # fmt: skip

    def lines(self, model: TopModel, width: int, height: int) -> Sequence[Line]:
        """Return the table and, if opened, the details below it."""
        self._room = height - 2 * chrome_lines(boxed=is_boxed(width, height))
        return self._drawn(model, self._shown(model), width, height)

    def all_lines(self, model: TopModel, width: int) -> Sequence[Line]:
        """Return the table with every process."""
        shown = self._processes(model)
        return self._drawn(model, shown, width, max(1, len(shown)) + 2, boxed=False)

    def _drawn(
        self,
        model: TopModel,
        shown: Sequence[TableRow],
        width: int,
        height: int,
        *,
        boxed: bool | None = None,
    ) -> list[Line]:
        self._place(shown)
        subject = self._subject(shown, width)
        free = height - len(shown) - _HEADS
        has_room = height > _LEAST_FOR_BOTH and free >= _LEAST_FREE
        has_details = has_room if self._has_details is None else self._has_details
        has_details = self._shows_details = has_details and subject is not None
        below = max(_LEAST_DETAILS, height // 2) if has_details and height >= 2 * _LEAST_DETAILS else 0
        if below and free >= _LEAST_FREE:
            below = min(free + 1, _MOST_DETAILS * height // 100)
        boxed = is_boxed(width, height) if boxed is None else boxed
        inner = inner_width(width, boxed=boxed)
        self._left = (width - inner) // 2
        self._place(shown)
        columns = self._shown_columns = fitting(self._columns, inner)
        if columns.trend:
            self._trends.look(model)
        window = self._cursor.window(len(shown), max(1, height - below - chrome_lines(boxed=boxed) - 1))
        self._remember(shown)
        body = [head_line(columns, self.sorting, inner)]
        body += [
            self._line(model, shown[at], columns, inner, selected=at == self._cursor.row) for at in window
        ]
        if not shown:
            text = " no process uses a device" if not self.filter_text else " no process matches the filter"
            body.append(fit(((text, Role.DIM),), inner))
            body += [] if self.filter_text else [fit(((hint, Role.DIM),), inner) for hint in _HINTS]
        title, note = self._title(model), self._note(window, len(shown))
        drawn = framed(title, body, (width, height - below), note=note, foot=_FOOT, boxed=boxed)
        return [*drawn, *self._details.lines(model, subject, width, below, boxed=boxed)]

    def wanted_lines(self, model: TopModel) -> int:
        """Return how many lines show every process."""
        return 2 + max(1, len(self._shown(model)))

    def click(self, model: TopModel, x: int, y: int) -> Request | None:
        """Sort by the head under the mouse, or select the process; a click on the selected one opens its details."""
        if y == 1:
            column = column_at(self._shown_columns, x - self._left)
            return self._sorter(column)(model) if column else None
        shown = self._shown(model)
        row = self._row_at(y, len(shown))
        if row is not None:
            if row == self._cursor.row:
                self._toggle_details(model)
            else:
                self._cursor.row = row
                self._remember(shown)
        return None

    def data(self, model: TopModel) -> dict[str, Any]:
        """Return the rows that pass the filter, in order."""
        return {"processes": [_row_data(model, line.row) for line in self._processes(model) if line.row]}

    def filter_by(self, text: str) -> str:
        """Set the filter; an invalid filter leaves the previous one.

        Returns:
            The error in it, or "".
        """
        try:
            self._filter = ProcessFilter(text)
        except FilterError as error:
            return str(error)
        self.filter_text = text.strip()
        return ""

    def _shown(self, model: TopModel) -> tuple[TableRow, ...]:
        rows = self._rows(model)
        if self._is_tree:
            return self._as_tree(model, rows)
        if not self._is_grouped:
            return tuple(TreeLine(one.process.pid, 0, one) for one in rows)
        lines: list[TableRow] = []
        for one in find_jobs(rows):
            if not isinstance(one, ProcessJob):
                lines.append(TreeLine(one.process.pid, 0, one))
                continue
            is_open = self._is_open(one, rows)
            lines.append(JobLine(one, is_open))
            if is_open:
                ranks = {process_key(rank.process) for rank in one.rows}
                lines += [
                    TreeLine(rank.process.pid, 1, rank) for rank in rows if process_key(rank.process) in ranks
                ]
        return tuple(lines)

    def _is_open(self, job: ProcessJob, rows: Sequence[ProcessRow]) -> bool:
        # Ranks are listed without being asked for where there is room for all processes.
        room = self._room // 2 if self._has_details else self._room
        return (len(rows) + _HEADS < room) != (job.key in self._toggled)

    def _processes(self, model: TopModel) -> tuple[TreeLine, ...]:
        rows = self._rows(model)
        if self._is_tree:
            return self._as_tree(model, rows)
        return tuple(TreeLine(one.process.pid, 0, one) for one in rows)

    def _rows(self, model: TopModel) -> tuple[ProcessRow, ...]:
        if model.shown.snapshot is None:
            return ()
        return ordered(self._filter(model.shown.snapshot, model.shown.processes), self.sorting)

    def _as_tree(self, model: TopModel, rows: Sequence[ProcessRow]) -> tuple[TreeLine, ...]:
        if model.shown.snapshot is None:
            return ()
        parents = {key[0]: found.parent_pid for key, found in presences(model.shown.snapshot).items()}
        return tree(rows, parents)

    def _place(self, shown: Sequence[TableRow]) -> None:
        for at, line in enumerate(shown):
            if _key(line) is not None and _key(line) == self._selected:
                self._cursor.row = at
                return

    def _remember(self, shown: Sequence[TableRow]) -> None:
        self._selected = _key(shown[self._cursor.row]) if self._cursor.row < len(shown) else None

    def _row(self, shown: Sequence[TableRow]) -> ProcessRow | None:
        if self._cursor.row >= len(shown):
            return None
        line = shown[self._cursor.row]
        return line.row if isinstance(line, TreeLine) else None

    def _subject(self, shown: Sequence[TableRow], width: int) -> ProcessRow | ProcessJob | None:
        # A job has details where they have room beside its ranks, which enter opens and closes.
        line = shown[self._cursor.row] if self._cursor.row < len(shown) else None
        if isinstance(line, JobLine):
            return line.job if width >= LEAST_FOR_CHARTS or not line.is_open else None
        return line.row if line else None

    def _current(self, model: TopModel) -> ProcessRow | None:
        shown = self._shown(model)
        self._place(shown)
        return self._row(shown)

    def _title(self, model: TopModel) -> str:
        total, count = len(model.shown.processes), len(self._rows(model))
        text = f"Processes ({count} of {total})" if count != total else f"Processes ({total})"
        return f"{text}  filter: {printable(self.filter_text)}" if self.filter_text else text

    def _note(self, window: range, count: int) -> str:
        direction = "down" if self.sorting.descending else "up"
        how = "tree, " if self._is_tree else ""
        note = f"{how}by {self.sorting.column.name} {direction}, then {self.sorting.then[0].name}"
        return note if len(window) == count else f"{window.start + 1}-{window.stop} of {count}  {note}"

    def _line(
        self, model: TopModel, line: TableRow, columns: ProcessColumns, width: int, *, selected: bool
    ) -> Line:
        alerts = model.monitor.alerts_of_pid
        if isinstance(line, JobLine):
            mark = "!" if any(one.process.pid in alerts for one in line.job.rows) else " "
            state = RowState(
                mark, "▾ " if line.is_open else "▸ ", selected, Role.ALERT if mark == "!" else None
            )
            trend = trend_text(self._trends.of_job(line.job), columns.trend) if columns.trend else ""
            return job_line(columns, line.job, width, state, trend)
        indent = "  " * max(0, line.depth - 1) + ("`-" if line.depth and self._is_tree else "")
        if line.row is None:
            text = f" {line.pid:>8} {indent} (parent, uses no device)"
            return row(((text, Role.DIM),), width, selected=selected)
        has_alert = line.row.process.pid in alerts
        role = Role.ALERT if has_alert else Role.DIM if line.row.process.stale else None
        if line.depth and not self._is_tree:
            indent = "  "
        state = RowState("!" if has_alert else " ", indent, selected, role)
        trend = trend_text(self._trends.of(line.row), columns.trend) if columns.trend else ""
        return row_line(columns, line.row, width, state, trend)

    def _move(self, model: TopModel, steps: int) -> None:
        shown = self._shown(model)
        self._place(shown)
        self._cursor.move(steps, len(shown))
        self._remember(shown)
        self._details.first = 0

    def _sorter(self, column: Column) -> Any:
        def sort(_model: TopModel) -> None:
            self.sorting = self.sorting.by(column)

        return sort

    def _toggle_details(self, model: TopModel) -> None:
        shown = self._shown(model)
        self._place(shown)
        line = shown[self._cursor.row] if self._cursor.row < len(shown) else None
        if isinstance(line, JobLine):
            self._toggled ^= {line.job.key}
        else:
            self._has_details = not self._shows_details

    def _sort_next(self, _model: TopModel) -> None:
        columns = self._shown_columns.columns or self._columns
        at = columns.index(self.sorting.column) if self.sorting.column in columns else -1
        self.sorting = self.sorting.by(columns[(at + 1) % len(columns)])

    def _toggle_live(self, _model: TopModel) -> None:
        self._has_details = True
        self._details.toggle_live()

    def _step_back(self, _model: TopModel) -> None:
        if self._shows_details:
            self._has_details = False
        else:
            self.filter_by("")

    def _copy(self, model: TopModel, name: str, words: str) -> Request:
        row = self._current(model)
        text = str(COLUMNS[name].value(row)) if row else ""
        return Copy(text, words.format(text)) if row else _NO_PROCESS

    def _ask_signal(self, model: TopModel) -> Request:
        row = self._current(model)
        if self.readonly:
            return Notice("neuron-top was started with --readonly", problem=True)
        if row is None or model.shown.snapshot is None:
            return _NO_PROCESS
        process = row.process
        if reason := rejection_reason(process, model.shown.snapshot.source):
            return Notice(reason, problem=True)
        about = (
            f"process {process.pid} of {user_name(process.uid)}",
            printable(process.command),
            f"holds {plural(len(process.cores), 'core')}",
        )

        def send(choice: int) -> Request:
            try:
                send_signal(process.pid, process.start_ticks, CHOICES[choice])
            except NeuronToolsError as error:
                return Notice(f"{error.message}{f' ({error.remedy})' if error.remedy else ''}", problem=True)
            return Notice(f"{CHOICES[choice].name} sent to process {process.pid}")

        return Choose("Send a signal?", about, tuple(choice.name for choice in CHOICES), send)


def _row_data(model: TopModel, row: ProcessRow) -> dict[str, Any]:
    alerts = model.monitor.alerts_of_pid.get(row.process.pid, ())
    return {
        **{column.json_name: column.value(row) for column in COLUMNS.values()},
        "user": None if row.process.uid == UNKNOWN_UID else user_name(row.process.uid),
        "gpsimd_modelled_s": row.gpsimd_ns / 1e9,
        "alerts": [str(alert.condition) for alert in alerts],
    }
