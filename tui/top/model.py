"""The state of neuron-top and its changes: snapshots and actions in, values out. No terminal here."""

from __future__ import annotations

from operator import is_
from typing import TYPE_CHECKING

from msgspec import Struct

from neurontools.base.text import printable
from neurontools.dashboard.machine_history import MachineHistory
from neurontools.dashboard.monitor import MachineMonitor
from neurontools.dashboard.process_rows import ProcessRow, host_uses, presences, process_rows
from neurontools.machine import host
from neurontools.machine.machine_view import (
    ProcessKey,
    core_rates,
    device_processes,
    machine_view,
    process_key,
)
from neurontools.tui.top.pages.memory_tree import TreeCursor
from neurontools.tui.top.source import SourceProblem, TimedSnapshot

if TYPE_CHECKING:
    from neurontools.machine.host import CpuShare
    from neurontools.machine.machine_view import MachineView, Rates
    from neurontools.machine.memory_tree import MemoryMap
    from neurontools.machine.snapshot import ProcessState, Snapshot
    from neurontools.tui.top.source import Update

# Two snapshots closer together than this give rates that are mostly noise.
_SHORTEST_INTERVAL_NS = 50_000_000


class Interval:
    """The interval between two snapshots, and its numbers, computed on demand.

    Args:
        monitor: it has judged the processes of most intervals.
    """

    def __init__(self, monitor: MachineMonitor) -> None:
        self._monitor = monitor
        self.rates: Rates = {}
        """The rates of every core of the machine by machine-wide id."""
        self._before: TimedSnapshot | None = None
        self._after: TimedSnapshot | None = None
        self._only: ProcessKey | None = None
        self._view: MachineView | None = None
        self._viewed: tuple[object, ...] = ()
        self._is_stale = False
        self._system_cpu = self._runtime_cpu = host.IDLE
        self._processes: tuple[ProcessRow, ...] | None = None

    @property
    def snapshot(self) -> Snapshot | None:
        """The snapshot at its end, None before the first."""
        return self._after.snapshot if self._after else None

    @property
    def before(self) -> Snapshot | None:
        """The snapshot at its start, None if there is no earlier one."""
        return self._before.snapshot if self._before else None

    @property
    def has_rates(self) -> bool:
        """Whether rates are known: after the first snapshot alone they are 0, and not shown."""
        return self._before is not None

    def show(self, before: TimedSnapshot | None, after: TimedSnapshot, rates: Rates) -> None:
        """Change to another interval.

        Args:
            before: the snapshot at its start, or None.
            after: the snapshot at its end.
            rates: of every core over it.
        """
        self._before, self._after, self.rates = before, after, rates
        self._processes = None
        self._is_stale = True

    def restrict(self, process: ProcessKey | None) -> None:
        """Show the numbers of one process, or with None of the whole machine."""
        if process != self._only:
            self._only = process
            self._is_stale = True

    @property
    def view(self) -> MachineView | None:
        """The numbers of the machine or the process, the same object while they are the same; None before the first."""
        self._refresh()
        return self._view

    @property
    def system_cpu(self) -> CpuShare:
        """CPU use of the whole host."""
        self._refresh()
        return self._system_cpu

    @property
    def runtime_cpu(self) -> CpuShare:
        """CPU use of the shown processes."""
        self._refresh()
        return self._runtime_cpu

    @property
    def processes(self) -> tuple[ProcessRow, ...]:
        """The processes that use a device, oldest first, with their rates."""
        if self._processes is None:
            self._processes = self._process_rows()
        return self._processes

    def _refresh(self) -> None:
        if not self._is_stale or self._after is None:
            return
        self._is_stale = False
        self._look(self._after.snapshot)
        self._measure_host(self._before, self._after)

    def _look(self, after: Snapshot) -> None:
        # The rates of a machine that rests are one object, and so are processes that did not change.
        viewed = (self.rates, after.processes, after.devices, self._only)
        if self._view is not None and all(map(is_, viewed, self._viewed)):
            return
        self._viewed = viewed
        former = self._view
        view = machine_view(self.before, after, self._only, self.rates, former)
        if (
            former is None
            or not view.memory.has_same_tree(former.memory)
            or not all(map(is_, view.devices, former.devices))
        ):
            self._view = view

    def _measure_host(self, before: TimedSnapshot | None, after: TimedSnapshot) -> None:
        recorded = host.recorded_share(self.before, after.snapshot, self._only)
        if after.cpu is not None:
            earlier = before.cpu if before else None
            self._system_cpu = host.host_share(earlier, after.cpu)
            recorded = host.add_shares(host.process_share(earlier, after.cpu, self._only), recorded)
        elif after.snapshot.vcpu_usage is not None:
            self._system_cpu = host.CpuShare(*after.snapshot.vcpu_usage)
        self._runtime_cpu = recorded

    def _process_rows(self) -> tuple[ProcessRow, ...]:
        if self._after is None:
            return ()
        snapshot, before = self._after.snapshot, self._before
        cpu = (before.cpu, self._after.cpu) if before and before.cpu and self._after.cpu else None
        present = presences(snapshot) if self._after.cpu else {}
        uses = host_uses(self.before, snapshot, cpu, present)
        judged = self._monitor.rows_between(self.before, snapshot)
        if judged is None:
            return process_rows(self.before, snapshot, uses)
        for row in judged:
            row.host = uses.get(process_key(row.process))
        return judged


class Tab(Struct, frozen=True):
    """A tab at the bottom: all processes (no key), or one."""

    key: ProcessKey | None
    label: str


ALL = Tab(None, "all")


class TopModel:
    """The data that neuron-top shows, and the user's position in it.

    Args:
        colour: whether colours will be shown; without them bars use other characters.
        source: name of the source in the title bar.
        monitor: watches for alerts; by default with the default rules.
    """

    def __init__(
        self, *, colour: bool = True, source: str = "", monitor: MachineMonitor | None = None
    ) -> None:
        self.colour = colour
        self.source = source
        self.flops = False
        self.trouble = ""
        self.position = ""
        """The position in time, for the title bar; "" for the newest snapshot."""
        self.tabs: tuple[Tab, ...] = (ALL,)
        self.tab = ALL
        self.history = MachineHistory()
        self.monitor = monitor or MachineMonitor()
        self.tree = TreeCursor(self._memory)
        self.shown = Interval(self.monitor)
        """The newest interval, or the interval that playback shows."""
        self._before: TimedSnapshot | None = None
        self._newest: TimedSnapshot | None = None
        self._is_held = False
        self._tabbed: tuple[ProcessState, ...] | None = None
        self._noted: Rates = {}
        self._utilization: dict[int, float] = {}

    def update(self, update: Update) -> None:
        """Process an update of the source."""
        if isinstance(update, SourceProblem):
            self.trouble = update.text
            if update.is_outage and self._newest:
                self.monitor.lose(update.text, self._newest.snapshot.taken_unix_s)
            return
        self.trouble = ""
        self.monitor.regain(update.snapshot.taken_unix_s)
        first = self._newest is None
        before, last = self._before, self._newest
        if last and not _same_machine(last.snapshot, update.snapshot):
            before = None
            self.history = MachineHistory()
            self.monitor.forget_machine()
        elif last and update.snapshot.taken_ns - last.snapshot.taken_ns >= _SHORTEST_INTERVAL_NS:
            before = last
        self._before, self._newest = before, update
        rates = self._note(before, update)
        if not self._is_held:
            self._show(before, update, rates)
        if first and len(update.snapshot.devices) == 1:
            self.tree.toggle()

    def hold(self, before: TimedSnapshot | None, after: TimedSnapshot) -> None:
        """Show another snapshot; updates of the source are recorded but not shown until `release`.

        Args:
            before: the start of the interval for rates, or None.
            after: the snapshot.
        """
        self._is_held = True
        self._show(before, after, core_rates(before.snapshot if before else None, after.snapshot))

    def release(self) -> None:
        """Show the newest snapshot again."""
        self._is_held = False
        if self._newest is not None:
            before = self._before
            earlier = before.snapshot if before else None
            self._show(before, self._newest, core_rates(earlier, self._newest.snapshot))

    def start_over(self) -> None:
        """Drop the history: the next snapshot does not follow the previous one."""
        self._before = self._newest = None
        self.history = MachineHistory()
        self.monitor.forget_machine()

    def toggle_flops(self) -> None:
        """Show FLOPs a second instead of utilization, or back."""
        self.flops = not self.flops

    def step_tab(self, steps: int) -> None:
        """Go to the previous or next tab, around the ends."""
        self.go_to_tab((self.tabs.index(self.tab) + steps) % len(self.tabs))

    def go_to_tab(self, index: int) -> None:
        """Go to a tab by its position, if it exists."""
        if 0 <= index < len(self.tabs):
            self.tab = self.tabs[index]
            self.shown.restrict(self.tab.key)

    def _note(self, before: TimedSnapshot | None, after: TimedSnapshot) -> Rates:
        rates = core_rates(before.snapshot if before else None, after.snapshot)
        if rates is not self._noted:
            self._noted = rates
            self._utilization = {core: rate.utilization for core, rate in rates.items()}
        if before is not None:
            self.history.add(before.snapshot, after.snapshot, self._utilization)
        self.monitor.look(after.snapshot)
        return rates

    def _show(self, before: TimedSnapshot | None, after: TimedSnapshot, rates: Rates) -> None:
        self._find_tabs(after.snapshot)
        self.shown.show(before, after, rates)
        self.shown.restrict(self.tab.key)

    def _memory(self) -> MemoryMap | None:
        view = self.shown.view
        return view.memory if view else None

    def _find_tabs(self, snapshot: Snapshot) -> None:
        if snapshot.processes is self._tabbed:
            return
        self._tabbed = snapshot.processes
        self.tabs = (
            ALL,
            *(
                Tab(process_key(process), printable(process.tag) or str(process.pid))
                for process in device_processes(snapshot)
            ),
        )
        self.tab = next((tab for tab in self.tabs if tab.key == self.tab.key), ALL)


def _same_machine(before: Snapshot, after: Snapshot) -> bool:
    return (before.machine, before.instance_type, before.lnc, before.started_unix_s) == (
        after.machine,
        after.instance_type,
        after.lnc,
        after.started_unix_s,
    )
