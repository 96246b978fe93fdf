"""Lines: byte for byte what a real neuron-monitor writes, where it was captured."""

from __future__ import annotations

import json
import re

import pytest

from neurontools.monitor.codec import format_line, format_number
from neurontools.monitor.collector import Collector
from neurontools.monitor.config import default_config
from neurontools.monitor.report import (
    HardwareInfo,
    HostMemoryInfo,
    InstanceInfo,
    MonitorReport,
    SystemData,
    VcpuShares,
    VcpuUsage,
)
from tests.monitor.conftest import FixedHost, job, machine_at

# trn1.2xlarge, tools 2.28.23, first line, idle (captured; instance_info was not kept)
CAPTURED = (
    '{"neuron_runtime_data":[],"system_data":{"memory_info":{"period":0.00047258,"memory_total_bytes":33110204416,'
    '"memory_used_bytes":1284890624,"swap_total_bytes":0,"swap_used_bytes":0,"error":""}},"instance_info":{...},'
    '"neuron_hardware_info":{"neuron_device_type":"trainium","neuron_device_version":"v2","neuroncore_version":"v2",'
    '"neuron_device_count":1,"neuron_device_memory_size":34359738368,"neuroncore_per_device_count":2,'
    '"logical_neuroncore_config":1,"error":""}}'
)
INSTANCE_KEYS = [
    "instance_name",
    "instance_id",
    "instance_type",
    "instance_availability_zone",
    "instance_availability_zone_id",
    "instance_region",
    "ami_id",
    "subnet_id",
    "error",
]


def without_instance(line: str) -> str:
    return re.sub(r'"instance_info":\{[^}]*\}', '"instance_info":{...}', line)


def line_of(instance: str, *processes, lnc: int | None = None) -> str:
    before = machine_at(1, *processes, instance=instance, lnc=lnc)
    after = machine_at(2, *processes, instance=instance, lnc=lnc)
    host = FixedHost(now=1.0)
    collector = Collector(default_config(), before, host)
    host.now = 2.0
    return format_line(collector.collect(default_config().periods().keys(), after))


def test_the_first_line_of_an_idle_machine_is_the_captured_one():
    from neurontools.monitor.collector import reports

    class Still:
        def snapshot(self):
            return machine_at(1)

        def close(self): ...

    class Host(FixedHost):
        def now_ns(self):
            self.now += 0.00047258
            return round(self.now * 1e9)

    first = next(reports(default_config(), Still().snapshot, Host(), clock=lambda: 0.0, sleep=lambda _: None))
    assert without_instance(format_line(first)) == CAPTURED


def test_the_instance_has_the_documents_keys():
    assert list(json.loads(line_of("trn1.2xlarge"))["instance_info"]) == INSTANCE_KEYS


def test_a_line_is_compact():
    line = line_of("trn1.2xlarge", job(tag="two words"))
    assert "\n" not in line
    assert '": ' not in line
    assert ', "' not in line
    assert re.search(r'memory_used_bytes":(\d+)', line)[1] == "1284890624"


def test_maps_are_sorted_as_text_and_structs_keep_their_order():
    entry = json.loads(line_of("trn1.32xlarge", job()))["neuron_runtime_data"][0]
    assert list(entry) == ["pid", "address", "neuron_runtime_tag", "error", "report"]
    assert list(entry["report"]) == [
        "execution_stats",
        "memory_used",
        "neuron_runtime_vcpu_usage",
        "neuroncore_counters",
    ]
    assert list(entry["report"]["neuroncore_counters"]["neuroncores_in_use"])[:4] == ["0", "1", "10", "11"]
    assert all(
        next(iter(group)) == "period" and list(group)[-1] == "error" for group in entry["report"].values()
    )


def test_percentiles_are_sorted_as_text():
    before, after = job(), job(statuses={0: 5}, latencies={20: 5})
    collector = Collector(default_config(), machine_at(1, before), FixedHost())
    report = collector.collect(default_config().periods().keys(), machine_at(2, after))
    stats = json.loads(format_line(report))["neuron_runtime_data"][0]["report"]["execution_stats"]
    assert list(stats["latency_stats"]["total_latency"]) == ["p0", "p1", "p100", "p25", "p50", "p75", "p99"]


def test_without_executions_latencies_are_null():
    assert '"latency_stats":{"total_latency":null,"device_latency":null}' in line_of("trn1.2xlarge", job())


def test_both_names_of_the_flops_are_written():
    core = json.loads(line_of("trn1.2xlarge", job()))["neuron_runtime_data"][0]["report"][
        "neuroncore_counters"
    ]["neuroncores_in_use"]["1"]
    assert core == {"neuroncore_utilization": 0, "effective_flops": 0, "flops": 0}


def test_physical_cores_appear_at_lnc_2_only():
    cores = json.loads(line_of("trn2.48xlarge", job()))["neuron_runtime_data"][0]["report"][
        "neuroncore_counters"
    ]["neuroncores_in_use"]
    assert len(cores) == 64
    assert list(cores["5"]["v3d"]) == ["nc_v3.10", "nc_v3.11"]
    single = line_of("trn2.48xlarge", job(), lnc=1)
    assert "v3d" not in single
    assert '"127":{' in single


def test_nothing_of_the_host_is_null():
    assert '"system_data":null' in format_line(MonitorReport())


def test_whole_percents_have_no_fraction():
    usage = VcpuUsage(1.0, VcpuShares(user=2.5, idle=97.0), ((0, VcpuShares(idle=100.0)),), 12)
    line = format_line(MonitorReport(system=SystemData(vcpu_usage=usage)))
    assert (
        '"vcpu_usage":{"period":1,"average_usage":{"user":2.5,"nice":0,"system":0,"idle":97,"io_wait":0,"irq":0,'
        '"soft_irq":0},"usage_data":{"0":{"user":0,"nice":0,"system":0,"idle":100,"io_wait":0,"irq":0,"soft_irq":0}},'
        '"context_switch_count":12,"error":""}'
    ) in line


def test_a_tag_is_a_text_whatever_is_in_it():
    tag = 'a "quoted" <tag> \n é \udc80 &'
    line = line_of("trn1.2xlarge", job(tag=tag))
    assert line.isprintable()
    assert json.loads(line)["neuron_runtime_data"][0]["neuron_runtime_tag"] == tag
    assert "\\u003ctag\\u003e" in line


@pytest.mark.parametrize("letter", ["\x1b", "\x7f", "\x9b", "\u202e", "\u2067", "\ufeff", "\U000e0001"])
def test_a_tag_cannot_control_a_terminal(letter):
    line = line_of("trn1.2xlarge", job(tag=f"a{letter}b"))
    assert line.isprintable()
    assert json.loads(line)["neuron_runtime_data"][0]["neuron_runtime_tag"] == f"a{letter}b"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (1.0, "1"),
        (-2.0, "-2"),
        (0.00047258, "0.00047258"),
        (0.00001, "0.00001"),
        (0.000001, "0.000001"),
        (0.0000001, "1e-7"),
        (1.5e-10, "1.5e-10"),
        (1e20, "100000000000000000000"),
        (1e21, "1e+21"),
        (1.25e300, "1.25e+300"),
        (98.47, "98.47"),
        (33110204416, "33110204416"),
    ],
)
def test_numbers_are_printed_as_go_does(value, text):
    assert format_number(value) == text


def test_the_report_of_the_captured_line_gives_that_line():
    report = MonitorReport(
        system=SystemData(memory_info=HostMemoryInfo(0.00047258, 33110204416, 1284890624, 0, 0)),
        instance=InstanceInfo(),
        hardware=HardwareInfo("trainium", "v2", "v2", 1, 34359738368, 2, 1, ""),
    )
    assert without_instance(format_line(report)) == CAPTURED
