"""What our own neuron-monitor writes about a simulated machine is read back as that machine."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest

from neurontools.machine import launch
from neurontools.machine.client import Client
from neurontools.machine.machine_config import StartOptions
from neurontools.machine.machine_view import machine_view
from neurontools.machine.pages.page import PageWriter
from neurontools.machine.snapshot import MemoryCategory
from neurontools.sources import open_source

MONITOR = str(Path(sys.executable).parent / "neuron-monitor")


@pytest.fixture
def worker():
    """This process as a job on two cores of device 1 of a Trn2 machine."""
    launch.start(StartOptions("default", "trn2.48xlarge"))
    with Client.connect() as client:
        place = client.register("trainer", "python train.py", cores=(4, 5), runtime_version="2.34.10")
        page = PageWriter(place.page_fd)
        yield page
        page.close()
        client.unregister()


@pytest.fixture
def recorded(home, worker):
    """Lines of neuron-monitor while the job works, and what the machine was at their end."""
    worker.set_memory(0, MemoryCategory.TENSORS, 3 << 30)
    worker.set_memory(1, MemoryCategory.MODEL_CODE, 5 << 20)
    worker.set_host_memory(MemoryCategory.APPLICATION_MEMORY, 7 << 20)
    (home / "config").write_text(
        json.dumps(
            {
                "period": "300ms",
                "neuron_runtimes": [
                    {
                        "tag_filter": ".*",
                        "metrics": [
                            {"type": "neuroncore_counters"},
                            {"type": "memory_used"},
                            {"type": "execution_stats"},
                        ],
                    }
                ],
            }
        )
    )
    with subprocess.Popen([MONITOR, "-c", "config"], stdout=subprocess.PIPE) as monitor:
        lines = []
        assert monitor.stdout is not None
        for line in itertools.islice(monitor.stdout, 4):
            lines.append(line)
            worker.begin(0)
            worker.end(0, 0, 100_000_000, 10**9)
            worker.begin(1)
            worker.end(1, 1003, 20_000_000, 0)
        monitor.terminate()
    (home / "run.jsonl").write_bytes(b"".join(lines))
    with Client.connect() as client:
        return open_source("run.jsonl"), client.snapshot()


def test_a_recording_of_a_machine_is_that_machine(recorded):
    source, machine = recorded
    snapshots = list(source.snapshots())
    last = snapshots[-1]
    for name in ("instance_type", "instance_id", "lnc", "lnc_applies", "neuroncore_version"):
        assert getattr(last, name) == getattr(machine, name)
    assert [(d.index, d.bdf, d.connected_to, d.core_ids) for d in last.devices] == [
        (d.index, d.bdf, d.connected_to, d.core_ids) for d in machine.devices
    ]
    (process,) = last.processes
    (real,) = (each for each in machine.processes if each.uses_device)
    assert (process.pid, process.tag) == (real.pid, "trainer")
    assert [(use.core, use.memory) for use in process.cores] == [(use.core, use.memory) for use in real.cores]
    assert process.host_memory == real.host_memory
    assert dict(process.status_counts) == {0: 3, 1003: 3}
    view = machine_view(snapshots[0], last)
    rates = {core.core: core.utilization for device in view.devices for core in device.cores}
    assert {core for core, rate in rates.items() if rate} == {4, 5}
    wall_s = (last.taken_ns - snapshots[0].taken_ns) / 1e9
    assert rates[4] == pytest.approx(0.3 / wall_s, rel=0.02)
    assert view.total_flops_s == pytest.approx(3e9 / wall_s, rel=0.02)
