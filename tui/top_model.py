"""The state of neuron-top and what each key does to it. No terminal here: ticks and actions in, values out."""

from __future__ import annotations

from dataclasses import dataclass
from operator import is_
from typing import TYPE_CHECKING

from neurontools.dashboard.host_use import host_uses, presences
from neurontools.dashboard.lookout import Lookout
from neurontools.dashboard.machine_history import MachineHistory
from neurontools.dashboard.process_rows import ProcessRow, process_rows
from neurontools.machine import host
from neurontools.machine.view import ProcessKey, core_rates, device_processes, machine_view, process_key
from neurontools.tui.lines import clean
from neurontools.tui.top_source import Tick, Trouble
from neurontools.tui.top_tree import TreeRow, visible_rows, walk

if TYPE_CHECKING:
    from neurontools.machine.host import CpuShare
    from neurontools.machine.memory_tree import NodeKey, NodeKind
    from neurontools.machine.snapshot import Snapshot
    from neurontools.machine.view import CoreRate, MachineView
    from neurontools.tui.top_source import Update

# Two snapshots closer together than this give rates that are mostly noise.
_SHORTEST_INTERVAL_NS = 50_000_000


@dataclass(frozen=True, slots=True)
class Tab:
    """A tab at the bottom: all processes (no key), or one."""

    key: ProcessKey | None
    label: str


ALL = Tab(None, "all")


class TopModel:
    """What neuron-top shows and where its user is.

    Args:
        colour: whether colours will be shown; without them bars use other characters.
        source: what the title bar says about where the data comes from.
        lookout: what watches for alerts, one with the usual rules by default.
    """

    def __init__(self, *, colour: bool = True, source: str = "", lookout: Lookout | None = None) -> None:
        self.colour = colour
        self.source = source
        self.flops = False
        self.trouble = ""
        self.position = ""
        """Where in time the screen is, for the title bar; "" when it shows the newest moment."""
        self.tabs: tuple[Tab, ...] = (ALL,)
        self.tab = ALL
        self.selected = 0
        self.history = MachineHistory()
        self.lookout = lookout or Lookout()
        self._rows: tuple[TreeRow, ...] = ()
        self._view: MachineView | None = None
        self._system_cpu = host.IDLE
        self._runtime_cpu = host.IDLE
        self._rates: dict[int, CoreRate] = {}
        self._processes: tuple[ProcessRow, ...] | None = None
        self._is_stale = False
        self._before: Tick | None = None
        self._after: Tick | None = None
        self._before_newest: Tick | None = None
        self._newest: Tick | None = None
        self._is_held = False
        self._opened: frozenset[NodeKey] = frozenset()

    @property
    def snapshot(self) -> Snapshot | None:
        """The newest snapshot, None before the first."""
        return self._after.snapshot if self._after else None

    @property
    def before(self) -> Snapshot | None:
        """The snapshot where the interval begins that rates are of, None when there is none."""
        return self._before.snapshot if self._before else None

    @property
    def rates(self) -> dict[int, CoreRate]:
        """The rates of every core of the machine by machine-wide id, whatever tab is chosen."""
        return self._rates

    @property
    def view(self) -> MachineView | None:
        """The numbers of the current tab, None before the first snapshot."""
        self._refresh()
        return self._view

    @property
    def rows(self) -> tuple[TreeRow, ...]:
        """The visible rows of the memory tree."""
        self._refresh()
        return self._rows

    @property
    def system_cpu(self) -> CpuShare:
        """What the whole host does."""
        self._refresh()
        return self._system_cpu

    @property
    def runtime_cpu(self) -> CpuShare:
        """What the processes of the current tab take of the CPUs."""
        self._refresh()
        return self._runtime_cpu

    @property
    def processes(self) -> tuple[ProcessRow, ...]:
        """The processes that use a device, oldest first, with their rates; made when somebody asks."""
        if self._processes is None:
            self._processes = self._process_rows()
        return self._processes

    @property
    def selected_row(self) -> TreeRow | None:
        """The selected row of the tree, None when the tree is empty."""
        return self.rows[self.selected] if self.rows else None

    @property
    def marked_cores(self) -> frozenset[int]:
        """The machine-wide ids of the cores under the selected row."""
        row = self.selected_row
        return frozenset(row.node.cores) if row else frozenset()

    def update(self, update: Update) -> None:
        """Take in what the source yielded."""
        if isinstance(update, Trouble):
            self.trouble = update.text
            return
        self.trouble = ""
        first = self._newest is None
        before, last = self._before_newest, self._newest
        if last and not _same_machine(last.snapshot, update.snapshot):
            before = None
            self.history = MachineHistory()
            self.lookout.forget_machine()
        elif last and update.snapshot.taken_ns - last.snapshot.taken_ns >= _SHORTEST_INTERVAL_NS:
            before = last
        self._before_newest, self._newest = before, update
        rates = self._note(before, update)
        if not self._is_held:
            self._show(before, update, rates)
        if first and len(update.snapshot.devices) == 1:
            self.toggle()

    def hold(self, before: Tick | None, after: Tick) -> None:
        """Show another moment; what the source yields is noted but not shown until `release`.

        Args:
            before: where the interval begins that rates are of, None where there is nothing before.
            after: the moment.
        """
        self._is_held = True
        self._show(before, after, core_rates(before.snapshot if before else None, after.snapshot))

    def release(self) -> None:
        """Show the newest moment again."""
        self._is_held = False
        if self._newest is not None:
            before = self._before_newest
            earlier = before.snapshot if before else None
            self._show(before, self._newest, core_rates(earlier, self._newest.snapshot))

    def start_over(self) -> None:
        """Forget the history: what comes next does not follow what came before."""
        self._before_newest = self._newest = None
        self.history = MachineHistory()
        self.lookout.forget_machine()

    def move(self, steps: int) -> None:
        """Move the selection in the tree, stopping at its ends."""
        self.select(self.selected + steps)

    def select(self, index: int) -> None:
        """Select a row of the tree by its index among the visible rows, or the nearest one."""
        self.selected = max(0, min(index, len(self.rows) - 1))

    def toggle(self) -> None:
        """Open or close the selected row."""
        row = self.selected_row
        if row and row.opened is not None:
            self._opened ^= {row.node.key}
            self._show_rows()

    def expand(self) -> None:
        """Open the selected row, or step into it when it is open."""
        row = self.selected_row
        if row and row.opened is False:
            self.toggle()
        elif row and row.opened:
            self.move(1)

    def collapse(self) -> None:
        """Close the selected row, or step out to its parent."""
        row = self.selected_row
        if row and row.opened:
            self.toggle()
        elif row and row.parent is not None:
            self.selected = next(
                index for index, other in enumerate(self.rows) if other.node.key == row.parent
            )

    def toggle_all(self) -> None:
        """Open the whole tree, or close it when all of it is open."""
        everything = frozenset(node.key for node in walk(self.view.memory.tree() if self.view else ()))
        self._opened = frozenset() if everything <= self._opened else self._opened | everything
        self._show_rows()

    def expand_kinds(self, *kinds: NodeKind) -> None:
        """Open all nodes of these kinds that use memory."""
        self._opened |= frozenset(
            node.key
            for node in walk(self.view.memory.tree() if self.view else ())
            if node.kind in kinds and (node.device_bytes or node.host_bytes)
        )
        self._show_rows()

    def toggle_flops(self) -> None:
        """Show FLOPs a second instead of utilization, or back."""
        self.flops = not self.flops

    def step_tab(self, steps: int) -> None:
        """Go to the previous or next tab, around the ends."""
        self.go_to_tab((self.tabs.index(self.tab) + steps) % len(self.tabs))

    def go_to_tab(self, index: int) -> None:
        """Go to a tab by its position; nothing happens when there is none."""
        if 0 <= index < len(self.tabs):
            self.tab = self.tabs[index]
            self._is_stale = True

    def _note(self, before: Tick | None, after: Tick) -> dict[int, CoreRate]:
        rates = core_rates(before.snapshot if before else None, after.snapshot)
        if before is not None:
            utilization = {core: rate.utilization for core, rate in rates.items()}
            self.history.add(before.snapshot, after.snapshot, utilization)
        self.lookout.look(after.snapshot)
        return rates

    def _show(self, before: Tick | None, after: Tick, rates: dict[int, CoreRate]) -> None:
        self._before, self._after, self._rates = before, after, rates
        self._find_tabs(after.snapshot)
        self._processes = None
        self._is_stale = True

    def _process_rows(self) -> tuple[ProcessRow, ...]:
        if self._after is None:
            return ()
        snapshot, before = self._after.snapshot, self._before
        cpu = (before.cpu, self._after.cpu) if before and before.cpu and self._after.cpu else None
        here = presences(snapshot) if self._after.cpu else {}
        return process_rows(self.before, snapshot, host_uses(self.before, snapshot, cpu, here))

    def _find_tabs(self, snapshot: Snapshot) -> None:
        self.tabs = (
            ALL,
            *(
                Tab(process_key(process), clean(process.tag) or str(process.pid))
                for process in device_processes(snapshot)
            ),
        )
        self.tab = next((tab for tab in self.tabs if tab.key == self.tab.key), ALL)

    def _refresh(self) -> None:
        # Only a page that shows these numbers asks for them.
        if not self._is_stale or self._after is None:
            return
        self._is_stale = False
        before, after, former = self._before, self._after, self._view
        view = machine_view(self.before, after.snapshot, self.tab.key, self._rates, former)
        if former is None or not view.memory.looks_like(former.memory):
            self._view = view
            self._show_rows()
        elif not all(map(is_, view.devices, former.devices)):
            self._view = view
        recorded = host.recorded_share(self.before, after.snapshot, self.tab.key)
        if after.cpu is not None:
            earlier = before.cpu if before else None
            self._system_cpu = host.host_share(earlier, after.cpu)
            recorded = host.together(host.process_share(earlier, after.cpu, self.tab.key), recorded)
        self._runtime_cpu = recorded

    def _show_rows(self) -> None:
        here = self._rows[self.selected].node.key if self._rows else None
        self._rows = visible_rows(self._view.memory.tree(self._opened)) if self._view else ()
        index = self.selected
        while here:
            found = [i for i, row in enumerate(self._rows) if row.node.key == here]
            if found:
                index = found[0]
                break
            here = here[:-1]
        self.selected = max(0, min(index, len(self._rows) - 1))


def _same_machine(one: Snapshot, other: Snapshot) -> bool:
    return (one.machine, one.instance_type, one.lnc, one.started_unix_s) == (
        other.machine,
        other.instance_type,
        other.lnc,
        other.started_unix_s,
    )
