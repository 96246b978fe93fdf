"""The metric families of neuron-monitor-prometheus, from the newest values of every process and of the host.

Names, types, labels and help texts are those of the real companion, as captured in the fixtures of Datadog's aws_neuron
integration, with the label `memory_location="None"` of the memory by category. `neuroncore_gpsimd_modelled_seconds` and
`neuron_device_links_down` are ours.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
)

from neurontools.monitor.report import (
    CoreMemory,
    HardwareErrors,
    HostMemoryInfo,
    Percentiles,
    RuntimeGroup,
    SystemGroup,
    VcpuUsage,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from neurontools.monitor.report import (
        ErrorSummary,
        ExecutionStats,
        ExecutionSummary,
        HardwareInfo,
        HostData,
        InstanceInfo,
        MemoryUsed,
        MonitorReport,
        NeuroncoreCounters,
        RuntimeVcpuUsage,
    )

Labels = tuple[str, ...]

Group = TypeVar("Group")

_TAG = "runtime_tag"


@dataclass(frozen=True, slots=True)
class TaggedGroup(Generic[Group]):
    """A group and the tag of its process."""

    tag: str
    group: Group


@dataclass(slots=True)
class CounterSeries:
    """A Prometheus counter: its value, and when it was created, in seconds since 1970."""

    created_unix_s: float
    value: float = 0.0
    _reported: int | None = None

    def add(self, amount: float) -> None:
        """Count what happened in a period; negative amounts of a damaged stream are ignored."""
        self.value += max(0, amount)

    def follow(self, total: int) -> None:
        """Follow a total that is counted elsewhere; when it shrinks it was reset, and counting goes on from there."""
        if self._reported is None or total < self._reported:
            self.value += max(0, total)
        else:
            self.value += total - self._reported
        self._reported = total


@dataclass(frozen=True, slots=True)
class CounterFamily:
    """A counter: its name without `_total`, its own labels and its help text.

    Of a process's counter, `group` is the metric group that it counts and `amounts` yields what a report adds by the
    last label.
    """

    name: str
    labels: tuple[str, ...]
    text: str
    group: RuntimeGroup | None = None
    amounts: Callable[[Any], Iterable[tuple[str, float]]] = lambda _: ()


def _summary_amounts(summary: ErrorSummary | ExecutionSummary) -> Iterator[tuple[str, float]]:
    return ((field.name, getattr(summary, field.name)) for field in fields(summary))


EXECUTION_ERRORS = CounterFamily(
    "execution_errors",
    (_TAG, "error_type"),
    "Execution errors total",
    RuntimeGroup.EXECUTION_STATS,
    lambda stats: _summary_amounts(stats.errors),
)
EXECUTION_STATUS = CounterFamily(
    "execution_status",
    (_TAG, "status_type"),
    "Execution status total",
    RuntimeGroup.EXECUTION_STATS,
    lambda stats: _summary_amounts(stats.executions),
)
GPSIMD = CounterFamily(
    "neuroncore_gpsimd_modelled_seconds",
    (_TAG, "neuroncore"),
    "Modelled device time of custom operators, seconds",
    RuntimeGroup.NEURONCORE_COUNTERS,
    lambda counters: (
        (str(core), activity.gpsimd_s) for core, activity in counters.cores if activity.gpsimd_s
    ),
)
RUNTIME_COUNTERS = (EXECUTION_ERRORS, EXECUTION_STATUS, GPSIMD)
ECC_EVENTS = CounterFamily(
    "hardware_ecc_events", ("event_type", "neuron_device_index"), "Hardware ecc events total"
)


def metric_families(
    report: MonitorReport,
    runtimes: Mapping[RuntimeGroup, Sequence[TaggedGroup[Any]]],
    host: Mapping[SystemGroup, HostData],
    counters: Mapping[CounterFamily, Mapping[Labels, CounterSeries]],
) -> Iterator[Metric]:
    """Yield all families, also those without a sample.

    Args:
        report: the newest report, for the facts about instance and devices.
        runtimes: the newest groups of the processes.
        host: the newest groups of the host.
        counters: the series of each counter.
    """
    base = base_labels(report.instance)
    yield utilization(base, runtimes[RuntimeGroup.NEURONCORE_COUNTERS])
    yield runtime_vcpus(base, runtimes[RuntimeGroup.VCPU_USAGE])
    yield from memory(base, runtimes[RuntimeGroup.MEMORY_USED])
    yield counter(base, EXECUTION_ERRORS, counters[EXECUTION_ERRORS])
    yield counter(base, EXECUTION_STATUS, counters[EXECUTION_STATUS])
    yield latency(base, runtimes[RuntimeGroup.EXECUTION_STATS])
    yield counter(base, GPSIMD, counters[GPSIMD])
    yield counter(base, ECC_EVENTS, counters[ECC_EVENTS])
    yield links_down(base, host.get(SystemGroup.HARDWARE_COUNTERS))
    yield from vcpus(base, host.get(SystemGroup.VCPU_USAGE))
    yield from memory_info(base, host.get(SystemGroup.MEMORY_INFO))
    yield from infos(base, report.hardware)


def label_text(text: str) -> str:
    """Return a text as a label can hold it: bytes that are not UTF-8, which came as lone surrogates, become `?`."""
    return text.encode("utf-8", "replace").decode()


def base_labels(instance: InstanceInfo) -> dict[str, str]:
    """Return the labels that every sample has."""
    return {
        "availability_zone": label_text(instance.instance_availability_zone),
        "instance_id": label_text(instance.instance_id),
        "instance_name": label_text(instance.instance_name),
        "instance_type": label_text(instance.instance_type),
        "region": label_text(instance.instance_region),
        "subnet_id": label_text(instance.subnet_id),
    }


def utilization(base: Mapping[str, str], owned: Iterable[TaggedGroup[NeuroncoreCounters]]) -> Metric:
    """Return neuroncore_utilization_ratio, 0 to 1."""
    values: dict[tuple[str, ...], float] = {}
    for tagged in owned:
        for core, counters in tagged.group.cores:
            key = (tagged.tag, str(core))
            values[key] = values.get(key, 0.0) + counters.utilization_percent
    ratios = {key: min(1.0, percent / 100) for key, percent in values.items()}
    return _gauge(
        base, "neuroncore_utilization_ratio", "NeuronCore utilization ratio", (_TAG, "neuroncore"), ratios
    )


def runtime_vcpus(base: Mapping[str, str], owned: Iterable[TaggedGroup[RuntimeVcpuUsage]]) -> Metric:
    """Return neuron_runtime_vcpu_usage_ratio, 0 to 1."""
    values: dict[tuple[str, ...], float] = {}
    for tagged in owned:
        for kind, percent in (("user", tagged.group.user_percent), ("system", tagged.group.system_percent)):
            values[tagged.tag, kind] = values.get((tagged.tag, kind), 0.0) + percent / 100
    return _gauge(
        base,
        "neuron_runtime_vcpu_usage_ratio",
        "Runtime vCPU utilization ratio",
        (_TAG, "usage_type"),
        values,
    )


def memory(base: Mapping[str, str], owned: Iterable[TaggedGroup[MemoryUsed]]) -> Iterator[Metric]:
    """Yield the memory of processes: by location, then a family for each category."""
    groups = list(owned)
    used: dict[tuple[str, ...], float] = {}
    for tagged in groups:
        for location, size in (
            ("host", tagged.group.host_bytes),
            ("neuron_device", tagged.group.device_bytes),
        ):
            used[tagged.tag, location] = used.get((tagged.tag, location), 0) + size
    yield _gauge(
        base, "neuron_runtime_memory_used_bytes", "Runtime memory used bytes", (_TAG, "memory_location"), used
    )
    for field in fields(CoreMemory):
        by_core: dict[tuple[str, ...], float] = {}
        for tagged in groups:
            for core, sizes in tagged.group.cores:
                key = (tagged.tag, str(core), "None")
                by_core[key] = by_core.get(key, 0) + getattr(sizes, field.name)
        yield _gauge(
            base,
            f"neuroncore_memory_usage_{field.name}",
            f"NeuronCore memory utilization for {field.name}",
            (_TAG, "neuroncore", "memory_location"),
            by_core,
        )


def latency(base: Mapping[str, str], owned: Iterable[TaggedGroup[ExecutionStats]]) -> Metric:
    """Return execution_latency_seconds: the total latency; of processes with one tag the highest."""
    values: dict[tuple[str, ...], float] = {}
    for tagged in owned:
        if tagged.group.total_latency is None:
            continue
        for field in fields(Percentiles):
            key = (tagged.tag, field.name)
            values[key] = max(values.get(key, 0.0), getattr(tagged.group.total_latency, field.name))
    return _gauge(
        base, "execution_latency_seconds", "Execution latency in seconds", (_TAG, "percentile"), values
    )


def counter(
    base: Mapping[str, str], family: CounterFamily, counters: Mapping[tuple[str, ...], CounterSeries]
) -> Metric:
    """Return a counter family with the time of creation of each series."""
    metric = CounterMetricFamily(family.name, family.text, labels=(*base, *family.labels))
    for labels, counter in counters.items():
        metric.add_metric((*base.values(), *labels), counter.value, created=counter.created_unix_s)
    return metric


def links_down(base: Mapping[str, str], hardware: HostData | None) -> Metric:
    """Return neuron_device_links_down, for devices with broken links."""
    devices = hardware.devices if isinstance(hardware, HardwareErrors) else ()
    values: dict[tuple[str, ...], float] = {
        (str(device.device_index),): device.links_down for device in devices if device.links_down
    }
    text = "Neighbours that no working link leads to"
    return _gauge(base, "neuron_device_links_down", text, ("neuron_device_index",), values)


def vcpus(base: Mapping[str, str], usage: HostData | None) -> Iterator[Metric]:
    """Yield the host's vCPUs: their number, and user and system usage, 0 to 1."""
    if not isinstance(usage, VcpuUsage):
        return
    average = usage.average
    system = average.system + average.io_wait + average.irq + average.soft_irq
    yield _gauge(base, "system_vcpu_count", "System vCPU count", (), {(): len(usage.vcpus)})
    ratios: dict[tuple[str, ...], float] = {
        ("user",): min(1.0, (average.user + average.nice) / 100),
        ("system",): min(1.0, system / 100),
    }
    yield _gauge(base, "system_vcpu_usage_ratio", "System CPU utilization ratio", ("usage_type",), ratios)


def memory_info(base: Mapping[str, str], info: HostData | None) -> Iterator[Metric]:
    """Yield the host's memory."""
    if not isinstance(info, HostMemoryInfo):
        return
    for kind, field, value in (
        ("memory", "total_bytes", info.memory_total_bytes),
        ("memory", "used_bytes", info.memory_used_bytes),
        ("swap", "total_bytes", info.swap_total_bytes),
        ("swap", "used_bytes", info.swap_used_bytes),
    ):
        yield _gauge(base, f"system_{kind}_{field}", f"System {kind} {field} bytes", (), {(): value})


def infos(base: Mapping[str, str], hardware: HardwareInfo) -> Iterator[Metric]:
    """Yield instance_info and, unless there is an error, neuron_hardware_info."""
    yield InfoMetricFamily("instance", "EC2 instance information", value=dict(base))
    if not hardware.error:
        values = {
            "neuron_device_count": str(hardware.neuron_device_count),
            "neuroncore_per_device_count": str(hardware.neuroncore_per_device_count),
            "neuron_device_memory_size": str(hardware.neuron_device_memory_size),
        }
        yield InfoMetricFamily("neuron_hardware", "Neuron Hardware Information", value={**base, **values})


def _gauge(
    base: Mapping[str, str],
    name: str,
    text: str,
    labels: tuple[str, ...],
    values: Mapping[tuple[str, ...], float],
) -> Metric:
    metric = GaugeMetricFamily(name, text, labels=(*base, *labels))
    for own, value in values.items():
        metric.add_metric((*base.values(), *own), value)
    return metric
