"""Reports as Prometheus metrics: the families, types and labels of the real companion."""

from __future__ import annotations

import time
from threading import Lock
from typing import TYPE_CHECKING, Any

from neurontools.monitor.families import (
    ECC_EVENTS,
    RUNTIME_COUNTERS,
    CounterFamily,
    CounterSeries,
    Labels,
    TaggedGroup,
    label_text,
    metric_families,
)
from neurontools.monitor.report import (
    DEVICE_ERROR_KINDS,
    HardwareErrors,
    HostData,
    MonitorReport,
    RuntimeGroup,
    SystemGroup,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from prometheus_client.metrics_core import Metric

    from neurontools.monitor.report import RuntimeEntry, SystemData

_HOST = 0
_REPORTED_PROBLEMS_MAX = 1000


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
        self._counters: dict[CounterFamily, dict[Labels, CounterSeries]] = {
            family: {} for family in (*RUNTIME_COUNTERS, ECC_EVENTS)
        }

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
        if self._report is not None:
            runtimes = {group: list(tagged.values()) for group, tagged in self._runtimes.items()}
            yield from metric_families(self._report, runtimes, self._host, self._counters)

    def _take_runtime(self, entry: RuntimeEntry, now_s: float) -> None:
        tag = label_text(entry.tag)
        process = f"runtime {tag} (pid {entry.pid})"
        if entry.error:
            self._report_problem(f"{process}: {entry.error}")
        for name, group in entry.groups():
            if group.error:
                self._report_problem(f"skipped {name} of {process}: {group.error}")
                continue
            self._runtimes[name][entry.pid] = TaggedGroup(tag, group)
            self._fresh.note(name, entry.pid, group.period_s, now_s)
            for family in RUNTIME_COUNTERS:
                if family.group is name:
                    for label, amount in family.amounts(group):
                        self._counter(family, (tag, label)).add(amount)

    def _take_system(self, system: SystemData, now_s: float) -> None:
        for name, group in system.groups():
            if group.error:
                self._report_problem(f"skipped {name} of the system: {group.error}")
                continue
            self._host[name] = group
            self._fresh.note(name, _HOST, group.period_s, now_s)
            if isinstance(group, HardwareErrors):
                self._follow(group)

    def _follow(self, hardware: HardwareErrors) -> None:
        present = {str(device.device_index) for device in hardware.devices}
        series = self._counters[ECC_EVENTS]
        for labels in [labels for labels in series if labels[1] not in present]:
            del series[labels]
        for device in hardware.devices:
            for event in DEVICE_ERROR_KINDS:
                labels = (event, str(device.device_index))
                self._counter(ECC_EVENTS, labels).follow(getattr(device, event))

    def _counter(self, family: CounterFamily, labels: Labels) -> CounterSeries:
        series = self._counters[family]
        if labels not in series:
            series[labels] = CounterSeries(self._wall_clock())
        return series[labels]

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
            self._counters[ECC_EVENTS].clear()
        for family in RUNTIME_COUNTERS:
            if family.group is not None:
                tags = {tagged.tag for tagged in self._runtimes[family.group].values()}
                counters = self._counters[family]
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
        """Return and forget, between reports, the sources that were silent for several periods."""
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
