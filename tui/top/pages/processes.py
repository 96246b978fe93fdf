"""The page of processes: a table in any order, filtered, as a tree, with details, signals and the clipboard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neurontools.base.text import plural, printable
from neurontools.dashboard.local_processes import CHOICES, rejection_reason, send_signal
from neurontools.dashboard.process_rows import presences
from neurontools.dashboard.process_table import (
    Column,
    ProcessFilter,
    Sorting,
    TreeLine,
    ordered,
    tree,
    user_name,
)
from neurontools.errors import NeuronToolsError
from neurontools.machine.listing.filters import FilterError
from neurontools.machine.machine_view import process_key
from neurontools.machine.snapshot import UNKNOWN_UID
from neurontools.tui.top.page import ListPage, PageKey
from neurontools.tui.top.pages.columns import (
    COLUMN_STYLES,
    DEFAULT_COLUMNS,
    column_at,
    fitting,
    head_line,
    row_line,
)
from neurontools.tui.top.pages.details import Details
from neurontools.tui.top.pages.rows import section
from neurontools.tui.widgets.lines import Line, Role, fit
from neurontools.tui.widgets.requests import Choose, Copy, Notice, Prompt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.dashboard.process_rows import ProcessRow
    from neurontools.machine.machine_view import ProcessKey
    from neurontools.tui.top.model import TopModel
    from neurontools.tui.widgets.requests import Request

_LEAST_DETAILS = 6
_NO_PROCESS = Notice("no process is selected")


class ProcessesPage(ListPage):
    """The process table; the selection follows its process.

    Args:
        columns: shown as far as they fit.
        readonly: offer no signals.
    """

    name = "processes"
    title = "Processes"

    def __init__(self, columns: Sequence[Column] = DEFAULT_COLUMNS, *, readonly: bool = False) -> None:
        super().__init__()
        self._top = 2
        self.readonly = readonly
        self.sorting = Sorting()
        self.filter_text = ""
        self._columns = tuple(columns)
        self._filter = ProcessFilter()
        self._details = Details()
        self._selected: ProcessKey | None = None
        self._is_tree = False
        self._has_details = False
        self._shown_columns: tuple[Column, ...] = ()

    def bindings(self) -> tuple[PageKey, ...]:
        """Return its keys."""
        return (
            *self._list_keys("select a process", "ten processes", "first process", "last process", hint=""),
            PageKey("filter", "slash", "filter like neuron-ls", self._ask_filter, "filter"),
            PageKey("no-filter", "escape", "close the details or clear the filter", self._step_back),
            PageKey("details", "enter", "details of the process", self._toggle_details, "details"),
            PageKey("scroll-up", "less_than_sign,comma", "scroll the details up", lambda _: self._details.scroll(-5)),
            PageKey("scroll-down", "greater_than_sign,full_stop", "scroll the details down", lambda _: self._details.scroll(5)),
            PageKey("span", "u", "last minute or last hour in the details", self._change_span),
            PageKey("tree", "t", "tree by parent process", self._toggle_tree, "tree"),
            PageKey("signal", "k", "send a signal (asks first)", self._ask_signal, "" if self.readonly else "kill"),
            PageKey("copy", "y", "copy the pid", self._copy_pid, "copy pid"),
            PageKey("copy-command", "Y", "copy the command line", self._copy_command),
            *(
                PageKey(f"sort-{column}", look.key, f"sort by {column}; again: reverse", self._sorter(column))
                for column, look in COLUMN_STYLES.items()
            ),
        )  # fmt: skip

    def lines(self, model: TopModel, width: int, height: int) -> Sequence[Line]:
        """Return the table and, if opened, the details below it."""
        shown = self._shown(model)
        below = max(_LEAST_DETAILS, height // 2) if self._has_details and height >= 2 * _LEAST_DETAILS else 0
        self._place(shown)
        columns = self._shown_columns = fitting(self._columns, width)
        room = max(1, height - 2 - below)
        window = self._cursor.window(len(shown), room)
        self._remember(shown)
        drawn = [self._bar(model, shown, width), head_line(columns, self.sorting, width)]
        drawn += [
            self._line(model, shown[at], columns, width, selected=at == self._cursor.row) for at in window
        ]
        if not shown:
            text = " no process uses a device" if not self.filter_text else " no process matches the filter"
            drawn.append(fit(((text, Role.DIM),), width))
        drawn += [fit((), width)] * (height - below - len(drawn))
        return [*drawn, *self._details.lines(model, self._row(shown), width, below)]

    def wanted_lines(self, model: TopModel) -> int:
        """Return how many lines show every process."""
        return 2 + max(1, len(self._shown(model)))

    def click(self, model: TopModel, x: int, y: int) -> Request | None:
        """Sort by the head under the mouse, or select the process; a click on the selected one opens its details."""
        if y == 1:
            column = column_at(self._shown_columns, x)
            return self._sorter(column)(model) if column else None
        shown = self._shown(model)
        row = self._row_at(y, len(shown))
        if row is not None:
            if row == self._cursor.row:
                self._toggle_details(model)
            self._cursor.row = row
            self._remember(shown)
        return None

    def data(self, model: TopModel) -> dict[str, Any]:
        """Return the rows that pass the filter, in order."""
        return {"processes": [_row_data(model, line.row) for line in self._shown(model) if line.row]}

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

    def _shown(self, model: TopModel) -> tuple[TreeLine, ...]:
        if model.shown.snapshot is None:
            return ()
        rows = ordered(self._filter(model.shown.snapshot, model.shown.processes), self.sorting)
        if not self._is_tree:
            return tuple(TreeLine(row.process.pid, 0, row) for row in rows)
        parents = {key[0]: found.parent_pid for key, found in presences(model.shown.snapshot).items()}
        return tree(rows, parents)

    def _place(self, shown: Sequence[TreeLine]) -> None:
        for at, line in enumerate(shown):
            if line.row and process_key(line.row.process) == self._selected:
                self._cursor.row = at
                return

    def _remember(self, shown: Sequence[TreeLine]) -> None:
        row = self._row(shown)
        self._selected = process_key(row.process) if row else None

    def _row(self, shown: Sequence[TreeLine]) -> ProcessRow | None:
        return shown[self._cursor.row].row if self._cursor.row < len(shown) else None

    def _current(self, model: TopModel) -> ProcessRow | None:
        shown = self._shown(model)
        self._place(shown)
        return self._row(shown)

    def _bar(self, model: TopModel, shown: Sequence[TreeLine], width: int) -> Line:
        total = len(model.shown.processes)
        count = sum(line.row is not None for line in shown)
        text = f" Processes ({count} of {total})" if count != total else f" Processes ({total})"
        if self.filter_text:
            text += f"  filter: {printable(self.filter_text)}"
        direction = "down" if self.sorting.descending else "up"
        return section(
            text,
            width,
            f"{'tree, ' if self._is_tree else ''}by {self.sorting.column} {direction}, then {self.sorting.then[0]}",
        )

    def _line(
        self, model: TopModel, line: TreeLine, columns: Sequence[Column], width: int, *, selected: bool
    ) -> Line:
        indent = "  " * max(0, line.depth - 1) + ("`-" if line.depth else "")
        if line.row is None:
            text = f"  {line.pid:>8} {indent} (parent, uses no device)"
            return fit(((text, Role.SELECTED if selected else Role.DIM),), width)
        alerts = model.monitor.alerts_of_pid.get(line.row.process.pid)
        role = (
            Role.SELECTED
            if selected
            else Role.ALERT
            if alerts
            else Role.DIM
            if line.row.process.stale
            else None
        )
        return row_line(columns, line.row, width, role, "!" if alerts else " ", indent)

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

    def _toggle_tree(self, _model: TopModel) -> None:
        self._is_tree = not self._is_tree

    def _toggle_details(self, _model: TopModel) -> None:
        self._has_details = not self._has_details

    def _change_span(self, _model: TopModel) -> None:
        self._details.hour = not self._details.hour

    def _ask_filter(self, _model: TopModel) -> Request:
        return Prompt(
            "filter (like neuron-ls --filter; enter keeps it, escape clears it)",
            self.filter_text,
            self.filter_by,
        )

    def _step_back(self, model: TopModel) -> None:
        if self._has_details and self._current(model):
            self._has_details = False
        else:
            self.filter_by("")

    def _copy_pid(self, model: TopModel) -> Request:
        row = self._current(model)
        return Copy(str(row.process.pid), f"pid {row.process.pid}") if row else _NO_PROCESS

    def _copy_command(self, model: TopModel) -> Request:
        row = self._current(model)
        return Copy(row.process.command, "the command line") if row else _NO_PROCESS

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
    process = row.process
    return {
        "pid": process.pid,
        "user": None if process.uid == UNKNOWN_UID else user_name(process.uid),
        "command": process.command,
        "tag": process.tag,
        "origin": process.origin,
        "cores": [use.core for use in process.cores],
        "device_memory_bytes": row.device_bytes,
        "utilization": row.utilization,
        "executions_per_s": row.executions_s,
        "failed_share": row.failed_share,
        "gpsimd_modelled_s": row.gpsimd_ns / 1e9,
        "latency_p50_s": row.latency_s(50),
        "latency_p99_s": row.latency_s(99),
        "runtime_version": process.runtime_version,
        "age_s": row.age_s,
        "host_cpu_share": row.host.cpu_share if row.host else None,
        "host_resident_bytes": row.host.resident_bytes if row.host else None,
        "alerts": [str(alert.condition) for alert in model.monitor.alerts_of_pid.get(process.pid, ())],
    }
