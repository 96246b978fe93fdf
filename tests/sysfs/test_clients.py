"""Programs that read the driver's files, each in the way that it does on a mirror."""

from __future__ import annotations

import os
import re

import pytest
from msgspec.structs import replace

from neurontools.sysfs.mirror import SysfsMirror
from tests.sysfs.machines import busy, job, machine

CLASS = "sys/class/neuron_device"
VIRTUAL = "sys/devices/virtual/neuron_device"


@pytest.fixture
def mirror(root):
    """SysfsMirror a machine and return where its files are."""

    def make(snapshot):
        with SysfsMirror(str(root), "default") as kept:
            kept.update(snapshot)
        return root

    return make


def slurm(root):
    """AutoDetect=nrt: devices by number until one is missing; name, and the line of links as it is."""
    found = []
    while (root / VIRTUAL / f"neuron{len(found)}").is_dir():
        directory = root / VIRTUAL / f"neuron{len(found)}"
        with open(directory / "info/architecture/device_name") as file:
            name = file.readline().rstrip("\n")
        with open(directory / "connected_devices") as file:
            links = file.readline().rstrip("\n")
        found.append((name, links))
    return found


def optimum_cores(root):
    """Entries of the class directory, two cores each."""
    return 2 * len(os.listdir(root / CLASS))


def optimum_memory(root, category):
    """Bytes of a category on every core: total, present, peak."""
    return [
        tuple(int((directory / name).read_text()) for name in ("total", "present", "peak"))
        for directory in sorted(
            (root / VIRTUAL).glob(f"neuron*/neuron_core*/stats/memory_usage/device_mem/{category}")
        )
    ]


def all_smi(root):
    """Serial, architecture, power and what is present in memory, by device."""
    devices = {}
    for directory in sorted((root / CLASS).iterdir()):
        if not re.fullmatch(r"neuron\d+", directory.name):
            continue
        status, _, low, high, mean = (directory / "stats/power/utilization").read_text().strip().split(",")
        devices[directory.name] = (
            int((directory / "info/serial_number").read_text(), 16),
            (directory / "info/architecture/arch_type").read_text().strip(),
            status.startswith("POWER_STATUS_")
            and all(0 <= float(value) <= 100 for value in (low, high, mean)),
            sum(
                int(path.read_text())
                for path in directory.glob("neuron_core*/stats/memory_usage/device_mem/present")
            ),
        )
    return devices


def backend_ai(root):
    """Devices with their cores, from the real directory."""
    return {
        int(path.name.removeprefix("neuron")): int((path / "core_count").read_text())
        for path in (root / VIRTUAL).iterdir()
    }


def test_slurm(mirror):
    found = slurm(mirror(machine("trn1.32xlarge")))
    assert len(found) == 16
    assert found[0] == ("Trainium1", "12, 3, 4, 1")
    assert slurm(mirror(machine("trn1.2xlarge"))) == [("Trainium1", "")]


def test_optimum_neuron(mirror):
    root = mirror(busy("trn1.32xlarge"))
    assert optimum_cores(root) == 32
    assert (root / "sys/devices/virtual/dmi/id/product_name").read_text().strip() == "trn1.32xlarge"
    majors = dict(
        reversed(line.split())
        for line in (root / "proc/devices").read_text().split("\n\n")[0].splitlines()[1:]
    )
    major, minor = (root / VIRTUAL / "neuron7/dev").read_text().strip().split(":")
    assert (majors["neuron"], minor) == (major, "7")
    assert optimum_memory(root, "tensors")[:3] == [(505, 505, 505), (505, 505, 505), (0, 0, 0)]


def test_all_smi(mirror):
    devices = all_smi(mirror(replace(machine("trn2.48xlarge"), processes=(job((0, 5)),))))
    assert len(devices) == 16
    assert len({serial for serial, *_ in devices.values()}) == 16
    assert devices["neuron0"][1:] == ("NDv3", True, 1515)
    assert devices["neuron1"][1:] == ("NDv3", True, 1515)
    assert devices["neuron2"][1:] == ("NDv3", True, 0)


def test_backend_ai(mirror):
    assert backend_ai(mirror(machine("trn2.48xlarge"))) == dict.fromkeys(range(16), 8)


def test_a_glob_of_device_nodes(mirror):
    root = mirror(machine("inf2.48xlarge"))
    assert len(list((root / "dev").glob("neuron*"))) == 12
