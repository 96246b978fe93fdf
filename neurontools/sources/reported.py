"""A machine as a series of neuron-monitor reports tells of it: processes with totals, and a clock of the reports' own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.machine.hardware import HardwareCounters
from neurontools.machine.memory import MemoryUse
from neurontools.machine.snapshot import LATENCY_BUCKETS, UNKNOWN_UID, ProcessState
from neurontools.monitor.report import HardwareInfo, InstanceInfo
from neurontools.sources.account import ProcessAccount

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from neurontools.monitor.report import MonitorReport, RuntimeEntry

# A process that was not reported for this share of the period of its reports is gone.
_GONE_AFTER = 0.9


class ReportedMachine:
    """What the reports so far tell.

    Args:
        identify: returns who a process is, by pid and tag, when it is first reported.
    """

    def __init__(self, identify: Callable[[int, str], ProcessState]) -> None:
        self.hardware = HardwareInfo()
        self.instance = InstanceInfo()
        self.errors: dict[int, HardwareCounters] = {}
        self.clock_s = 0.0
        """Seconds that the reports cover so far."""
        self._identify = identify
        self._step_s = 0.0
        self._clocks: dict[str, float] = {}
        self._accounts: dict[int, ProcessAccount] = {}
        self._seen: dict[int, tuple[float, float]] = {}
        self._vcpus = 1
        self._cores_of: dict[int, tuple[int, ...]] = {}

    @property
    def pids(self) -> frozenset[int]:
        """The processes that are there."""
        return frozenset(self._accounts)

    def take(self, report: MonitorReport) -> None:
        """Take in the next report."""
        periods: dict[str, float] = {}
        for group, period_s in _periods(report):
            periods[group] = max(period_s, periods.get(group, 0.0))
        self._advance(periods)
        if report.hardware.neuron_device_count and report.hardware != self.hardware:
            self.hardware = report.hardware
            self._cores_of.update(cores_of(report.hardware))
        if report.instance.instance_type:
            self.instance = report.instance
        if report.system.vcpu_usage is not None and report.system.vcpu_usage.vcpus:
            self._vcpus = len(report.system.vcpu_usage.vcpus)
        if report.system.hardware_errors is not None and not report.system.hardware_errors.error:
            for device in report.system.hardware_errors.devices:
                self.errors[device.device_index] = HardwareCounters(
                    mem_ecc_corrected=device.mem_ecc_corrected,
                    mem_ecc_uncorrected=device.mem_ecc_uncorrected,
                    sram_ecc_corrected=device.sram_ecc_corrected,
                    sram_ecc_uncorrected=device.sram_ecc_uncorrected,
                )
        self._take_processes(report.runtimes)

    def processes(self, held: Mapping[int, tuple[int, ...]] | None = None) -> tuple[ProcessState, ...]:
        """Return the processes that are there.

        Args:
            held: by pid, the cores of the devices that a process holds open: its cores where no report names them.
        """
        states = []
        for pid, account in self._accounts.items():
            account.held_cores = (held or {}).get(pid, ())
            states.append(account.state())
        return tuple(states)

    def _take_processes(self, entries: tuple[RuntimeEntry, ...]) -> None:
        for entry in entries:
            account = self._accounts.get(entry.pid)
            if account is None:
                identity = self._identify(entry.pid, entry.tag)
                account = self._accounts[entry.pid] = ProcessAccount(identity, self._cores_of)
            account.take(entry, self._vcpus)
            periods = [period_s for _, period_s in _entry_periods(entry)]
            self._seen[entry.pid] = self.clock_s, min(periods, default=0.0)
        reported = {entry.pid for entry in entries}
        for pid, (seen_s, period_s) in list(self._seen.items()):
            if pid not in reported and self.clock_s - seen_s >= _GONE_AFTER * period_s:
                del self._seen[pid], self._accounts[pid]

    def _advance(self, periods: Mapping[str, float]) -> None:
        # A report without any group is about processes, of which there are none; it covers as much as the last.
        # Groups may have periods of their own, so each has a clock; the furthest is the time of the report. How far
        # back the first period of a group reaches is not known: it only counts where there is nothing else.
        ends = [
            self._clocks[group] + period_s for group, period_s in periods.items() if group in self._clocks
        ]
        first = self.clock_s + min(periods.values(), default=self._step_s)
        before, self.clock_s = self.clock_s, max((self.clock_s, *ends)) if ends else first
        self._step_s = self.clock_s - before
        self._clocks.update(dict.fromkeys(periods, self.clock_s))


def cores_of(hardware: HardwareInfo) -> dict[int, tuple[int, ...]]:
    """Return the machine-wide ids of the logical cores of each device."""
    per_device = hardware.neuroncore_per_device_count
    return {
        device: tuple(range(device * per_device, (device + 1) * per_device))
        for device in range(hardware.neuron_device_count)
    }


def unknown_process(pid: int, tag: str, origin: str) -> ProcessState:
    """Return a process of which only pid and tag are known, with no work."""
    return ProcessState(
        pid=pid,
        start_ticks=0,
        uid=UNKNOWN_UID,
        command="",
        tag="" if tag == str(pid) else tag,
        runtime_version="",
        origin=origin,
        uses_device=True,
        cores=(),
        host_memory=MemoryUse(),
        models=(),
        status_counts=(),
        latency_counts=(0,) * LATENCY_BUCKETS,
        registered_ns=0,
    )


def _periods(report: MonitorReport) -> Iterator[tuple[str, float]]:
    for entry in report.runtimes:
        yield from _entry_periods(entry)
    system = report.system
    for name, group in (
        ("vcpu_usage", system.vcpu_usage),
        ("memory_info", system.memory_info),
        ("hardware", system.hardware_errors),
    ):
        if group is not None:
            yield name, group.period_s


def _entry_periods(entry: RuntimeEntry) -> Iterator[tuple[str, float]]:
    for name, group in (
        ("cores", entry.neuroncore_counters),
        ("memory", entry.memory_used),
        ("cpu", entry.vcpu_usage),
        ("executions", entry.execution_stats),
    ):
        if group is not None:
            yield f"runtime {name}", group.period_s
