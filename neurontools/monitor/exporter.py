"""Reports as Prometheus metrics: the families, types and labels of the real companion."""

from __future__ import annotations

import time
from dataclasses import fields
from threading import Lock
from typing import TYPE_CHECKING, Any

from neurontools.monitor import families
from neurontools.monitor.families import CounterSeries, TaggedGroup
from neurontools.monitor.report import (
    DEVICE_ERROR_KINDS,
    ExecutionStats,
    HardwareErrors,
    HostData,
    MonitorReport,
    NeuroncoreCounters,
    RuntimeGroup,
    SystemGroup,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from prometheus_client.metrics_core import Metric

    from neurontools.monitor.report import RuntimeEntry, SystemData

_HOST = 0
_REPORTED_PROBLEMS_MAX = 1000

_Labels = tuple[str, ...]


class Exporter:
    """Takes reports in and shows them to a Prometheus registry; both may happen in different threads.

    Processes with the same tag are one series: their values are added, of their latencies the highest counts.
    Series of processes that ended, and of groups that are no longer reported, are dropped.

    Args:
        on_problem: gets a line for each reason why a group was skipped, once.
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
        self._problems: set[str] = set()
        self._report: MonitorReport | None = None
        self._runtimes: dict[RuntimeGroup, dict[int, TaggedGroup[Any]]] = {
            group: {} for group in RuntimeGroup
        }
        self._host: dict[SystemGroup, HostData] = {}
        self._errors: dict[_Labels, CounterSeries] = {}
        self._statuses: dict[_Labels, CounterSeries] = {}
        self._gpsimd: dict[_Labels, CounterSeries] = {}
        self._ecc: dict[_Labels, CounterSeries] = {}

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
        runtimes = {group: list(owned.values()) for group, owned in self._runtimes.items()}
        yield families.utilization(base, runtimes[RuntimeGroup.NEURONCORE_COUNTERS])
        yield families.runtime_vcpus(base, runtimes[RuntimeGroup.VCPU_USAGE])
        yield from families.memory(base, runtimes[RuntimeGroup.MEMORY_USED])
        yield families.counter(base, families.EXECUTION_ERRORS, self._errors)
        yield families.counter(base, families.EXECUTION_STATUS, self._statuses)
        yield families.latency(base, runtimes[RuntimeGroup.EXECUTION_STATS])
        yield families.counter(base, families.GPSIMD, self._gpsimd)
        yield families.counter(base, families.ECC_EVENTS, self._ecc)
        yield from families.vcpus(base, self._host.get(SystemGroup.VCPU_USAGE))
        yield from families.memory_info(base, self._host.get(SystemGroup.MEMORY_INFO))
        yield from families.infos(base, self._report.hardware)

    def _take_runtime(self, entry: RuntimeEntry, now_s: float) -> None:
        process = f"runtime {entry.tag} (pid {entry.pid})"
        if entry.error:
            self._report_problem(f"{process}: {entry.error}")
        for name, group in entry.groups():
            if group.error:
                self._report_problem(f"skipped {name} of {process}: {group.error}")
                continue
            self._runtimes[name][entry.pid] = TaggedGroup(entry.tag, group)
            self._fresh.note(name, entry.pid, group.period_s, now_s)
            match group:
                case NeuroncoreCounters():
                    for core, counters in group.cores:
                        if counters.gpsimd_s:
                            self._counter(self._gpsimd, (entry.tag, str(core))).add(counters.gpsimd_s)
                case ExecutionStats():
                    self._count(entry.tag, group)

    def _take_system(self, system: SystemData, now_s: float) -> None:
        for name, group in system.groups():
            if group.error:
                self._report_problem(f"skipped {name} of the system: {group.error}")
                continue
            self._host[name] = group
            self._fresh.note(name, _HOST, group.period_s, now_s)
            if isinstance(group, HardwareErrors):
                self._follow(group)

    def _count(self, tag: str, executions: ExecutionStats) -> None:
        for counters, summary in (
            (self._errors, executions.errors),
            (self._statuses, executions.executions),
        ):
            for field in fields(summary):
                self._counter(counters, (tag, field.name)).add(getattr(summary, field.name))

    def _follow(self, hardware: HardwareErrors) -> None:
        present = {str(device.device_index) for device in hardware.devices}
        for labels in [labels for labels in self._ecc if labels[1] not in present]:
            del self._ecc[labels]
        for device in hardware.devices:
            for event in DEVICE_ERROR_KINDS:
                self._counter(self._ecc, (event, str(device.device_index))).follow(getattr(device, event))

    def _counter(self, counters: dict[_Labels, CounterSeries], labels: _Labels) -> CounterSeries:
        if labels not in counters:
            counters[labels] = CounterSeries(self._wall_clock())
        return counters[labels]

    def _report_problem(self, text: str) -> None:
        if text not in self._problems:
            if len(self._problems) >= _REPORTED_PROBLEMS_MAX:
                self._problems.clear()
            self._problems.add(text)
            self._on_problem(text)

    def _drop(self, series: list[tuple[str, int]]) -> None:
        for group, pid in series:
            if pid == _HOST:
                self._host.pop(SystemGroup(group), None)
            else:
                self._runtimes[RuntimeGroup(group)].pop(pid, None)
        if not series:
            return
        if SystemGroup.HARDWARE_COUNTERS not in self._host:
            self._ecc.clear()
        executing = {owned.tag for owned in self._runtimes[RuntimeGroup.EXECUTION_STATS].values()}
        computing = {owned.tag for owned in self._runtimes[RuntimeGroup.NEURONCORE_COUNTERS].values()}
        for counters, tags in (
            (self._errors, executing),
            (self._statuses, executing),
            (self._gpsimd, computing),
        ):
            for labels in [labels for labels in counters if labels[0] not in tags]:
                del counters[labels]


class Freshness:
    """Finds series that are no longer reported: those that were absent when their period was over.

    A report holds only the groups that were due, so absence alone says nothing.
    """

    _DEFAULT_PERIOD_S = 5.0
    _EARLY = 0.9
    _SILENT_PERIODS = 3.0

    def __init__(self) -> None:
        self._seen_s: dict[tuple[str, int], float] = {}
        self._periods_s: dict[str, float] = {}

    def note(self, group: str, key: int, period_s: float, now_s: float) -> None:
        """Note that a group was reported.

        Args:
            group: name of the group.
            key: pid of the process, 0 for the host.
            period_s: what the report covers; the first one covers next to nothing and does not count.
            now_s: monotonic seconds.
        """
        if (group, key) in self._seen_s:
            self._periods_s[group] = period_s
        self._seen_s[group, key] = now_s

    def missing(self, now_s: float) -> list[tuple[str, int]]:
        """Return and forget, after a report, what should have been in it by now."""
        return self._expired(now_s, self._EARLY)

    def silent(self, now_s: float) -> list[tuple[str, int]]:
        """Return and forget, between reports, what has been silent for several periods."""
        return self._expired(now_s, self._SILENT_PERIODS)

    def _expired(self, now_s: float, periods: float) -> list[tuple[str, int]]:
        expired = [
            series
            for series, seen_s in self._seen_s.items()
            if now_s - seen_s >= periods * self._periods_s.get(series[0], self._DEFAULT_PERIOD_S)
        ]
        for series in expired:
            del self._seen_s[series]
        return expired
