"""Reports as Prometheus metrics: the families, types and labels of the real companion (system-tools.md section 3.4)."""

from __future__ import annotations

import time
from dataclasses import fields
from threading import Lock
from typing import TYPE_CHECKING

from neurontools.monitor import families
from neurontools.monitor.counting import Counter, Freshness
from neurontools.monitor.groups import RuntimeGroup, SystemGroup
from neurontools.monitor.report import MonitorReport, SystemData

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from prometheus_client.metrics_core import Metric

    from neurontools.monitor.families import Owned
    from neurontools.monitor.report import (
        ExecutionStats,
        HardwareErrors,
        MemoryUsed,
        NeuroncoreCounters,
        RuntimeEntry,
        RuntimeVcpuUsage,
    )

_HOST = 0
_TOLD_MAX = 1000
_ECC_EVENTS = ("mem_ecc_corrected", "mem_ecc_uncorrected", "sram_ecc_corrected", "sram_ecc_uncorrected")


class Exporter:
    """Takes reports in and shows them to a Prometheus registry; both may happen in different threads.

    Processes with the same tag are one series: their values are added, of their latencies the highest counts.
    Series of processes that ended, and of groups that are no longer reported, are dropped.

    Args:
        on_problem: told in a line why a group was skipped, once for each reason.
        clock: monotonic seconds.
        wall_clock: seconds since 1970.
    """

    def __init__(
        self,
        on_problem: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._on_problem = on_problem
        self._clock = clock
        self._wall_clock = wall_clock
        self._lock = Lock()
        self._fresh = Freshness()
        self._told: set[str] = set()
        self._report: MonitorReport | None = None
        self._cores: dict[int, Owned[NeuroncoreCounters]] = {}
        self._memory: dict[int, Owned[MemoryUsed]] = {}
        self._vcpus: dict[int, Owned[RuntimeVcpuUsage]] = {}
        self._executions: dict[int, Owned[ExecutionStats]] = {}
        self._system = SystemData()
        self._errors: dict[tuple[str, ...], Counter] = {}
        self._statuses: dict[tuple[str, ...], Counter] = {}
        self._gpsimd: dict[tuple[str, ...], Counter] = {}
        self._ecc: dict[tuple[str, ...], Counter] = {}

    def update(self, report: MonitorReport) -> None:
        """Take a report in."""
        with self._lock:
            now_s = self._clock()
            self._report = report
            for entry in report.runtimes:
                self._take_runtime(entry, now_s)
            self._take_system(report.system, now_s)
            self._drop(self._fresh.missing(now_s))

    def collect(self) -> Iterator[Metric]:
        """Yield the metric families that have samples: what a registry asks for."""
        with self._lock:
            self._drop(self._fresh.silent(self._clock()))
            metrics = list(self._families())
        yield from (metric for metric in metrics if metric.samples)

    def describe(self) -> list[Metric]:
        """Return nothing: there is nothing to check before the first report."""
        return []

    def _families(self) -> Iterator[Metric]:
        if self._report is None:
            return
        base = families.base_labels(self._report.instance)
        yield families.utilization(base, self._cores.values())
        yield families.runtime_vcpus(base, self._vcpus.values())
        yield from families.memory(base, self._memory.values())
        yield families.counter(base, families.EXECUTION_ERRORS, self._errors)
        yield families.counter(base, families.EXECUTION_STATUS, self._statuses)
        yield families.latency(base, self._executions.values())
        yield families.counter(base, families.GPSIMD, self._gpsimd)
        yield families.counter(base, families.ECC_EVENTS, self._ecc)
        yield from families.vcpus(base, self._system.vcpu_usage)
        yield from families.memory_info(base, self._system.memory_info)
        yield from families.infos(base, self._report.hardware)

    def _take_runtime(self, entry: RuntimeEntry, now_s: float) -> None:
        if entry.error:
            self._problem(f"runtime {entry.tag} (pid {entry.pid}): {entry.error}")
        cores = entry.neuroncore_counters
        if cores and self._usable(RuntimeGroup.NEURONCORE_COUNTERS, entry, cores.error):
            self._cores[entry.pid] = families.Owned(entry.tag, cores)
            self._fresh.told(RuntimeGroup.NEURONCORE_COUNTERS, entry.pid, cores.period_s, now_s)
            for core, counters in cores.cores:
                if counters.gpsimd_s:
                    self._counter(self._gpsimd, (entry.tag, str(core))).add(counters.gpsimd_s)
        memory = entry.memory_used
        if memory and self._usable(RuntimeGroup.MEMORY_USED, entry, memory.error):
            self._memory[entry.pid] = families.Owned(entry.tag, memory)
            self._fresh.told(RuntimeGroup.MEMORY_USED, entry.pid, memory.period_s, now_s)
        vcpus = entry.vcpu_usage
        if vcpus and self._usable(RuntimeGroup.VCPU_USAGE, entry, vcpus.error):
            self._vcpus[entry.pid] = families.Owned(entry.tag, vcpus)
            self._fresh.told(RuntimeGroup.VCPU_USAGE, entry.pid, vcpus.period_s, now_s)
        executions = entry.execution_stats
        if executions and self._usable(RuntimeGroup.EXECUTION_STATS, entry, executions.error):
            self._executions[entry.pid] = families.Owned(entry.tag, executions)
            self._fresh.told(RuntimeGroup.EXECUTION_STATS, entry.pid, executions.period_s, now_s)
            self._count(entry.tag, executions)

    def _take_system(self, system: SystemData, now_s: float) -> None:
        vcpus, memory, hardware = system.vcpu_usage, system.memory_info, system.hardware_errors
        if vcpus and self._usable(SystemGroup.VCPU_USAGE, None, vcpus.error):
            self._system = SystemData(vcpus, self._system.memory_info)
            self._fresh.told(SystemGroup.VCPU_USAGE, _HOST, vcpus.period_s, now_s)
        if memory and self._usable(SystemGroup.MEMORY_INFO, None, memory.error):
            self._system = SystemData(self._system.vcpu_usage, memory)
            self._fresh.told(SystemGroup.MEMORY_INFO, _HOST, memory.period_s, now_s)
        if hardware and self._usable(SystemGroup.HARDWARE_COUNTERS, None, hardware.error):
            self._fresh.told(SystemGroup.HARDWARE_COUNTERS, _HOST, hardware.period_s, now_s)
            self._follow(hardware)

    def _count(self, tag: str, executions: ExecutionStats) -> None:
        for counters, summary in (
            (self._errors, executions.errors),
            (self._statuses, executions.executions),
        ):
            for field in fields(summary):
                self._counter(counters, (tag, field.name)).add(getattr(summary, field.name))

    def _follow(self, hardware: HardwareErrors) -> None:
        there = {str(device.device_index) for device in hardware.devices}
        for labels in [labels for labels in self._ecc if labels[1] not in there]:
            del self._ecc[labels]
        for device in hardware.devices:
            for event in _ECC_EVENTS:
                self._counter(self._ecc, (event, str(device.device_index))).follow(getattr(device, event))

    def _counter(self, counters: dict[tuple[str, ...], Counter], labels: tuple[str, ...]) -> Counter:
        if labels not in counters:
            counters[labels] = Counter(self._wall_clock())
        return counters[labels]

    def _usable(self, group: str, entry: RuntimeEntry | None, error: str) -> bool:
        if error:
            whose = f"runtime {entry.tag} (pid {entry.pid})" if entry else "the system"
            self._problem(f"skipped {group} of {whose}: {error}")
        return not error

    def _problem(self, text: str) -> None:
        if text not in self._told:
            if len(self._told) >= _TOLD_MAX:
                self._told.clear()
            self._told.add(text)
            self._on_problem(text)

    def _drop(self, series: list[tuple[str, int]]) -> None:
        for group, key in series:
            match group:
                case RuntimeGroup.NEURONCORE_COUNTERS:
                    self._cores.pop(key, None)
                case RuntimeGroup.MEMORY_USED:
                    self._memory.pop(key, None)
                case RuntimeGroup.VCPU_USAGE:
                    self._vcpus.pop(key, None)
                case RuntimeGroup.EXECUTION_STATS:
                    self._executions.pop(key, None)
                case SystemGroup.VCPU_USAGE:
                    self._system = SystemData(None, self._system.memory_info)
                case SystemGroup.MEMORY_INFO:
                    self._system = SystemData(self._system.vcpu_usage, None)
                case SystemGroup.HARDWARE_COUNTERS:
                    self._ecc.clear()
        if series:
            running = {owned.tag for owned in self._executions.values()}
            using = {owned.tag for owned in self._cores.values()}
            for counters, tags in ((self._errors, running), (self._statuses, running), (self._gpsimd, using)):
                for labels in [labels for labels in counters if labels[0] not in tags]:
                    del counters[labels]
