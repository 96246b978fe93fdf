"""Several machines in neuron-top: their state, the page that lists them, and the bar with their names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from neurontools.base.text import plural, printable
from neurontools.tui.top.numbers import short_percent, size
from neurontools.tui.top.page import ListPage, PageKey
from neurontools.tui.top.pages.rows import place_tabs, tab_at, tabs_line
from neurontools.tui.widgets.frames import chrome_lines, framed, inner_width, is_boxed
from neurontools.tui.widgets.lines import Line, Role, Span, fixed
from neurontools.tui.widgets.table_lines import TableColumn, TableLayout

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from neurontools.tui.top.model import TopModel
    from neurontools.tui.top.pages.rows import PlacedTab
    from neurontools.tui.top.playback import MonitoredMachine

_NAME_WIDTH = 18
_BAR_HEAD = " Machines  "
_ROLES = {Role.BAR: Role.TAB, Role.BAR_DIM: Role.DIM, Role.BAR_CURRENT: Role.TAB_CURRENT}
_NOTHING = frozenset({"-", "0", "0%", "0.0B"})

_COUNTS = ("devices", "cores", "used_cores", "used_bytes", "memory_bytes", "processes", "ecc")


@dataclass(frozen=True, slots=True)
class MachineSummary:
    """A row of the list; numbers are None while unknown.

    `utilization` is the mean share (0..1) over all cores, `used_cores` the claimed cores, `ecc` uncorrected
    memory errors, `state` "ok" or the problem.
    """

    name: str
    source: str
    state: str
    instance_type: str = ""
    devices: int | None = None
    cores: int | None = None
    used_cores: int | None = None
    utilization: float | None = None
    used_bytes: int | None = None
    memory_bytes: int | None = None
    processes: int | None = None
    ecc: int | None = None


def summary_of(machine: MonitoredMachine) -> MachineSummary:
    """Return the row of a machine."""
    model = machine.model
    snapshot = model.shown.snapshot
    if snapshot is None:
        return MachineSummary(machine.name, model.source, model.trouble or "waiting")
    alerts = "; ".join(alert.text for alert in model.monitor.alerts)
    rates = model.shown.rates.values()
    return MachineSummary(
        name=machine.name,
        source=model.source,
        state=model.trouble or model.position or alerts or "ok",
        instance_type=snapshot.instance_type,
        devices=len(snapshot.devices),
        cores=sum(len(device.core_ids) for device in snapshot.devices),
        used_cores=len({use.core for process in snapshot.processes for use in process.cores}),
        utilization=sum(rate.utilization for rate in rates) / len(rates) if rates else 0.0,
        used_bytes=sum(device.memory_used_bytes for device in snapshot.devices),
        memory_bytes=sum(device.memory_bytes for device in snapshot.devices),
        processes=sum(process.uses_device for process in snapshot.processes),
        ecc=sum(
            device.hardware.mem_ecc_uncorrected + device.hardware.sram_ecc_uncorrected
            for device in snapshot.devices
        ),
    )


class MachinesPage(ListPage):
    """One row for each machine, and their sum.

    Args:
        machines: all of them.
    """

    name = "machines"
    letter = "m"

    def __init__(self, machines: Sequence[MonitoredMachine]) -> None:
        self.on_choose: Callable[[int], None] = lambda _: None
        """Called with the index of a machine to show."""
        super().__init__()
        self._machines = tuple(machines)
        self.state = plural(len(self._machines), "machine")
        self._window = range(0)

    def bindings(self) -> tuple[PageKey, ...]:
        """Return its keys."""
        return (
            *self._list_keys("select a machine", "ten machines", "first machine", "last machine"),
            PageKey("show", "enter", "show the machine", lambda _: self.on_choose(self._cursor.row), "show"),
        )

    def select(self, index: int) -> None:
        """Select a row."""
        self._cursor.row = index

    def lines(self, model: TopModel, width: int, height: int) -> Sequence[Line]:  # noqa: ARG002  all machines
        """Return heads, a row for each machine, and the sum."""
        summaries = [summary_of(machine) for machine in self._machines]
        boxed = is_boxed(width, height)
        frame, inner = chrome_lines(boxed=boxed), inner_width(width, boxed=boxed)
        room = max(1, height - 2 * frame - 2)
        self._window = self._cursor.window(len(summaries), room)
        self._top = 2
        layout = TableLayout(_COLUMNS, inner)
        body = [layout.head()]
        body += [layout.item(summaries[at], selected=at == self._cursor.row) for at in self._window]
        high = min(len(body), room + 1) + frame
        total = framed("All machines", [layout.item(_sum(summaries))], (width, 1 + frame), boxed=boxed)
        note = plural(len(summaries), "machine")
        return (*framed("Machines", body, (width, high), note=note, foot="⏎ show", boxed=boxed), *total)

    def wanted_lines(self, model: TopModel) -> int:  # noqa: ARG002  all machines
        """Return how many lines show every machine."""
        return len(self._machines) + 4

    def click(self, model: TopModel, x: int, y: int) -> None:  # noqa: ARG002  the whole row counts
        """Select a machine; a click on the selected one shows it."""
        index = self._row_at(y, self._window.stop)
        if index is not None:
            if index == self._cursor.row:
                self.on_choose(index)
            self._cursor.row = index

    def data(self, model: TopModel) -> dict[str, Any]:  # noqa: ARG002  all machines
        """Return the rows."""
        summaries = [summary_of(machine) for machine in self._machines]
        return {
            "machines": [{name: getattr(row, name) for name in MachineSummary.__slots__} for row in summaries]
        }

    def _move(self, model: TopModel, steps: int) -> None:  # noqa: ARG002  all machines
        self._cursor.move(steps, len(self._machines))


def format_machine_bar(machines: Sequence[MonitoredMachine], current: int | None, width: int) -> Line:
    """Return the machine bar; `!` marks a machine with alerts, `?` one without data.

    Args:
        machines: all of them.
        current: index of the current machine, None for the list of all.
        width: cells in the line.
    """
    line = tabs_line(_BAR_HEAD, _tabs(machines, current, width), _position(current), width)
    return tuple([(text, _ROLES[role]) for text, role in line])


def choice_at(
    machines: Sequence[MonitoredMachine], current: int | None, width: int, x: int
) -> tuple[int | None] | None:
    """Return the index of the machine at a column, in a tuple: `(None,)` is the list; None beside all names."""
    position = tab_at(_tabs(machines, current, width), x)
    return None if position is None else (position - 1 if position else None,)


def _tabs(machines: Sequence[MonitoredMachine], current: int | None, width: int) -> tuple[PlacedTab, ...]:
    # The list of all comes first.
    return place_tabs(["all", *map(_bar_name, machines)], _position(current), len(_BAR_HEAD), width)


def _position(machine: int | None) -> int:
    return 0 if machine is None else machine + 1


def _bar_name(machine: MonitoredMachine) -> str:
    model = machine.model
    mark = "?" if model.trouble or model.shown.snapshot is None else "!" if model.monitor.alerts else ""
    return fixed(printable(machine.name), _NAME_WIDTH).rstrip() + mark


def _sum(summaries: Sequence[MachineSummary]) -> MachineSummary:
    known = [row for row in summaries if row.cores is not None]
    cores = sum(row.cores or 0 for row in known)
    busy = sum((row.utilization or 0.0) * (row.cores or 0) for row in known)
    missing = len(summaries) - len(known)
    totals: dict[str, Any] = {name: sum(getattr(row, name) or 0 for row in known) for name in _COUNTS}
    return MachineSummary(
        name=plural(len(summaries), "machine"),
        source="",
        state=f"{missing} without data" if missing else "ok",
        utilization=busy / cores if cores else 0.0,
        **totals,
    )


def _figure(value: float | None, text: Callable[[Any], str] = str, role: Role = Role.PLAIN) -> Span:
    figure = "-" if value is None else text(value).strip()
    return figure, Role.DIM if figure in _NOTHING else role


def _state(summary: MachineSummary) -> Span:
    return printable(summary.state), Role.DIM if summary.state == "ok" else Role.ALERT


_COLUMNS = (
    TableColumn("MACHINE", 17, right=False, cell=lambda row: (printable(row.name), Role.PLAIN)),
    TableColumn("TYPE", 14, rank=2, cell=lambda row: (printable(row.instance_type), Role.PLAIN)),
    TableColumn("DEV", 3, rank=6, cell=lambda row: _figure(row.devices)),
    TableColumn("CORES", 5, rank=1, cell=lambda row: _figure(row.cores)),
    TableColumn("USED", 4, cell=lambda row: _figure(row.used_cores)),
    TableColumn("UTIL", 4, cell=lambda row: _figure(row.utilization, short_percent, Role.VALUE)),
    TableColumn("MEM", 7, rank=3, cell=lambda row: _figure(row.used_bytes, size)),
    TableColumn("OF", 7, rank=7, cell=lambda row: _figure(row.memory_bytes, size)),
    TableColumn("PROC", 4, rank=4, cell=lambda row: _figure(row.processes)),
    TableColumn("ECC", 4, rank=5, cell=lambda row: _figure(row.ecc)),
    TableColumn("STATE", right=False, least=14, cell=_state),
)
