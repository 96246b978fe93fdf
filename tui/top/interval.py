"""The interval that neuron-top shows, from one tick to another, and its numbers: each computed when a page asks for it."""

from __future__ import annotations

from operator import is_
from typing import TYPE_CHECKING

from neurontools.dashboard.host_use import host_uses, presences
from neurontools.dashboard.process_rows import ProcessRow, process_rows
from neurontools.machine import host
from neurontools.machine.view import ProcessKey, machine_view

if TYPE_CHECKING:
    from neurontools.machine.host import CpuShare
    from neurontools.machine.snapshot import Snapshot
    from neurontools.machine.view import MachineView, Rates
    from neurontools.tui.top.source import Tick


class Interval:
    """What happened between two ticks."""

    def __init__(self) -> None:
        self.rates: Rates = {}
        """The rates of every core of the machine by machine-wide id."""
        self._before: Tick | None = None
        self._after: Tick | None = None
        self._only: ProcessKey | None = None
        self._view: MachineView | None = None
        self._viewed: tuple[object, ...] = ()
        self._is_stale = False
        self._system_cpu = self._runtime_cpu = host.IDLE
        self._processes: tuple[ProcessRow, ...] | None = None

    @property
    def snapshot(self) -> Snapshot | None:
        """Where it ends, None before the first."""
        return self._after.snapshot if self._after else None

    @property
    def before(self) -> Snapshot | None:
        """Where it begins, None when there is nothing before its end."""
        return self._before.snapshot if self._before else None

    def show(self, before: Tick | None, after: Tick, rates: Rates) -> None:
        """Be another interval.

        Args:
            before: where it begins, None where there is nothing before.
            after: where it ends.
            rates: of every core over it.
        """
        self._before, self._after, self.rates = before, after, rates
        self._processes = None
        self._is_stale = True

    def restrict(self, process: ProcessKey | None) -> None:
        """Show the numbers of one process, None: of the whole machine."""
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
        """What the whole host does."""
        self._refresh()
        return self._system_cpu

    @property
    def runtime_cpu(self) -> CpuShare:
        """What the processes that are shown take of the CPUs."""
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
            or not view.memory.looks_like(former.memory)
            or not all(map(is_, view.devices, former.devices))
        ):
            self._view = view

    def _measure_host(self, before: Tick | None, after: Tick) -> None:
        recorded = host.recorded_share(self.before, after.snapshot, self._only)
        if after.cpu is not None:
            earlier = before.cpu if before else None
            self._system_cpu = host.host_share(earlier, after.cpu)
            recorded = host.together(host.process_share(earlier, after.cpu, self._only), recorded)
        self._runtime_cpu = recorded

    def _process_rows(self) -> tuple[ProcessRow, ...]:
        if self._after is None:
            return ()
        snapshot, before = self._after.snapshot, self._before
        cpu = (before.cpu, self._after.cpu) if before and before.cpu and self._after.cpu else None
        here = presences(snapshot) if self._after.cpu else {}
        return process_rows(self.before, snapshot, host_uses(self.before, snapshot, cpu, here))
