"""Every number of the reference (a copy of it lies beside this file) is the catalogue's."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from neurontools.machine.instances.catalogue import instance_names, instance_type

REFERENCE = yaml.safe_load((Path(__file__).parent / "reference.yaml").read_text())
INSTANCES = REFERENCE["instances"]
GIB = 2**30
RATE_UNITS = {"GiB/s": GIB, "TB/s": 1e12}
ENGINE_RATES = {"vector_fp32_tflops": "vector_flops_s", "scalar_fp32_tflops": "scalar_flops_s"}


def device_of(name):
    """The device type with that name: that of any instance which has it."""
    return next(found.device for found in map(instance_type, instance_names()) if found.device.name == name)


def core_of(version):
    """The core type of that version, through a device that has it."""
    device = next(name for name, facts in REFERENCE["devices"].items() if facts["core_version"] == version)
    return device_of(device).core


@pytest.mark.parametrize("version", REFERENCE["core_versions"])
def test_a_core_has_the_numbers_of_the_reference(version):
    facts, core = REFERENCE["core_versions"][version], core_of(version)
    assert core.name == facts["name"]
    clocks = dict(core.clock_hz)
    for engine, ghz in facts["clocks_ghz"].items():
        assert ghz is None or clocks[engine] == pytest.approx(ghz * 1e9)
    rates = dict(core.tensor_tflops)
    for dtype, tflops in facts["tflops"].items():
        if dtype != "sparse_max":
            assert rates[dtype.removesuffix("_tops")] == tflops
    for key, attribute in ENGINE_RATES.items():
        if key in facts:
            assert getattr(core, attribute) == pytest.approx(facts[key] * 1e12)
    assert facts["sbuf_mib"] in {None, core.sbuf_bytes >> 20}
    assert facts["psum_mib"] in {None, core.psum_bytes >> 20}


@pytest.mark.parametrize("version", REFERENCE["core_versions"])
def test_the_gpsimd_of_a_core_has_the_numbers_of_the_reference(version):
    gpsimd, core = REFERENCE["core_versions"][version]["gpsimd"], core_of(version)
    if gpsimd is None:
        assert (core.gpsimd_processors, core.gpsimd_tcm_bytes) == (0, 0)
    else:
        assert core.gpsimd_processors == gpsimd["processors"]
        assert gpsimd["tcm_kib_per_processor"] in {None, core.gpsimd_tcm_bytes >> 10}


@pytest.mark.parametrize("version", REFERENCE["core_versions"])
def test_a_core_has_the_monitor_names_of_the_reference(version):
    names, core = REFERENCE["core_versions"][version]["monitor_neuroncore_version"], core_of(version)
    by_lnc = names if isinstance(names, dict) else {"lnc1": names}
    for lnc, name in by_lnc.items():
        assert name in {None, core.monitor_version(int(lnc.removeprefix("lnc")))}


@pytest.mark.parametrize("name", REFERENCE["devices"])
def test_a_device_has_the_numbers_of_the_reference(name):
    facts, device = REFERENCE["devices"][name], device_of(name)
    assert device.core is core_of(facts["core_version"])
    assert device.physical_cores == facts["physical_cores"]
    assert device.memory_bytes == facts["memory_gib"] * GIB
    assert device.memory_bandwidth_bytes_s == pytest.approx(rate(facts["memory_bw"]))
    assert device.dma_engines == facts["dma_engines"]
    assert device.dma_engines == (
        facts["physical_cores"] * REFERENCE["core_versions"][facts["core_version"]]["dma_engines_per_core"]
    )
    if "dma_bw" in facts:
        assert device.dma_bandwidth_bytes_s == pytest.approx(rate(facts["dma_bw"]))
    assert device.collective_cores == facts["cc_cores"]
    assert dict(device.tensor_tflops) == {
        dtype.removesuffix("_tops"): tflops for dtype, tflops in facts["tflops"].items()
    }
    if "sbuf_total_mib" in facts:
        assert device.core.sbuf_bytes * device.physical_cores == facts["sbuf_total_mib"] << 20


@pytest.mark.parametrize("name", REFERENCE["devices"])
def test_a_device_has_the_names_and_configurations_of_the_reference(name):
    facts, device = REFERENCE["devices"][name], device_of(name)
    assert device.lnc_choices == tuple(facts["lnc"])
    assert device.lnc_default == facts.get("lnc_default", 1)
    for lnc, cores in facts.get("logical_cores", {}).items():
        assert device.physical_cores // lnc == cores
    assert facts["monitor"]["neuron_device_type"] in {None, device.device_type}
    assert facts["monitor"]["neuron_device_version"] in {None, device.device_version}
    sysfs = facts["sysfs"]
    assert (device.sysfs.device_name, device.sysfs.instance_type) == (
        sysfs["device_name"],
        sysfs["instance_type"],
    )
    assert (device.sysfs.device_arch, device.sysfs.core_arch) == (
        sysfs["nd_arch_type"],
        sysfs["nc_arch_type"],
    )
    assert device.pci_ids == tuple(facts["pci_ids"] or ())


@pytest.mark.parametrize("name", INSTANCES)
def test_an_instance_has_the_sizes_of_the_reference(name):
    facts, found = INSTANCES[name], instance_type(name)
    assert found.device.name == facts["device"]
    assert found.device_count == facts["devices"]
    cores = facts["cores"] if isinstance(facts["cores"], dict) else {1: facts["cores"]}
    assert {lnc: found.core_count(lnc) for lnc in found.device.lnc_choices} == cores
    assert found.vcpus == facts["vcpus"]
    assert found.host_memory_bytes == facts["host_memory_gib"] * GIB


@pytest.mark.parametrize("name", INSTANCES)
def test_an_instance_has_the_places_of_the_reference(name):
    facts, found = INSTANCES[name], instance_type(name)
    if facts.get("pci_bdf"):
        assert found.pci_bdf == tuple(facts["pci_bdf"])
    if facts.get("numa") is not None:
        assert found.numa_node == each(facts["numa"], found.device_count)
    if facts.get("cpu_affinity") is not None:
        assert found.cpu_affinity == each(facts["cpu_affinity"], found.device_count)
    if "cpu_affinity_by_numa" in facts:
        by_node = facts["cpu_affinity_by_numa"]
        assert found.cpu_affinity == tuple(by_node[node] for node in found.numa_node)


@pytest.mark.parametrize("name", INSTANCES)
def test_an_instance_has_the_links_of_the_reference(name):
    facts, found = INSTANCES[name], instance_type(name)
    if facts["topology"] is not None:
        assert found.connected_to == rows(facts["topology"])
    if "topology_docs" in facts:
        assert found.connected_to_docs == rows(facts["topology_docs"])
    else:
        assert found.connected_to_docs is None
    for wanted in figures(facts.get("neuronlink") or "") + figures(facts["network"] or ""):
        assert wanted in figures(found.neuronlink) + figures(found.network)


@pytest.mark.parametrize("name", INSTANCES)
def test_an_instance_has_the_ultraserver_of_the_reference(name):
    facts, found = INSTANCES[name].get("ultraserver"), instance_type(name).ultraserver
    if facts is None:
        assert found is None
        return
    assert found is not None
    assert (found.nodes, found.chips) == (facts["nodes"], facts["chips"])
    assert found.chips == found.nodes * instance_type(name).device_count
    if "modes" in facts:
        assert found.modes == tuple(facts["modes"])
    if "sysfs_class_files" in INSTANCES[name]:
        assert found.class_files == tuple(INSTANCES[name]["sysfs_class_files"])


def rows(topology):
    """The neighbours of each device; a single device has none."""
    links = REFERENCE["topologies"][topology]
    return tuple(tuple(links[device]) for device in sorted(links)) or (None,)


def each(value, count):
    """A value for each device, given as one for all or as a list."""
    return (value,) * count if isinstance(value, str) else tuple(value)


def rate(text):
    """Bytes per second of a text such as `2.9 TB/s`."""
    number, unit = text.split()
    return float(number) * RATE_UNITS[unit]


def figures(text):
    """The whole numbers in a text that are rates, such as the 3200 of `EFAv3 3200 Gbps`."""
    words = text.replace("/", " ").split()
    return [word for word, unit in pairwise(words) if word.isdigit() and unit in {"Gbps", "GB", "GiB"}]
