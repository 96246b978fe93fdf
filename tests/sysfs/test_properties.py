"""Whatever a machine does, every value file parses, and the numbers add up to what was done."""

from __future__ import annotations

import re

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from neurontools.machine.snapshot import CoreTotals, CoreUse, MemoryUse
from neurontools.sysfs.aggregates import ON_DEVICE
from neurontools.sysfs.tree import DEVICES, TreeFile
from tests.sysfs.machines import job, machine, tree_of

AMOUNT = st.integers(0, 2**40)
STATUS = st.sampled_from([1, 2, 4, 5, 6, 7, 9, 101, 1002, 1003, 1004, 1005, 1006, 1100, 1200, 1203, 1206])
TEXTS = {
    "arch_type": r"N[CD]v\d\n",
    "device_name": r"\w+\n",
    "instance_type": r"\w+\n",
    "serial_number": r"[0-9a-f]{16}\n",
    "notify_delay": r"(-1|0)\n",
    "connected_devices": r"(\d+(, \d+)*)?\n",
    "core_count": r"\d+",
    "reset": r"\d+\n",
    "utilization": r"POWER_STATUS_\w+,\d+,\d+\.\d\d,\d+\.\d\d,\d+\.\d\d\n",
    "utilization_raw": r"POWER_STATUS_\w+,\d+,\d+\.\d\d,\d+\.\d\d,\d+\.\d\d\n",
    "unhealthy_components": r"(\w+(,\w+)*)?\n",
    "uevent": r"MAJOR=\d+\nMINOR=\d+\nDEVNAME=neuron\d+\n",
    "dev": r"\d+:\d+\n",
    "pe_cntrs": r"xrow_grp,mm_active,wl_active,idle\n(\d,\d+,\d+,\d+\n){4}",
}


@st.composite
def works(draw, core):
    """Counters of a core: executions, failures among them, FLOPs, time, models."""
    failures = draw(st.dictionaries(STATUS, st.integers(1, 1000), max_size=4))
    executions = sum(failures.values()) + draw(st.integers(0, 10**6))
    return {
        "core": core,
        "busy_ns": draw(AMOUNT),
        "executions": executions,
        "flops": draw(AMOUNT),
        "model_loads": draw(st.integers(0, 50)),
        "failures": tuple(sorted(failures.items())),
        "gpsimd_ns": 0,
    }


@st.composite
def machines(draw):
    name, lnc = draw(
        st.sampled_from([("trn1.2xlarge", 1), ("inf2.24xlarge", 1), ("trn2.3xlarge", 1), ("trn2.3xlarge", 2)])
    )
    idle = machine(name, lnc)
    cores = [core for device in idle.devices for core in device.core_ids]
    chosen = draw(st.sets(st.sampled_from(cores), max_size=4))
    memory = st.builds(MemoryUse, **dict.fromkeys(map(str, ON_DEVICE), AMOUNT), dma_buffers=AMOUNT)
    uses = [CoreUse(**draw(works(core)), executing=False, memory=draw(memory)) for core in sorted(chosen)]
    processes = tuple(replace(job(), pid=use.core + 1, cores=(use,)) for use in uses)
    gone = draw(st.sets(st.sampled_from(cores), max_size=4))
    totals = tuple(CoreTotals(**draw(works(core))) for core in sorted(gone))
    return replace(idle, processes=processes, core_totals=totals)


@settings(max_examples=40)
@given(machines())
def test_every_file_parses(snapshot):
    for path, entry in tree_of(snapshot).items():
        if not isinstance(entry, TreeFile) or not path.startswith(f"{DEVICES}/") or "/power/" in path:
            continue
        name = path.rpartition("/")[2]
        assert re.fullmatch(TEXTS.get(name, r"\d+\n"), entry.text), path


@settings(max_examples=40)
@given(machines())
def test_the_numbers_are_those_of_the_living_and_the_gone(snapshot):
    whole = tree_of(snapshot)

    def number(path):
        return int(whole[path].text)

    for device in snapshot.devices:
        for place, core in enumerate(device.core_ids):
            parts = [
                f"{DEVICES}/neuron{device.index}/neuron_core{place * snapshot.lnc + part}/stats"
                for part in range(snapshot.lnc)
            ]
            live = [use for process in snapshot.processes for use in process.cores if use.core == core]
            every = [*live, *(totals for totals in snapshot.core_totals if totals.core == core)]
            for part in parts:
                statuses = [
                    path for path in whole if path.startswith(f"{part}/status/") and path.endswith("total")
                ]
                assert sum(map(number, statuses)) == sum(each.executions for each in every)
                assert number(f"{part}/other_info/inference_count/total") == sum(e.executions for e in every)
                assert number(f"{part}/other_info/nc_time_in_use/present") == sum(e.busy_ns for e in every)
            assert sum(number(f"{part}/other_info/flop_count/total") for part in parts) == sum(
                each.flops for each in every
            )
            on_device = sum(getattr(use.memory, category) for use in live for category in map(str, ON_DEVICE))
            memory = [f"{part}/memory_usage/device_mem" for part in parts]
            assert sum(number(f"{directory}/total") for directory in memory) == on_device
            assert sum(number(f"{path}/{c}/present") for path in memory for c in ON_DEVICE) == on_device
