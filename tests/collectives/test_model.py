"""The cost model: monotone, below what links and cores can carry, and it chooses what is fastest."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neurontools import collectives
from neurontools.collectives.fabric import find_fabric
from neurontools.collectives.model import Algorithm, Workload, algorithms, modelled_time, timed
from neurontools.collectives.operations import Operation
from neurontools.errors import NeuronToolsError, UsageError

PLACES = [
    ("inf1.6xlarge", 1, 16),
    ("inf2.xlarge", 1, 2),
    ("inf2.24xlarge", 1, 12),
    ("inf2.48xlarge", 1, 24),
    ("trn1.32xlarge", 1, 8),
    ("trn1.32xlarge", 1, 32),
    ("trn2.3xlarge", 1, 8),
    ("trn2.48xlarge", 2, 64),
    ("trn3e.24xlarge", 2, 16),
]
places = st.sampled_from(PLACES)
operations = st.sampled_from(list(Operation))
sizes = st.integers(1, 2**32)


@settings(max_examples=60)
@given(places, operations, sizes, sizes)
def test_time_grows_with_the_size(place, operation, one, other):
    instance, lnc, ranks = place
    small, large = sorted((one, other))
    first = modelled_time(operation, small, ranks, instance, lnc=lnc)
    second = modelled_time(operation, large, ranks, instance, lnc=lnc)
    assert 0 < first.latency_s < first.time_s <= second.time_s


@settings(max_examples=60)
@given(places, operations, sizes)
def test_bus_bandwidth_stays_below_what_a_core_can_carry(place, operation, nbytes):
    instance, lnc, ranks = place
    time = modelled_time(operation, nbytes, ranks, instance, lnc=lnc)
    assert time.bus_bandwidth <= find_fabric(instance, lnc).core_rate


@pytest.mark.parametrize("place", [place for place in PLACES if find_fabric(place[0]).link_rate])
def test_an_all_gather_is_not_faster_than_the_links_into_a_device(place):
    instance, lnc, ranks = place
    fabric = find_fabric(instance, lnc)
    arriving = fabric.link_rate * (1 if fabric.topology == "switched" else min(map(len, fabric.neighbours)))
    outside = (ranks - fabric.cores_per_device) / ranks
    for algorithm in algorithms(Workload(Operation.ALL_GATHER, (tuple(range(ranks)),), fabric)):
        time = modelled_time("all_gather", 2**30, ranks, instance, lnc=lnc, algorithm=algorithm)
        assert 2**30 * outside / time.time_s <= arriving


@settings(max_examples=60)
@given(places, operations, sizes)
def test_no_other_algorithm_is_faster_than_the_chosen_one(place, operation, nbytes):
    instance, lnc, ranks = place
    work = Workload(operation, (tuple(range(ranks)),), find_fabric(instance, lnc))
    chosen = timed(work, nbytes)
    assert chosen.time_s == min(timed(work, nbytes, name).time_s for name in algorithms(work))


def test_every_algorithm_is_the_best_somewhere():
    asked = [
        ("all_gather", 2**10, 32, "trn1.32xlarge"),
        ("all_reduce", 2**10, 64, "trn2.48xlarge"),
        ("all_reduce", 2**22, 32, "trn1.32xlarge"),
        ("all_reduce", 2**30, 32, "trn1.32xlarge"),
        ("all_reduce", 2**30, 12, "inf2.24xlarge"),
    ]
    chosen = [modelled_time(*question).algorithm for question in asked]
    assert chosen == ["mesh", "rdh", "hier", "kangaring", "ring"]


@pytest.mark.parametrize(
    ("operation", "factor"),
    [
        ("all_reduce", 1.75),
        ("all_gather", 0.875),
        ("reduce_scatter", 0.875),
        ("alltoall", 0.875),
        ("permute", 1),
    ],
)
def test_bus_bandwidth_is_algorithm_bandwidth_times_the_documents_factor(operation, factor):
    time = modelled_time(operation, 2**20, 8, "trn1.32xlarge")
    assert time.algorithm_bandwidth == 2**20 / time.time_s
    assert time.bus_bandwidth == pytest.approx(factor * time.algorithm_bandwidth)


def test_groups_that_cross_the_same_links_slow_each_other_down():
    fabric = find_fabric("trn1.32xlarge")
    apart = Workload(Operation.ALL_REDUCE, (tuple(range(0, 32, 2)), tuple(range(1, 32, 2))), fabric)
    alone = Workload(Operation.ALL_REDUCE, apart.groups[:1], fabric)
    inside = Workload(Operation.ALL_REDUCE, tuple((core, core + 1) for core in range(0, 32, 2)), fabric)
    one_pair = Workload(Operation.ALL_REDUCE, inside.groups[:1], fabric)
    together = timed(apart, 2**30, Algorithm.MESH).time_s
    assert together > 1.5 * timed(alone, 2**30, Algorithm.MESH).time_s
    assert timed(apart, 2**30).time_s > timed(alone, 2**30).time_s
    assert timed(inside, 2**30).time_s == timed(one_pair, 2**30).time_s


def test_a_core_that_receives_from_several_takes_as_long_as_a_core_that_sends_to_several():
    fabric = find_fabric("trn2.3xlarge")

    def transfer_s(*pairs):
        work = Workload(Operation.PERMUTE, ((0, 1, 2, 3),), fabric, pairs=pairs)
        time = timed(work, 2**30)
        return time.time_s - time.latency_s

    assert transfer_s((0, 2), (1, 2)) == pytest.approx(2 * transfer_s((0, 2)))
    assert transfer_s((2, 0), (2, 1)) == pytest.approx(transfer_s((0, 2), (1, 2)))


def test_more_nodes_take_longer():
    times = [
        modelled_time("all_reduce", 2**28, 32, "trn1.32xlarge", nodes=nodes).time_s for nodes in (1, 2, 4, 8)
    ]
    assert times == sorted(set(times))
    fast = modelled_time("all_reduce", 2**28, 32, "trn1n.32xlarge", nodes=8)
    assert fast.time_s < times[-1]
    assert fast.algorithm == Algorithm.HIERARCHICAL
    assert fast.ranks == 256


@pytest.mark.parametrize(
    ("ranks", "words"),
    [(1, "no such ranks"), (33, "no such ranks"), ((0, 0), "no such ranks"), ((0, 32), "no such ranks")],
)
def test_ranks_that_do_not_exist_are_refused(ranks, words):
    with pytest.raises(UsageError, match=words):
        modelled_time("all_reduce", 1024, ranks, "trn1.32xlarge")


@pytest.mark.parametrize(
    ("operation", "instance", "settings", "words"),
    [
        ("all_reduce", "trn1.2xlarge", {"algorithm": "hier"}, "hier is not possible"),
        ("all_reduce", "trn1.2xlarge", {"algorithm": "tree"}, "unknown algorithm 'tree'"),
        ("alltoall", "trn1.32xlarge", {"nodes": 2}, "between instances is not modelled"),
        ("all_reduce", "trn2.3xlarge", {"nodes": 2}, "network rate of trn2.3xlarge is not published"),
        ("all_reduce", "trn9.xlarge", {}, "unknown instance type"),
    ],
)
def test_what_has_no_model_is_refused(operation, instance, settings, words):
    with pytest.raises(NeuronToolsError, match=words):
        modelled_time(operation, 1024, 2, instance, **settings)


def test_the_package_offers_its_functions_lazily():
    assert collectives.modelled_time is modelled_time
    assert collectives.Operation is Operation
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        collectives.nothing  # noqa: B018
    code = "import sys, neurontools.collectives; print('neurontools.collectives.model' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "False\n"
