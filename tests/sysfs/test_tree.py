"""The driver's tree: golden listings, what the numbers mean, and what differs between drivers."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from neurontools.sysfs.aggregates import CounterBaseline, PowerMeter, core_sums
from neurontools.sysfs.layout import driver_release
from neurontools.sysfs.tree import CLASS, DEVICES, TreeFile, TreeLink, build_tree
from tests.sysfs.machines import STARTED_S, busy, job, listing, machine, tree_of, ultraserver

CORE = f"{DEVICES}/neuron0/neuron_core0"
OTHER_INFO = f"{CORE}/stats/other_info"


def text(entries, path):
    entry = entries[path]
    assert isinstance(entry, TreeFile)
    return entry.text


@pytest.mark.parametrize(
    ("name", "lnc"),
    [("trn1.2xlarge", None), ("inf2.xlarge", None), ("trn2.48xlarge", 1), ("trn2.48xlarge", 2)],
)
def test_the_tree_of_a_busy_machine_is_unchanged(golden, name, lnc):
    whole = tree_of(busy(name, lnc))
    first = {
        path: entry
        for path, entry in whole.items()
        if "/neuron0/" in path or not path.startswith(f"{DEVICES}/neuron")
    }
    cores = ("neuron_core0/", "neuron_core1/")
    shown = {
        path: entry
        for path, entry in first.items()
        if "neuron_core" not in path or any(core in path for core in cores)
    }
    made = listing(shown)
    assert made == golden(f"{name}.lnc{lnc or 1}.2.32.txt", made)


@pytest.mark.parametrize("lnc", [1, 2])
def test_every_core_and_every_device_has_the_same_files(lnc):
    whole = tree_of(busy("trn2.48xlarge", lnc))
    names = [
        frozenset(path.removeprefix(prefix) for path in whole if path.startswith(prefix))
        for device in range(16)
        for core in range(8)
        for prefix in (f"{DEVICES}/neuron{device}/neuron_core{core}/",)
    ]
    assert len(set(names)) == 1
    assert len(names[0]) == 101
    assert not any("neuron_core8" in path or "neuron16" in path for path in whole)


def test_the_old_driver_has_other_names_and_modes(golden):
    driver = driver_release("2.28")
    whole = tree_of(busy("trn1.2xlarge"), driver)
    made = listing(whole)
    assert made == golden("trn1.2xlarge.2.28.txt", made)
    assert whole[f"{DEVICES}/neuron0/core_count"] == TreeFile("2", 0o400)
    assert f"{CORE}/stats/status/execute_completed_with_num_error/total" in whole
    assert f"{DEVICES}/neuron0/stats/hardware/mem_ecc_corrected" not in whole
    assert not any("health_status" in path or "pe_cntrs" in path for path in whole)


@pytest.mark.parametrize("node", range(4))
def test_an_ultraserver_has_files_beside_the_devices(golden, node):
    whole = tree_of(ultraserver(node, (1, 2)))
    made = listing({path: entry for path, entry in whole.items() if path.startswith(CLASS)})
    assert made == golden(f"trn2u.48xlarge.node{node}.2.32.txt", made)


def test_links_lead_to_the_devices_and_back():
    whole = tree_of(machine("inf2.24xlarge"))
    assert whole[f"{CLASS}/neuron5"] == TreeLink("../../devices/virtual/neuron_device/neuron5")
    assert whole[f"{DEVICES}/neuron5/subsystem"] == TreeLink("../../../../class/neuron_device")
    assert text(whole, f"{CLASS}/neuron5".replace(CLASS, DEVICES) + "/connected_devices") == "4\n"


def test_a_logical_core_is_divided_among_its_physical_ones():
    whole = tree_of(busy("trn2.48xlarge", 2))
    flops = [
        int(text(whole, f"{DEVICES}/neuron0/neuron_core{core}/stats/other_info/flop_count/total"))
        for core in range(4)
    ]
    assert flops == [500_251, 500_250, 500_001, 500_000]
    executions = [
        int(text(whole, f"{DEVICES}/neuron0/neuron_core{core}/stats/other_info/inference_count/total"))
        for core in range(4)
    ]
    assert executions == [15, 15, 10, 10]


def test_a_lost_device_is_not_there():
    idle = machine("trn1.32xlarge")
    devices = tuple(replace(device, lost=device.index == 3) for device in idle.devices)
    whole = tree_of(replace(idle, devices=devices))
    assert not any("neuron3/" in path or path.endswith("neuron3") for path in whole)
    assert f"{CLASS}/neuron4" in whole


def test_host_memory_goes_to_the_devices_of_a_process():
    idle = machine("trn1.32xlarge")
    whole = tree_of(replace(idle, processes=(job((0, 2, 3)),)))
    path = "stats/memory_usage/host_mem"
    assert text(whole, f"{DEVICES}/neuron0/{path}/tensors/total") == "500\n"
    assert text(whole, f"{DEVICES}/neuron1/{path}/application_memory/total") == "1000\n"
    assert text(whole, f"{DEVICES}/neuron1/{path}/dma_buffers/total") == "132\n"
    assert text(whole, f"{DEVICES}/neuron0/neuron_core0/{path}/total") == "66\n"


def test_counters_count_from_their_reset():
    before = busy("trn1.2xlarge")
    baseline = CounterBaseline(before.instance_id, before.lnc, tuple(core_sums(before).items()))

    def counts(snapshot):
        shown = build_tree(snapshot, _instance(snapshot), driver_release("2.32"), baseline=baseline)
        names = ("inference_count/total", "inference_count/present", "flop_count/total")
        return [text(shown, f"{OTHER_INFO}/{name}") for name in names]

    assert counts(before) == ["0\n", "0\n", "0\n"]
    assert counts(replace(before, processes=(job((0, 1), scale=2),))) == ["10\n", "10\n", "1000001\n"]
    assert counts(replace(before, processes=(job((0,), scale=1),), core_totals=()))[0] == "10\n"  # began anew
    assert counts(replace(before, instance_id="i-0"))[0] == "15\n"


def test_memory_in_use_is_not_a_counter():
    before = busy("trn1.2xlarge")
    baseline = CounterBaseline(before.instance_id, before.lnc, tuple(core_sums(before).items()))
    shown = build_tree(before, _instance(before), driver_release("2.32"), baseline=baseline)
    assert text(shown, f"{CORE}/stats/memory_usage/device_mem/tensors/total") == "505\n"


def test_failures_count_from_their_reset():
    before = busy("trn1.2xlarge")
    baseline = CounterBaseline(before.instance_id, before.lnc, tuple(core_sums(before).items()))
    more = replace(before, processes=(job((0, 1), scale=2),))
    shown = build_tree(more, _instance(more), driver_release("2.32"), baseline=baseline)
    assert text(shown, f"{CORE}/stats/status/timeout/total") == "1\n"
    assert text(shown, f"{CORE}/stats/status/success/total") == "7\n"


def test_power_has_no_data_then_a_line_each_minute():
    meter = PowerMeter()
    before = machine("trn1.2xlarge", taken_ns=0, taken_unix_s=STARTED_S)
    meter.update(before)
    assert meter.line(0, STARTED_S) == f"POWER_STATUS_NO_DATA,{int(STARTED_S)},0.00,0.00,0.00\n"
    meter.update(_at(before, 1, busy_s=0.5))
    assert meter.line(0, 0) == f"POWER_STATUS_VALID,{int(STARTED_S) + 1},25.00,25.00,25.00\n"
    meter.update(_at(before, 2, busy_s=0.5))
    assert meter.line(0, 0).startswith(f"POWER_STATUS_VALID,{int(STARTED_S) + 1},")
    meter.update(_at(before, 62, busy_s=60.5))
    assert meter.line(0, 0) == f"POWER_STATUS_VALID,{int(STARTED_S) + 62},0.00,50.00,25.00\n"


def test_the_heartbeat_counts_minutes_on_trainium2_only():
    heartbeat = f"{DEVICES}/neuron0/stats/hardware/health_status/healthcheck_heartbeat"
    assert text(tree_of(machine("trn2.3xlarge", taken_unix_s=STARTED_S + 150)), heartbeat) == "2\n"
    assert heartbeat not in tree_of(machine("trn1.2xlarge"))


def _instance(snapshot):
    from neurontools.machine.instances.catalogue import instance_type

    return instance_type(snapshot.instance_type)


def _at(snapshot, second, busy_s):
    process = job((0,))
    use = replace(process.cores[0], busy_ns=round(busy_s * 1e9))
    return replace(
        snapshot,
        taken_ns=second * 10**9,
        taken_unix_s=STARTED_S + second,
        processes=(replace(process, cores=(use,)),),
    )
