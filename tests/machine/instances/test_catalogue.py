"""The catalogue of instance types: complete, consistent, and honest about what is not known."""

from __future__ import annotations

import pytest

from neurontools.errors import NeuronToolsError
from neurontools.machine.instances.catalogue import UnknownInstanceError, instance_names, instance_type

GIB = 2**30

# name: devices, logical cores at the default LNC, vCPUs, host GiB, device GiB
SIZES = {
    "inf1.xlarge": (1, 4, 4, 8, 8),
    "inf1.2xlarge": (1, 4, 8, 16, 8),
    "inf1.6xlarge": (4, 16, 24, 48, 8),
    "inf1.24xlarge": (16, 64, 96, 192, 8),
    "inf2.xlarge": (1, 2, 4, 16, 32),
    "inf2.8xlarge": (1, 2, 32, 128, 32),
    "inf2.24xlarge": (6, 12, 96, 384, 32),
    "inf2.48xlarge": (12, 24, 192, 768, 32),
    "trn1.2xlarge": (1, 2, 8, 32, 32),
    "trn1.32xlarge": (16, 32, 128, 512, 32),
    "trn1n.32xlarge": (16, 32, 128, 512, 32),
    "trn2.3xlarge": (1, 4, 12, 128, 96),
    "trn2.48xlarge": (16, 64, 192, 2048, 96),
    "trn2n.48xlarge": (16, 64, 192, 2048, 96),
    "trn2u.48xlarge": (16, 64, 192, 2048, 96),
    "trn3.48xlarge": (16, 64, 192, 2048, 144),
    "trn3p.48xlarge": (16, 64, 192, 2048, 144),
    "trn3sn.48xlarge": (16, 64, 192, 2048, 144),
    "trn3e.24xlarge": (4, 16, 64, 768, 144),
    "trn3pd98.3xlarge": (1, 4, 16, 192, 144),
}


def test_every_instance_type_is_there_by_family_and_size():
    assert instance_names() == tuple(SIZES)


@pytest.mark.parametrize("name", SIZES)
def test_sizes_are_those_of_the_documents(name):
    found = instance_type(name)
    cores = found.core_count(found.device.lnc_default)
    assert (
        found.device_count,
        cores,
        found.vcpus,
        found.host_memory_bytes // GIB,
        found.device.memory_bytes // GIB,
    ) == SIZES[name]


@pytest.mark.parametrize("name", SIZES)
def test_every_device_has_its_own_values(name):
    found = instance_type(name)
    assert len(found.connected_to) == len(found.cpu_affinity) == len(found.numa_node) == found.device_count
    assert len(set(found.pci_bdf)) == found.device_count
    assert (found.topology == "none") == (found.device_count == 1) == (found.connected_to == (None,))


@pytest.mark.parametrize("name", [name for name, sizes in SIZES.items() if sizes[0] > 1])
def test_links_go_both_ways_and_reach_every_device(name):
    links = instance_type(name).connected_to
    for device, others in enumerate(links):
        assert len(set(others)) == len(others)
        assert device not in others
        assert all(device in links[other] for other in others)
    reached = {0}
    for _ in links:
        reached |= {other for device in reached for other in links[device]}
    assert reached == set(range(len(links)))


@pytest.mark.parametrize("name", ["trn1.32xlarge", "trn1n.32xlarge", "trn2.48xlarge", "trn2u.48xlarge"])
def test_the_torus_is_a_4_by_4_grid_that_wraps_around(name):
    for device, others in enumerate(instance_type(name).connected_to):
        row, column = divmod(device, 4)
        up, down = (row - 1) % 4 * 4 + column, (row + 1) % 4 * 4 + column
        left, right = row * 4 + (column - 1) % 4, row * 4 + (column + 1) % 4
        assert set(others) == {up, left, down, right}
        if name.startswith("trn1"):
            assert others == (up, left, down, right)


def test_trn2_lists_neighbours_in_the_order_of_real_hosts():
    assert instance_type("trn2.48xlarge").connected_to[13] == (12, 1, 9, 14)


def test_logical_cores_depend_on_the_lnc():
    trn2, trn1 = instance_type("trn2.48xlarge"), instance_type("trn1.32xlarge")
    assert (trn2.lnc_applies, trn2.cores_per_device(1), trn2.cores_per_device(2)) == (True, 8, 4)
    assert (trn1.lnc_applies, trn1.cores_per_device(1)) == (False, 2)
    with pytest.raises(NeuronToolsError, match=r"configuration 2 does not exist on trn1\.32xlarge"):
        trn1.core_count(2)


def test_rates_of_a_core_by_data_type_in_the_names_of_the_documents_and_of_torch():
    core = instance_type("trn1.2xlarge").device.core
    assert core.tensor_flops_s("bf16") == core.tensor_flops_s("bfloat16") == 92e12
    assert core.tensor_flops_s("fp32") == core.tensor_flops_s("float32") == 23e12
    assert core.tensor_flops_s("float64") == 23e12
    assert core.vector_flops_s == 2.3e12
    assert core.engine_clock_hz("Tensor") == core.engine_clock_hz("tensor") == 2.8e9
    assert core.engine_clock_hz("Sync") == core.engine_clock_hz("Vector") == 1.12e9
    assert (core.sbuf_bytes, core.psum_bytes, core.gpsimd_processors) == (24 << 20, 2 << 20, 8)


@pytest.mark.parametrize("name", SIZES)
def test_a_device_is_about_as_fast_as_its_cores(name):
    device = instance_type(name).device
    published = {"inferentia": 64, "trainium": 190, "inferentia2": 190, "trainium2": 667, "trainium3": 671}
    assert device.core.tensor_flops_s("bf16") * device.physical_cores == pytest.approx(
        published[device.name] * 1e12, rel=0.06
    )


@pytest.mark.parametrize(
    ("name", "lnc", "names"),
    [
        ("trn1.2xlarge", 1, ("trainium", "v2", "v2")),
        ("inf2.xlarge", 1, ("inferentia2", "v3", "v2")),
        ("trn2.48xlarge", 2, ("trainium2", "v4", "v3d")),
        ("trn2.48xlarge", 1, ("trainium2", "v4", "v3")),
    ],
)
def test_names_of_neuron_monitor(name, lnc, names):
    device = instance_type(name).device
    assert (device.device_type, device.device_version, device.core.monitor_version(lnc)) == names


def test_what_no_source_gives_is_listed_as_our_decision():
    assert instance_type("trn1.32xlarge").decisions == ()
    assert instance_type("inf2.48xlarge").decisions == ()
    assert any("PCI BDF" in text for text in instance_type("trn3.48xlarge").decisions)
    assert any(text.startswith("v4: ") for text in instance_type("trn3.48xlarge").decisions)
    assert any(text.startswith("inf1_chain16: ") for text in instance_type("inf1.24xlarge").decisions)


def test_aliases_name_the_same_type():
    assert instance_type("trn3_gen1_server") is instance_type("trn3.48xlarge")
    assert instance_type("trn3_gen2_server").name == "trn3e.24xlarge"


@pytest.mark.parametrize(
    ("wrong", "near"),
    [("trn1.2xlage", "trn1.2xlarge"), ("TRN2.48XLARGE", "trn2.48xlarge"), ("p5.48xlarge", "")],
)
def test_an_unknown_type_names_the_known_ones_and_the_nearest(wrong, near):
    with pytest.raises(UnknownInstanceError) as caught:
        instance_type(wrong)
    assert caught.value.message == f"unknown instance type {wrong!r}"
    assert all(name in caught.value.remedy for name in SIZES)
    assert near in caught.value.remedy.partition("?")[0]


def test_a_name_unlike_any_other_gets_no_suggestion():
    with pytest.raises(UnknownInstanceError) as caught:
        instance_type("?")
    assert caught.value.remedy.startswith("the known types are ")
