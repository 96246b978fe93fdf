"""The metrics of neuron-monitor-prometheus, parsed back into a report of neuron-monitor.

The metrics hold less than a report: no pids, no loaded models, no FLOPs, no device latency, one sum for processes with
one tag. A tag that is a number is taken for the pid; other processes get numbers above those of any operating system.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from neurontools.errors import NeuronToolsError
from neurontools.machine.protocol import SYNTHETIC_PIDS_ABOVE
from neurontools.monitor.report import (
    DEVICE_ERROR_KINDS,
    LARGEST,
    CoreActivity,
    CoreMemory,
    DeviceErrors,
    ErrorSummary,
    ExecutionStats,
    ExecutionSummary,
    HardwareErrors,
    HardwareInfo,
    HostMemory,
    InstanceInfo,
    MemoryUsed,
    MonitorReport,
    NeuroncoreCounters,
    Percentiles,
    RuntimeEntry,
    RuntimeVcpuUsage,
    SystemData,
    VcpuShares,
    VcpuUsage,
    find_excess,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_TAG = "runtime_tag"
_MEMORY = "neuroncore_memory_usage_"
_MEMORY_FIELDS = frozenset(field.name for field in fields(CoreMemory))
_PERCENTILES = tuple(field.name for field in fields(Percentiles))
_ECC = frozenset(DEVICE_ERROR_KINDS)
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*|\{")  # Prometheus 3 has quoted names inside of the braces
_FAMILIES = ("neuron", "execution_", "hardware_ecc_events", "system_vcpu_usage_ratio")
# Behind the value: a time in milliseconds, or OpenMetrics's time in seconds and example.
_SAMPLE = re.compile(
    r'([a-zA-Z_:][a-zA-Z0-9_:]*)\s*(?:\{((?:[^"}]|"(?:[^"\\]|\\.)*")*)\})?\s+(\S+)(?:\s+[\d.eE+-]+)?(?:\s+#.*)?'
)
_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,|$)')
_MOST_DIGITS = 19
_ESCAPE = re.compile(r"\\(.)")
_ESCAPES = {"n": "\n", '"': '"', "\\": "\\"}


class ExpositionError(NeuronToolsError):
    """A text that is not in Prometheus's exposition format."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of a metric."""

    name: str
    labels: dict[str, str]
    value: float


class ScrapeReader:
    """Makes reports of one exporter's scrapes; remembers its counters."""

    def __init__(self) -> None:
        self._pids: dict[str, int] = {}
        self._next_pid = SYNTHETIC_PIDS_ABOVE + 1
        self._counted: dict[tuple[str, str, str], float] | None = None

    def report(self, samples: Iterable[Sample], period_s: float) -> MonitorReport:
        """Return the report of a scrape.

        Args:
            samples: all of them.
            period_s: seconds since the scrape before.

        Raises:
            ExpositionError: it has more devices or cores than any machine.
        """
        scrape = _Scrape(samples)
        before, self._counted = self._counted, scrape.counters
        self._pids = {tag: pid for tag, pid in self._pids.items() if tag in scrape.tags}
        grown = (
            {}
            if before is None
            else {key: _growth(before.get(key), now) for key, now in scrape.counters.items()}
        )
        report = MonitorReport(
            runtimes=tuple(self._entry(scrape, tag, grown, period_s) for tag in sorted(scrape.tags)),
            system=scrape.system(period_s),
            instance=scrape.instance(),
            hardware=scrape.hardware(),
        )
        excess = find_excess(report)
        if excess:
            raise ExpositionError(f"the metrics are not those of a machine: {excess}")
        return report

    def _entry(
        self, scrape: _Scrape, tag: str, grown: dict[tuple[str, str, str], int], period_s: float
    ) -> RuntimeEntry:
        memory = scrape.memory.get(tag, {})
        host_bytes = int(memory.get("host", 0))
        vcpus = scrape.vcpus.get(tag, {})
        return RuntimeEntry(
            pid=self._pid(tag),
            tag=tag,
            neuroncore_counters=NeuroncoreCounters(
                period_s, cores=tuple(sorted(scrape.cores.get(tag, {}).items()))
            ),
            memory_used=MemoryUsed(
                period_s,
                host_bytes=host_bytes,
                device_bytes=int(memory.get("neuron_device", 0)),
                # What kind of memory it is on the host the metrics do not tell.
                host=HostMemory(application_memory=host_bytes),
                cores=tuple(
                    (core, CoreMemory(**values))
                    for core, values in sorted(scrape.core_memory.get(tag, {}).items())
                ),
            ),
            vcpu_usage=RuntimeVcpuUsage(
                period_s,
                user_percent=100 * vcpus.get("user", 0.0),
                system_percent=100 * vcpus.get("system", 0.0),
            ),
            execution_stats=ExecutionStats(
                period_s,
                errors=ErrorSummary(**_of(grown, "execution_errors_total", tag, ErrorSummary)),
                executions=ExecutionSummary(**_of(grown, "execution_status_total", tag, ExecutionSummary)),
                total_latency=scrape.latency(tag),
            ),
        )

    def _pid(self, tag: str) -> int:
        pid = _number(tag)
        if 0 < pid <= SYNTHETIC_PIDS_ABOVE:
            return pid
        if tag not in self._pids:
            self._pids[tag] = self._next_pid
            self._next_pid += 1
        return self._pids[tag]


class _Scrape:
    """One scrape's values by what they belong to."""

    def __init__(self, samples: Iterable[Sample]) -> None:
        self.tags: set[str] = set()
        self.cores: dict[str, dict[int, CoreActivity]] = {}
        self.core_memory: dict[str, dict[int, dict[str, int]]] = {}
        self.memory: dict[str, dict[str, float]] = {}
        self.vcpus: dict[str, dict[str, float]] = {}
        self.counters: dict[tuple[str, str, str], float] = {}
        self._latency: dict[str, dict[str, float]] = {}
        self._ecc: dict[int, dict[str, int]] = {}
        self._labels: dict[str, str] = {}
        self._hardware: dict[str, str] = {}
        self._system_vcpu: dict[str, float] = {}
        for sample in samples:
            if -LARGEST <= sample.value <= LARGEST:  # NaN is not
                self._take(sample.name, sample.labels, sample.value)

    def _take(self, name: str, labels: dict[str, str], value: float) -> None:
        self._labels = self._labels or (labels if "instance_id" in labels else {})
        if name == "neuron_hardware_info":
            self._hardware = labels
        elif name == "system_vcpu_usage_ratio":
            self._system_vcpu[labels.get("usage_type", "")] = value
        elif name == "hardware_ecc_events_total":
            if labels.get("event_type") in _ECC:
                device = self._ecc.setdefault(_number(labels.get("neuron_device_index")), {})
                device[labels["event_type"]] = int(value)
        elif _TAG in labels:
            self._take_runtime(name, labels[_TAG], labels, value)

    def _take_runtime(self, name: str, tag: str, labels: dict[str, str], value: float) -> None:
        if name == "neuroncore_utilization_ratio":
            core = _number(labels.get("neuroncore"))
            self.cores.setdefault(tag, {})[core] = CoreActivity(utilization_percent=100 * value)
        elif name.startswith(_MEMORY) and name.removeprefix(_MEMORY) in _MEMORY_FIELDS:
            of_core = self.core_memory.setdefault(tag, {}).setdefault(_number(labels.get("neuroncore")), {})
            of_core[name.removeprefix(_MEMORY)] = int(value)
        elif name == "neuron_runtime_memory_used_bytes":
            self.memory.setdefault(tag, {})[labels.get("memory_location", "")] = value
        elif name == "neuron_runtime_vcpu_usage_ratio":
            self.vcpus.setdefault(tag, {})[labels.get("usage_type", "")] = value
        elif name == "execution_latency_seconds":
            self._latency.setdefault(tag, {})[labels.get("percentile", "")] = value
        elif name in {"execution_errors_total", "execution_status_total"}:
            kind = labels.get("error_type") or labels.get("status_type") or ""
            self.counters[name, tag, kind] = value
        else:
            return
        self.tags.add(tag)

    def latency(self, tag: str) -> Percentiles | None:
        """Return the latency of a process, None where not every percentile is there."""
        found = self._latency.get(tag, {})
        if any(name not in found for name in _PERCENTILES):
            return None
        return Percentiles(**{name: found[name] for name in _PERCENTILES})

    def system(self, period_s: float) -> SystemData:
        """Return the errors of the devices and the use of the host's vCPUs."""
        devices = tuple(DeviceErrors(index, **counts) for index, counts in sorted(self._ecc.items()))
        usage = None
        if self._system_vcpu:
            user, system = (100 * self._system_vcpu.get(kind, 0.0) for kind in ("user", "system"))
            usage = VcpuUsage(period_s, VcpuShares(user=user, system=system))
        return SystemData(hardware_errors=HardwareErrors(period_s, devices=devices), vcpu_usage=usage)

    def instance(self) -> InstanceInfo:
        """Return the facts about the instance."""
        labels = self._labels
        return InstanceInfo(
            instance_name=labels.get("instance_name", ""),
            instance_id=labels.get("instance_id", ""),
            instance_type=labels.get("instance_type", ""),
            instance_availability_zone=labels.get("availability_zone", ""),
            instance_region=labels.get("region", ""),
            subnet_id=labels.get("subnet_id", ""),
        )

    def hardware(self) -> HardwareInfo:
        """Return the facts about the devices that the metrics hold."""
        count, cores, memory_bytes = (
            _number(self._hardware.get(name))
            for name in ("neuron_device_count", "neuroncore_per_device_count", "neuron_device_memory_size")
        )
        return HardwareInfo(
            neuron_device_count=count,
            neuroncore_per_device_count=cores,
            neuron_device_memory_size=memory_bytes,
            logical_neuroncore_config=0,
            error="" if count or not self._hardware else "no Neuron device",
        )


def _of(grown: dict[tuple[str, str, str], int], name: str, tag: str, kinds: type) -> dict[str, int]:
    return {field.name: grown.get((name, tag, field.name), 0) for field in fields(kinds)}


def _growth(before: float | None, now: float) -> int:
    # A counter that shrank began anew with its exporter or its process; a new counter began at 0.
    return int(now if before is None or now < before else now - before)


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isdecimal() and len(text) <= _MOST_DIGITS else 0


def parse_samples(text: str) -> Iterator[Sample]:
    """Yield the samples of neuron-monitor's families; lines of other exporters may have any form.

    Raises:
        ExpositionError: a line is not a metric.
    """
    for number, line in enumerate(text.split("\n"), 1):
        line = line.strip(" \t\r")  # noqa: PLW2901  label values may hold other kinds of white space
        if not line or line.startswith("#"):
            continue
        name = _NAME.match(line)
        if name is not None and not name.group().startswith(_FAMILIES):
            continue
        sample = _parse_sample(line)
        if sample is None:
            raise ExpositionError(f"line {number} is not a Prometheus metric: {line[:60]!r}")
        yield sample


def _parse_sample(line: str) -> Sample | None:
    sample = _SAMPLE.fullmatch(line)
    try:
        return Sample(sample[1], _labels(sample[2] or ""), float(sample[3])) if sample else None
    except ValueError:
        return None


def _labels(text: str) -> dict[str, str]:
    labels: dict[str, str] = {}
    at = 0
    while at < len(text):
        found = _LABEL.match(text, at)
        if found is None:
            raise ValueError(text)
        name, value = found.groups()
        labels[name] = _ESCAPE.sub(lambda match: _ESCAPES.get(match.group(1), match.group(0)), value)
        at = found.end()
    return labels
