"""The groups of a process from two states of it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neurontools.machine.instances.catalogue import instance_names, instance_type
from neurontools.monitor.collector import Collector
from neurontools.monitor.config import MetricKey, default_config
from neurontools.monitor.processes import KEYS, percentiles, summaries
from neurontools.monitor.report import ErrorSummary, ExecutionSummary
from neurontools.runtime.status import NrtStatus
from tests.monitor.conftest import MIB, FixedHost, job, machine_at, with_errors

KINDS = [(name, lnc) for name in instance_names() for lnc in instance_type(name).device.lnc_choices]
ALL = default_config().periods().keys()


def report_of(before, after, host=None):
    host = host or FixedHost()
    collector = Collector(default_config(), before, host)
    host.now += (after.taken_ns - before.taken_ns) / 1e9
    return collector.collect(ALL, after)


@pytest.mark.parametrize(("instance", "lnc"), KINDS)
def test_every_core_of_every_instance_type_appears_and_the_busy_one_has_its_share(instance, lnc):
    kind = instance_type(instance)
    last = kind.core_count(lnc) - 1
    begin = machine_at(10, job(cores=(last,), busy_s=1, flops=10**9), instance=instance, lnc=lnc)
    end = machine_at(14, job(cores=(last,), busy_s=3, flops=9 * 10**9), instance=instance, lnc=lnc)
    (entry,) = report_of(begin, end).runtimes
    cores = dict(entry.neuroncore_counters.cores)
    assert list(cores) == list(range(last + 1))
    assert cores[last].utilization_percent == 50
    assert cores[last].flops == 2 * 10**9
    assert entry.neuroncore_counters.period_s == 4
    assert all(counters.utilization_percent == 0 for core, counters in cores.items() if core != last)
    for core, counters in cores.items():
        if lnc == 1:
            assert counters.physical is None
        else:
            assert counters.physical.version == kind.device.core.monitor_version(2)
            assert counters.physical.utilization_percent == tuple(
                (core * 2 + half, counters.utilization_percent) for half in range(2)
            )


@pytest.mark.parametrize(("instance", "lnc"), KINDS)
def test_the_hardware_of_every_instance_type_is_reported(instance, lnc):
    kind = instance_type(instance)
    machine = machine_at(1, instance=instance, lnc=lnc)
    hardware = report_of(machine, machine).hardware
    assert hardware.neuron_device_count == kind.device_count
    assert hardware.neuroncore_per_device_count == kind.cores_per_device(lnc)
    assert hardware.neuron_device_memory_size == kind.device.memory_bytes
    assert hardware.logical_neuroncore_config == lnc
    assert hardware.error == ""


@pytest.mark.parametrize(
    ("instance", "names"),
    [
        ("trn1.2xlarge", ("trainium", "v2", "v2")),
        ("inf2.xlarge", ("inferentia2", "v3", "v2")),
        ("trn2.48xlarge", ("trainium2", "v4", "v3d")),
    ],
)
def test_the_known_names_of_devices_are_the_real_ones(instance, names):
    machine = machine_at(1, instance=instance)
    hardware = report_of(machine, machine).hardware
    assert (
        hardware.neuron_device_type,
        hardware.neuron_device_version,
        hardware.neuroncore_version,
    ) == names


def test_a_device_that_fell_off_the_bus_has_no_cores_and_no_counters():
    from msgspec.structs import replace

    machine = machine_at(1, job(cores=(0, 2)), instance="trn1.32xlarge")
    lost = replace(machine.devices[1], lost=True)
    after = replace(machine, devices=(machine.devices[0], lost, *machine.devices[2:]), taken_ns=2 * 10**9)
    report = report_of(machine, after)
    assert report.hardware.neuron_device_count == 15
    assert {2, 3}.isdisjoint(dict(report.runtimes[0].neuroncore_counters.cores))
    assert 1 not in {device.device_index for device in report.system.hardware_errors.devices}


@pytest.mark.parametrize(
    ("times_s", "process", "percent", "completed"),
    [
        ((10, 12), {"busy_s": 1, "statuses": {0: 7}, "registered_s": 10.5}, 50, 7),
        ((200, 201), {"busy_s": 100, "statuses": {0: 7_000_000}, "registered_s": 1}, 0, 0),
    ],
    ids=["began within the period", "was there before, but not seen"],
)
def test_a_process_counts_from_its_begin_if_that_is_within_the_period(times_s, process, percent, completed):
    before, after = machine_at(times_s[0]), machine_at(times_s[1], job(**process))
    (entry,) = report_of(before, after).runtimes
    assert dict(entry.neuroncore_counters.cores)[0].utilization_percent == percent
    assert entry.execution_stats.executions.completed == completed


def test_a_process_that_ended_is_gone():
    assert report_of(machine_at(1, job()), machine_at(2)).runtimes == ()


def test_another_process_with_the_same_pid_starts_from_zero():
    before = machine_at(10, job(busy_s=9, statuses={0: 500}, latencies={3: 500}))
    again = job(busy_s=0.25, statuses={0: 3}, latencies={4: 3}, start_ticks=77, registered_s=10.2)
    (entry,) = report_of(before, machine_at(11, again)).runtimes
    assert dict(entry.neuroncore_counters.cores)[0].utilization_percent == 25
    assert entry.execution_stats.executions == ExecutionSummary(completed=3)


def test_counters_that_went_backwards_are_never_negative():
    before = machine_at(1, job(busy_s=5, flops=100, statuses={0: 9}, latencies={2: 9}))
    after = machine_at(2, job(busy_s=1, flops=1, statuses={0: 4}, latencies={2: 4}))
    (entry,) = report_of(before, after).runtimes
    assert dict(entry.neuroncore_counters.cores)[0] == dict(entry.neuroncore_counters.cores)[1]
    assert entry.execution_stats.executions == ExecutionSummary()
    assert entry.execution_stats.total_latency is None


def test_two_looks_at_the_same_moment_give_zeros():
    machine = machine_at(3, job(busy_s=2, statuses={0: 5}))
    (entry,) = report_of(machine, machine).runtimes
    assert entry.neuroncore_counters.period_s == 0
    assert entry.execution_stats.executions == ExecutionSummary()


def test_values_that_are_not_fresh_say_so():
    (entry,) = report_of(machine_at(1, job()), machine_at(2, job(stale=True))).runtimes
    assert "last valid values" in entry.error


def test_onlookers_are_not_reported():
    after = machine_at(2, job(uses_device=False, cores=()))
    assert report_of(machine_at(1), after).runtimes == ()


def test_memory_adds_up():
    machine = machine_at(1, job(cores=(1, 3)), instance="trn1.32xlarge")
    (entry,) = report_of(machine, machine).runtimes
    used = entry.memory_used
    assert used.host_bytes == used.host.total_bytes == (2 + 100 + 2) * MIB
    assert used.host.dma_buffers == 2 * MIB
    assert used.device_bytes == sum(memory.total_bytes for _, memory in used.cores) == 2 * 12 * MIB
    assert [core for core, _ in used.cores] == [1, 3]
    first, second = used.models
    assert (first.model_id, first.uuid, first.is_running) == (10001, f"{0:032x}", True)
    (part,) = second.subgraphs
    assert (part.name, part.device_index, part.core_index) == ("sg_00", 1, 1)
    assert part.device_bytes == part.device.total_bytes == 9 * MIB


def test_a_model_on_several_cores_has_a_subgraph_on_each():
    from msgspec.structs import replace

    whole = job(cores=(0, 1))
    parts = tuple(replace(model, model_id=10001) for model in whole.models)
    machine = machine_at(1, replace(whole, models=parts))
    (model,) = report_of(machine, machine).runtimes[0].memory_used.models
    assert [(part.name, part.core_index) for part in model.subgraphs] == [("sg_00", 0), ("sg_01", 1)]


def test_latencies_lie_where_the_histogram_says():
    before = job(statuses={0: 10}, latencies={2: 10})
    after = job(statuses={0: 110}, latencies={2: 10, 20: 99, 30: 1})
    (entry,) = report_of(machine_at(1, before), machine_at(2, after)).runtimes
    latency = entry.execution_stats.total_latency
    assert latency == entry.execution_stats.device_latency
    assert latency.p0 == pytest.approx(2**10 * 1e-6)
    assert 2**10 * 1e-6 < latency.p50 < 2**10.5 * 1e-6
    assert latency.p100 == pytest.approx(2**15.5 * 1e-6)


def test_nothing_ran_no_latency():
    assert percentiles((0,) * 64) is None


@settings(max_examples=60)
@given(st.lists(st.integers(0, 1000), min_size=64, max_size=64).filter(any))
def test_percentiles_never_fall_and_stay_inside_the_used_buckets(counts):
    found = percentiles(counts)
    values = [found.p0, found.p1, found.p25, found.p50, found.p75, found.p99, found.p100]
    assert values == sorted(values)
    used = [index for index, count in enumerate(counts) if count]
    assert values[0] >= 2 ** (used[0] / 2) * 1e-6 - 1e-9
    assert values[-1] <= 2 ** ((used[-1] + 1) / 2) * 1e-6 + 1e-9


def test_every_status_counts_once_and_only_success_is_not_an_error():
    assert set(KEYS) == set(NrtStatus)
    for status in NrtStatus:
        errors, executions = summaries([(int(status), 3)])
        assert sum(getattr(executions, name) for name in ExecutionSummary.__slots__) == 3
        expected = 0 if status is NrtStatus.NRT_SUCCESS else 3
        assert sum(getattr(errors, name) for name in ErrorSummary.__slots__) == expected


def test_an_unknown_status_is_a_generic_error():
    assert summaries([(999, 2)]) == (ErrorSummary(generic=2), ExecutionSummary(completed_with_err=2))


def test_errors_of_a_device_are_totals_under_the_documents_names():
    before = with_errors(machine_at(1), 0, mem_ecc_corrected=2)
    after = with_errors(machine_at(2), 0, mem_ecc_corrected=5, sram_ecc_uncorrected=1)
    (device,) = report_of(before, after).system.hardware_errors.devices
    assert (device.mem_ecc_corrected, device.sram_ecc_uncorrected) == (5, 1)
    assert (device.mem_ecc_uncorrected, device.sram_ecc_corrected) == (0, 0)


def test_vcpus_of_a_process_are_percent_of_all_vcpus(fixed_host):
    from neurontools.machine.host import CpuTimes

    process = job()
    key = (process.pid, process.start_ticks)
    fixed_host.now = 1.0
    fixed_host.times[key] = CpuTimes(1.0, 0.5)
    collector = Collector(default_config(), machine_at(1, process), fixed_host)
    fixed_host.now = 2.0
    fixed_host.times[key] = CpuTimes(1.5, 0.6)
    usage = collector.collect(ALL, machine_at(2, process)).runtimes[0].vcpu_usage
    assert (usage.user_percent, usage.system_percent, usage.error) == (25.0, 5.0, "")


def test_a_pid_that_cannot_be_seen_has_the_real_error_and_zeros():
    machine = machine_at(1, job(pid=77))
    usage = report_of(machine, machine_at(2, job(pid=77))).runtimes[0].vcpu_usage
    assert usage.error == "open /proc/77/stat: no such file or directory"
    assert (usage.user_percent, usage.system_percent) == (0, 0)


@pytest.mark.parametrize("origin", ["synthetic", "recorded"])
def test_vcpus_of_a_made_up_process_are_its_own_account(origin):
    # a trn1.2xlarge has 8 vCPUs
    before = machine_at(1, job(origin=origin, cpu_user_ns=0, cpu_system_ns=0))
    after = machine_at(2, job(origin=origin, cpu_user_ns=2 * 10**9, cpu_system_ns=10**9))
    usage = report_of(before, after).runtimes[0].vcpu_usage
    assert (usage.user_percent, usage.system_percent, usage.error) == (25.0, 12.5, "")


def test_vcpus_of_the_host():
    usage = report_of(machine_at(0), machine_at(4)).system.vcpu_usage
    assert usage.period_s == 4
    assert (usage.average.user, usage.average.system, usage.average.idle) == (25, 12.5, 62.5)
    assert dict(usage.vcpus)[1].user == 50
    assert usage.context_switches == 400


def test_a_key_that_is_not_due_is_left_out_and_covers_longer_next_time():
    from neurontools.monitor.report import RuntimeGroup

    counters = MetricKey(0, RuntimeGroup.NEURONCORE_COUNTERS)
    memory = MetricKey(0, RuntimeGroup.MEMORY_USED)
    collector = Collector(default_config(), machine_at(0, job()), FixedHost())
    first = collector.collect({memory}, machine_at(1, job())).runtimes[0]
    assert first.neuroncore_counters is None
    assert first.memory_used.period_s == 1
    second = collector.collect({memory, counters}, machine_at(2, job())).runtimes[0]
    assert (second.memory_used.period_s, second.neuroncore_counters.period_s) == (1, 2)
