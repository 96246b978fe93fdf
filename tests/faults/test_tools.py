"""What neuron-monitor and the sysfs tree tell of faults that struck a real process."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from neurontools.machine.faults.kinds import ECC, KINDS, EccType, FaultKind, Reach
from neurontools.machine.instances.catalogue import instance_type
from neurontools.sysfs.layout import driver_release
from neurontools.sysfs.tree import TreeFile, build_tree
from tests.faults.conftest import EXECUTE
from tests.monitor.conftest import EVERYTHING, program

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from neurontools.machine.client import Client
    from tests.runtime.conftest import Job

__all__ = ["program"]

FAILING = [
    kind
    for kind, facts in KINDS.items()
    if facts.reach is Reach.EXECUTION and facts.status and kind is not FaultKind.HANG
]
ERRORS = {"generic": 1, "numerical": 1, "transient": 1, "model": 2, "runtime": 2, "hardware": 3}
OUTCOMES = {
    "completed": 1,
    "completed_with_err": 6,
    "completed_with_num_err": 1,
    "timed_out": 1,
    "incorrect_input": 1,
    "failed_to_queue": 1,
}


@pytest.fixture
def struck(client: Client, victim: Callable[..., Job]) -> Job:
    """A job that every kind of failing execution hit once, and a device for each type of memory errors."""
    job = victim()
    for kind in FAILING:
        client.inject(kind, core=6, count=1)
    for number, ecc in enumerate(EccType):
        client.inject("ecc", device=8 + number, ecc=ecc, amount=number + 1)
    return job


def test_neuron_monitor_counts_each_under_its_key(
    struck: Job, client: Client, program: Any, tmp_path: Path
) -> None:
    config = tmp_path / "monitor.json"
    config.write_text(json.dumps({"period": "100ms", **EVERYTHING}))
    lines = program("neuron-monitor", "-c", str(config))
    lines.report()
    for _ in range(len(FAILING) + 1):
        struck.try_to(EXECUTE)
    errors: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()
    for _ in range(200):
        report = lines.report()
        (entry,) = report["neuron_runtime_data"]
        stats = entry["report"]["execution_stats"]
        errors.update(stats["error_summary"])
        outcomes.update(stats["execution_summary"])
        if outcomes.total() >= sum(OUTCOMES.values()):
            break
    assert +errors == ERRORS
    assert +outcomes == OUTCOMES
    devices = report["system_data"]["neuron_hw_counters"]["neuron_devices"]
    shown = {device.pop("neuron_device_index"): +Counter(device) for device in devices}
    assert {device: counts for device, counts in shown.items() if counts} == {
        8: {"mem_ecc_corrected": 1},
        9: {"mem_ecc_uncorrected": 2},
        11: {"sram_ecc_corrected": 4},
        12: {"sram_ecc_uncorrected": 5},
    }


def test_the_sysfs_tree_counts_each_under_its_name(struck: Job, client: Client) -> None:
    for _ in range(len(FAILING) + 1):
        struck.try_to(EXECUTE)
    driver = driver_release("2.32")
    entries = build_tree(client.snapshot(), instance_type("trn1.32xlarge"), driver)

    def number(path: str) -> int:
        entry = entries[f"sys/devices/virtual/neuron_device/{path}"]
        assert isinstance(entry, TreeFile)
        return int(entry.text)

    names = Counter(dict(driver.status_of).get(KINDS[kind].status, "generic_error") for kind in FAILING)
    shown = {name: number(f"neuron3/neuron_core0/stats/status/{name}/total") for name in driver.statuses}
    assert {name: count for name, count in shown.items() if count} == {**names, "success": 1}
    for device, ecc in enumerate(EccType, 8):
        assert number(f"neuron{device}/stats/hardware/{ECC[ecc].counter}") == device - 7


def test_a_lost_device_is_gone_from_both(client: Client, program: Any) -> None:
    client.inject("device-lost", device=3)
    client.inject("link-down", device=4, to=5)
    report = program("neuron-monitor").report()
    assert report["neuron_hardware_info"]["neuron_device_count"] == 15
    entries = build_tree(client.snapshot(), instance_type("trn1.32xlarge"), driver_release("2.32"))
    names = {path.split("/")[4] for path in entries if path.startswith("sys/devices/virtual/neuron_device/")}
    assert names == {f"neuron{device}" for device in range(16) if device != 3}
    neighbours = entries["sys/devices/virtual/neuron_device/neuron4/connected_devices"]
    assert isinstance(neighbours, TreeFile)
    assert neighbours.text == "0, 7, 8\n"


def test_the_driver_calls_a_broken_device_unhealthy_until_it_is_reset(client: Client) -> None:
    def unhealthy() -> str:
        entries = build_tree(client.snapshot(), instance_type("trn1.32xlarge"), driver_release("2.32"))
        path = "neuron8/stats/hardware/health_status/unhealthy_components"
        entry = entries[f"sys/devices/virtual/neuron_device/{path}"]
        assert isinstance(entry, TreeFile)
        return entry.text

    assert unhealthy() == "\n"
    client.inject("ecc", device=8)
    client.inject("ecc", device=8, ecc="sram-uncorrected")
    client.inject("link-down", device=8, to=4)
    assert unhealthy() == "hbm,sram,link_intraserver\n"
    client.reset_device(8)
    assert unhealthy() == "link_intraserver\n"
