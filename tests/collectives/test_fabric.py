"""Links, routes and tours of every instance type are those of its topology."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from neurontools.collectives.fabric import find_fabric, route
from neurontools.errors import NeuronToolsError
from neurontools.machine.instances.catalogue import instance_names, instance_type

EVERY = instance_names()
SEVERAL = [name for name in EVERY if instance_type(name).device_count > 1]
LINKED = [name for name in SEVERAL if instance_type(name).topology != "switched"]


@pytest.mark.parametrize("name", EVERY)
def test_every_instance_has_rates(name):
    fabric = find_fabric(name)
    assert fabric.core_count == instance_type(name).core_count(instance_type(name).device.lnc_default)
    assert fabric.core_rate > 0
    assert fabric.reduction_rate > 0
    assert (fabric.link_rate > 0) == (name in SEVERAL)


@pytest.mark.parametrize("name", LINKED)
def test_a_route_follows_links_without_a_detour(name):
    fabric = find_fabric(name)
    devices = range(len(fabric.neighbours))
    links = set(fabric.links())
    for source in devices:
        distance = _distances(fabric.neighbours, source)
        for target in devices:
            way = route(fabric, source, target)
            assert set(way) <= links
            assert len(way) == distance[target]
            assert all(one[1] == following[0] for one, following in pairwise(way))
            assert not way or (way[0][0], way[-1][1]) == (source, target)


@pytest.mark.parametrize("name", [name for name in LINKED if instance_type(name).topology == "torus4x4"])
def test_traffic_between_all_devices_of_a_torus_loads_every_link_alike(name):
    fabric = find_fabric(name)
    load = Counter(
        link for source in range(16) for target in range(16) for link in route(fabric, source, target)
    )
    assert set(load) == set(fabric.links())
    assert set(load.values()) == {8}


@pytest.mark.parametrize("name", SEVERAL)
def test_tours_visit_every_device_once_and_share_no_link(name):
    fabric = find_fabric(name)
    used: Counter[tuple[int, int]] = Counter()
    for cycle in fabric.cycles():
        assert sorted(cycle) == list(range(len(fabric.neighbours)))
        steps = [*pairwise(cycle), (cycle[-1], cycle[0])]
        if fabric.has_closed_rings:
            assert all(there in fabric.neighbours[here] for here, there in steps)
            used.update(steps + [(there, here) for here, there in steps])
    assert not used or max(used.values()) == 1


def test_twice_the_published_link_rate_is_twice_the_rate():
    assert find_fabric("trn1n.32xlarge").link_rate == pytest.approx(
        2 * find_fabric("trn1.32xlarge").link_rate
    )


def test_a_logical_core_of_two_has_twice_the_rate():
    assert find_fabric("trn2.48xlarge", 2).core_rate == pytest.approx(
        2 * find_fabric("trn2.48xlarge", 1).core_rate
    )


def test_a_configuration_that_does_not_exist_is_refused():
    with pytest.raises(NeuronToolsError, match="configuration 2 does not exist on trn1"):
        find_fabric("trn1.2xlarge", 2)


def _distances(neighbours, source):
    distance, front = {source: 0}, [source]
    while front:
        here = front.pop(0)
        for there in neighbours[here]:
            if there not in distance:
                distance[there] = distance[here] + 1
                front.append(there)
    return distance
