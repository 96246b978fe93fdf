"""Reports as metrics: families, types, labels, what is added up and what is dropped."""

from __future__ import annotations

from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

from neurontools.monitor.exporter import CounterSeries, Exporter, Freshness
from neurontools.monitor.report import (
    CoreActivity,
    CoreMemory,
    DeviceErrors,
    ErrorSummary,
    ExecutionStats,
    ExecutionSummary,
    HardwareErrors,
    HardwareInfo,
    HostMemoryInfo,
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
)

BASE = {"availability_zone", "instance_id", "instance_name", "instance_type", "region", "subnet_id"}

# family -> type in the text format, labels beside the base labels
FAMILIES = {
    "neuroncore_utilization_ratio": ("gauge", {"runtime_tag", "neuroncore"}),
    "neuron_runtime_vcpu_usage_ratio": ("gauge", {"runtime_tag", "usage_type"}),
    "neuron_runtime_memory_used_bytes": ("gauge", {"runtime_tag", "memory_location"}),
    **{
        f"neuroncore_memory_usage_{category}": ("gauge", {"runtime_tag", "neuroncore", "memory_location"})
        for category in ("constants", "model_code", "model_shared_scratchpad", "runtime_memory", "tensors")
    },
    "execution_errors": ("counter", {"runtime_tag", "error_type"}),
    "execution_errors_created": ("gauge", {"runtime_tag", "error_type"}),
    "execution_status": ("counter", {"runtime_tag", "status_type"}),
    "execution_status_created": ("gauge", {"runtime_tag", "status_type"}),
    "execution_latency_seconds": ("gauge", {"runtime_tag", "percentile"}),
    "hardware_ecc_events": ("counter", {"event_type", "neuron_device_index"}),
    "hardware_ecc_events_created": ("gauge", {"event_type", "neuron_device_index"}),
    "neuron_device_links_down": ("gauge", {"neuron_device_index"}),
    "system_vcpu_count": ("gauge", set()),
    "system_vcpu_usage_ratio": ("gauge", {"usage_type"}),
    "system_memory_total_bytes": ("gauge", set()),
    "system_memory_used_bytes": ("gauge", set()),
    "system_swap_total_bytes": ("gauge", set()),
    "system_swap_used_bytes": ("gauge", set()),
    "instance_info": ("gauge", set()),
    "neuron_hardware_info": (
        "gauge",
        {"neuron_device_count", "neuroncore_per_device_count", "neuron_device_memory_size"},
    ),
}


def entry(pid: int = 7, tag: str = "bert", *, period_s: float = 1.0, completed: int = 5) -> RuntimeEntry:
    return RuntimeEntry(
        pid=pid,
        tag=tag,
        neuroncore_counters=NeuroncoreCounters(
            period_s, ((0, CoreActivity(40.0, 9)), (1, CoreActivity(0.0)))
        ),
        memory_used=MemoryUsed(period_s, 100, 200, cores=((0, CoreMemory(1, 2, 3, 4, 5)), (1, CoreMemory()))),
        vcpu_usage=RuntimeVcpuUsage(period_s, 12.5, 2.5),
        execution_stats=ExecutionStats(
            period_s,
            ErrorSummary(hardware=1),
            ExecutionSummary(completed=completed, timed_out=1),
            Percentiles(0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7),
            Percentiles(9, 9, 9, 9, 9, 9, 9),
        ),
    )


SYSTEM = SystemData(
    HostMemoryInfo(1.0, 1000, 500, 100, 50),
    HardwareErrors(1.0, (DeviceErrors(0, 1, 2, 3, 4), DeviceErrors(1, links_down=2))),
    VcpuUsage(
        1.0, VcpuShares(60.0, 50.0, 10.0, 20.0, 5.0, 2.0, 1.0), ((0, VcpuShares()), (1, VcpuShares())), 9
    ),
)
INSTANCE = InstanceInfo(
    "default", "i-1", "trn1.2xlarge", "us-west-2a", "usw2-az1", "us-west-2", "ami-1", "subnet-1"
)
HARDWARE = HardwareInfo("trainium", "v2", "v2", 1, 34359738368, 2, 1)


def report(*runtimes: RuntimeEntry, system: SystemData = SYSTEM) -> MonitorReport:
    return MonitorReport(runtimes, system, INSTANCE, HARDWARE)


class Bench:
    """An exporter with a clock that the test turns."""

    def __init__(self) -> None:
        self.now = 0.0
        self.problems: list[str] = []
        self.exporter = Exporter(self.problems.append, lambda: self.now, lambda: 1_780_000_000.0 + self.now)
        self.registry = CollectorRegistry()
        self.registry.register(self.exporter)

    def tell(self, at_s: float, *runtimes: RuntimeEntry, system: SystemData = SYSTEM) -> None:
        self.now = at_s
        self.exporter.update(report(*runtimes, system=system))

    def families(self):
        text = generate_latest(self.registry).decode()
        return {family.name: family for family in text_string_to_metric_families(text)}

    def value(self, name: str, **labels: str) -> float | None:
        found = [
            sample.value
            for family in self.families().values()
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]
        assert len(found) <= 1, found
        return found[0] if found else None


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_the_families_are_those_of_the_real_companion(bench):
    bench.tell(0, entry())
    found = bench.families()
    assert {
        name: (family.type, set(family.samples[0].labels) - BASE) for name, family in found.items()
    } == FAMILIES
    assert all(set(sample.labels) >= BASE for family in found.values() for sample in family.samples)


def test_before_the_first_report_there_is_nothing(bench):
    assert bench.families() == {}


def test_base_labels_are_the_instances(bench):
    bench.tell(0, entry())
    labels = bench.families()["instance_info"].samples[0].labels
    assert labels == {
        "availability_zone": "us-west-2a",
        "instance_id": "i-1",
        "instance_name": "default",
        "instance_type": "trn1.2xlarge",
        "region": "us-west-2",
        "subnet_id": "subnet-1",
    }


def test_values(bench):
    bench.tell(0, entry())
    assert bench.value("neuroncore_utilization_ratio", neuroncore="0") == pytest.approx(0.4)
    assert bench.value("neuroncore_utilization_ratio", neuroncore="1") == 0
    assert bench.value("neuron_runtime_vcpu_usage_ratio", usage_type="user") == 0.125
    assert bench.value("neuron_runtime_memory_used_bytes", memory_location="neuron_device") == 200
    assert bench.value("neuroncore_memory_usage_tensors", neuroncore="0", memory_location="None") == 5
    assert bench.value("execution_latency_seconds", percentile="p99") == 0.6
    assert bench.value("execution_errors_total", error_type="hardware") == 1
    assert bench.value("execution_status_total", status_type="completed") == 5
    assert bench.value("execution_status_total", status_type="failed_to_queue") == 0
    assert (
        bench.value("hardware_ecc_events_total", event_type="sram_ecc_corrected", neuron_device_index="0")
        == 4
    )
    assert bench.value("system_vcpu_count") == 2
    assert bench.value("system_memory_used_bytes") == 500
    assert bench.value("neuron_hardware_info", neuron_device_memory_size="34359738368") == 1


def test_user_takes_nice_and_system_takes_waiting_and_interrupts_capped_at_one(bench):
    bench.tell(0, entry())
    assert bench.value("system_vcpu_usage_ratio", usage_type="user") == 1
    assert bench.value("system_vcpu_usage_ratio", usage_type="system") == pytest.approx(0.18)


def test_counters_add_up_the_periods(bench):
    for second in range(3):
        bench.tell(second, entry())
    assert bench.value("execution_status_total", status_type="completed") == 15
    assert bench.value("execution_errors_total", error_type="hardware") == 3
    assert bench.value("execution_status_created", status_type="completed") == 1_780_000_000.0


def test_errors_of_devices_follow_the_total_also_over_a_reset(bench):
    def corrected(count: int) -> SystemData:
        return replace(SYSTEM, hardware_errors=HardwareErrors(1.0, (DeviceErrors(0, count),)))

    totals = []
    for second, count in enumerate((3, 3, 5, 0, 2)):
        bench.tell(second, system=corrected(count))
        totals.append(
            bench.value("hardware_ecc_events_total", event_type="mem_ecc_corrected", neuron_device_index="0")
        )
    assert totals == [3, 3, 5, 5, 7]


def test_a_device_that_is_gone_has_no_counters(bench):
    bench.tell(0)
    bench.tell(1, system=replace(SYSTEM, hardware_errors=HardwareErrors(1.0, (DeviceErrors(0),))))
    assert (
        bench.value("hardware_ecc_events_total", event_type="mem_ecc_corrected", neuron_device_index="1")
        is None
    )


def test_processes_with_one_tag_are_one_series(bench):
    other = entry(8)
    other = replace(
        other,
        neuroncore_counters=NeuroncoreCounters(1.0, ((0, CoreActivity(0.0)), (1, CoreActivity(70.0)))),
        execution_stats=replace(other.execution_stats, total_latency=Percentiles(0, 0, 0, 0, 0, 0.65, 0.8)),
    )
    bench.tell(0, entry(7), other)
    assert bench.value("neuroncore_utilization_ratio", neuroncore="0") == pytest.approx(0.4)
    assert bench.value("neuroncore_utilization_ratio", neuroncore="1") == pytest.approx(0.7)
    assert bench.value("neuron_runtime_memory_used_bytes", memory_location="host") == 200
    assert bench.value("execution_status_total", status_type="completed") == 10
    assert bench.value("execution_latency_seconds", percentile="p99") == 0.65


def tags(bench: Bench) -> set[str]:
    return {
        sample.labels["runtime_tag"]
        for family in bench.families().values()
        for sample in family.samples
        if "runtime_tag" in sample.labels
    }


def test_series_of_a_process_that_ended_are_dropped_with_its_counters(bench):
    bench.tell(0.05, entry(7, "a", period_s=0.05), entry(8, "b", period_s=0.05))
    bench.tell(1, entry(7, "a"), entry(8, "b"))
    bench.tell(2, entry(7, "a"))
    assert tags(bench) == {"a"}
    bench.tell(3)
    assert tags(bench) == set()
    bench.tell(4, entry(7, "a"))
    assert bench.value("execution_status_total", status_type="completed", runtime_tag="a") == 5


def test_a_line_without_a_group_that_was_not_due_drops_nothing(bench):
    fast = replace(SYSTEM, vcpu_usage=None, hardware_errors=None)
    bench.tell(0, entry(period_s=0.05))
    bench.tell(5, entry(period_s=5.0))
    for second in (6, 7, 8, 9):
        bench.tell(second, system=fast)
        assert tags(bench) == {"bert"}
    bench.tell(10, system=fast)
    assert tags(bench) == set()


def test_groups_of_the_host_that_are_no_longer_reported_are_dropped(bench):
    for second in range(3):
        bench.tell(second, entry())
    bench.tell(3, entry(), system=SystemData())
    names = set(bench.families())
    assert not {name for name in names if name.startswith(("system_", "hardware_"))}
    assert "neuroncore_utilization_ratio" in names


def test_when_no_lines_come_any_more_the_series_end(bench):
    bench.tell(0, entry())
    bench.tell(1, entry())
    bench.now = 3.5
    assert tags(bench) == {"bert"}
    bench.now = 4.5
    assert set(bench.families()) == {"instance_info", "neuron_hardware_info"}


def test_a_group_with_an_error_is_skipped_and_reported_once(bench):
    broken = replace(
        entry(), vcpu_usage=RuntimeVcpuUsage(1.0, error="open /proc/7/stat: no such file or directory")
    )
    for second in range(3):
        bench.tell(second, broken, system=replace(SYSTEM, memory_info=HostMemoryInfo(1.0, error="no memory")))
    assert "neuron_runtime_vcpu_usage_ratio" not in bench.families()
    assert "system_memory_used_bytes" not in bench.families()
    assert bench.value("neuroncore_utilization_ratio", neuroncore="0") == pytest.approx(0.4)
    assert bench.problems == [
        "skipped neuron_runtime_vcpu_usage of runtime bert (pid 7): open /proc/7/stat: no such file or directory",
        "skipped memory_info of the system: no memory",
    ]


# Help texts of the real companion, from the captured metrics in the tests of Datadog's aws_neuron integration.
HELP = {
    "neuroncore_utilization_ratio": "NeuronCore utilization ratio",
    "neuron_runtime_vcpu_usage_ratio": "Runtime vCPU utilization ratio",
    "neuron_runtime_memory_used_bytes": "Runtime memory used bytes",
    "neuroncore_memory_usage_constants": "NeuronCore memory utilization for constants",
    "neuroncore_memory_usage_model_code": "NeuronCore memory utilization for model_code",
    "neuroncore_memory_usage_model_shared_scratchpad": "NeuronCore memory utilization for model_shared_scratchpad",
    "neuroncore_memory_usage_runtime_memory": "NeuronCore memory utilization for runtime_memory",
    "neuroncore_memory_usage_tensors": "NeuronCore memory utilization for tensors",
    "execution_errors": "Execution errors total",
    "execution_status": "Execution status total",
    "execution_latency_seconds": "Execution latency in seconds",
    "hardware_ecc_events": "Hardware ecc events total",
    "neuron_device_links_down": "Neighbours that no working link leads to",
    "system_vcpu_count": "System vCPU count",
    "system_vcpu_usage_ratio": "System CPU utilization ratio",
    "system_memory_total_bytes": "System memory total_bytes bytes",
    "system_memory_used_bytes": "System memory used_bytes bytes",
    "system_swap_total_bytes": "System swap total_bytes bytes",
    "system_swap_used_bytes": "System swap used_bytes bytes",
    "instance": "EC2 instance information",
    "neuron_hardware": "Neuron Hardware Information",
}


def test_the_help_texts_are_the_real_companions(bench):
    bench.tell(0, entry())
    assert {metric.name: metric.documentation for metric in bench.exporter.collect()} == HELP


def test_hardware_with_an_error_has_no_info(bench):
    bench.exporter.update(replace(report(), hardware=replace(HARDWARE, error="no neuron device found")))
    assert "neuron_hardware_info" not in bench.families()


def test_openmetrics_is_well_formed(bench):
    bench.tell(0, entry(tag='odd "tag"\n\\'))
    families = list(openmetrics_families(generate_openmetrics(bench.registry).decode()))
    assert {family.name: family.type for family in families}["execution_errors"] == "counter"
    assert {family.name: family.type for family in families}["neuron_hardware"] == "info"


def test_a_counter_never_falls():
    counter = CounterSeries(0.0)
    counter.add(3)
    counter.add(-2)
    assert counter.value == 3


def test_the_short_first_period_does_not_count_as_the_period():
    fresh = Freshness()
    fresh.note("g", 1, 0.05, 0.0)
    assert fresh.missing(1.0) == []
    assert fresh.missing(4.6) == [("g", 1)]
