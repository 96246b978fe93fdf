"""Every algorithm's steps, carried out on buffers, give what a direct computation gives; a broken step is found."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neurontools.collectives.checking import ALL_ONES, RANDOM, check, rank_data, starting_memory
from neurontools.collectives.fabric import find_fabric
from neurontools.collectives.model import Algorithm, Workload, available_algorithms, make_plan
from neurontools.collectives.operations import DataType, Operation
from neurontools.collectives.plans import execute_plan

PLACES = ["inf1.6xlarge", "inf2.24xlarge", "inf2.48xlarge", "trn1.32xlarge", "trn2.3xlarge", "trn3e.24xlarge"]
MATRIX = [
    (instance, ranks, operation, algorithm)
    for instance, ranks in [
        ("trn1.32xlarge", 32),
        ("inf2.24xlarge", 12),
        ("trn3e.24xlarge", 16),
        ("trn1.2xlarge", 2),
    ]
    for operation in Operation
    for algorithm in available_algorithms(operation, tuple(range(ranks)), find_fabric(instance))
]


@st.composite
def cases(draw):
    fabric = find_fabric(draw(st.sampled_from(PLACES)))
    cores = tuple(range(draw(st.integers(2, min(fabric.core_count, 20)))))
    if draw(st.booleans()):
        cores = tuple(draw(st.permutations(cores)))
    operation = draw(st.sampled_from(list(Operation)))
    return Workload(operation, (cores,), fabric), draw(
        st.sampled_from(available_algorithms(operation, cores, fabric))
    )


@settings(max_examples=120)
@given(cases(), st.sampled_from(list(DataType)), st.integers(1, 5000), st.integers(0, 9))
def test_what_is_moved_is_what_a_direct_computation_gives(case, kind, nbytes, seed):
    work, algorithm = case
    assert check(work, kind, algorithm, nbytes, seed=seed).ok


@pytest.mark.parametrize(("instance", "ranks", "operation", "algorithm"), MATRIX)
def test_every_algorithm_of_every_operation(instance, ranks, operation, algorithm):
    work = Workload(operation, (tuple(range(ranks)),), find_fabric(instance))
    report = check(work, DataType.BF16, algorithm, 64 * ranks)
    assert report.ok
    assert (report.ranks, report.receivers, report.verified_bytes) == (ranks, ranks, 64 * ranks)


@pytest.mark.parametrize("kind", list(DataType))
@pytest.mark.parametrize("pattern", [RANDOM, ALL_ONES])
def test_every_data_type_and_pattern(kind, pattern):
    work = Workload(Operation.ALL_REDUCE, (tuple(range(32)),), find_fabric("trn1.32xlarge"))
    assert check(work, kind, Algorithm.KANGARING, 4096, pattern=pattern).ok


@pytest.mark.parametrize(("instance", "ranks", "operation", "algorithm"), MATRIX)
def test_one_changed_bit_in_any_step_is_found(instance, ranks, operation, algorithm):
    work = Workload(operation, (tuple(range(ranks)),), find_fabric(instance))
    last = len(make_plan(algorithm, operation, work.groups[0], work.fabric).steps) - 1

    for broken in {0, last // 2, last}:
        hit = []

        def tamper(step, transfer, piece, data, broken=broken, hit=hit):
            if step != broken or hit or not data.size:
                return data
            hit.append(piece)
            changed = data.copy()
            changed[0] ^= 1
            return changed

        report = check(work, DataType.INT32, algorithm, 64 * ranks, tamper=tamper)
        assert hit
        assert not report.ok
        assert report.wrong


def test_data_that_never_arrive_are_found():
    work = Workload(Operation.ALL_GATHER, (tuple(range(8)),), find_fabric("trn2.3xlarge", 1))
    report = check(
        work, DataType.FP16, Algorithm.RING, 4096, tamper=lambda step, _, __, data: data * (step != 3)
    )
    assert len(report.wrong) == 8


def test_a_rank_that_is_left_out_is_named(monkeypatch):
    from neurontools.collectives.plans import Mesh, Transfer

    def broken(_):
        yield tuple(Transfer(source, target, (source,)) for source in range(4) for target in range(3))

    monkeypatch.setattr(Mesh, "gather", broken)
    work = Workload(Operation.ALL_GATHER, (tuple(range(4)),), find_fabric("trn2.3xlarge"))
    assert check(work, DataType.UINT8, Algorithm.MESH, 64).wrong == (3,)


def test_a_step_that_needs_what_is_not_there_is_named(monkeypatch):
    from neurontools.collectives.plans import Mesh, Transfer

    monkeypatch.setattr(Mesh, "gather", lambda _: iter([(Transfer(0, 1, (3,)),)]))
    work = Workload(Operation.ALL_GATHER, (tuple(range(4)),), find_fabric("trn2.3xlarge"))
    report = check(work, DataType.UINT8, Algorithm.MESH, 64)
    assert report.wrong == (0, 1, 2, 3)
    assert report.detail == "a step needs piece 3, which its rank does not hold"


def test_several_groups_are_checked_and_named_by_their_ranks():
    groups = ((0, 2, 4, 6), (1, 3, 5, 7))
    work = Workload(Operation.ALL_REDUCE, groups, find_fabric("trn2.3xlarge", 1))
    assert check(work, DataType.FP32, Algorithm.RDH, 4096).ranks == 8
    seen = []

    def tamper(step, transfer, piece, data):
        seen.append(step)
        return data + 1 if len(seen) == 40 else data

    wrong = check(work, DataType.FP32, Algorithm.MESH, 4096, tamper=tamper).wrong
    assert wrong
    assert set(wrong) <= {1, 3, 5, 7}


def test_a_permute_moves_along_its_pairs_only():
    pairs = ((0, 2), (2, 1), (3, 3))
    work = Workload(Operation.PERMUTE, (tuple(range(4)),), find_fabric("trn2.3xlarge"), pairs=pairs)
    report = check(work, DataType.UINT16, Algorithm.MESH, 100)
    assert report.ok
    assert (report.ranks, report.receivers) == (4, 3)


@pytest.mark.parametrize("operation", [Operation.ALL_GATHERV, Operation.ALLTOALLV])
@pytest.mark.parametrize("algorithm", [Algorithm.MESH, Algorithm.RDH, Algorithm.RING])
def test_blocks_of_different_sizes(operation, algorithm):
    counts = [1, 0, 5, 10] if operation is Operation.ALL_GATHERV else [*range(16)]
    total = sum(counts) if operation is Operation.ALL_GATHERV else sum(counts[12:])
    shares = tuple(count / total for count in counts)
    work = Workload(operation, (tuple(range(4)),), find_fabric("trn2.3xlarge"), shares=shares)
    report = check(work, DataType.FP32, algorithm, total * 4)
    assert report.ok
    assert report.verified_bytes == total * 4


def test_a_small_budget_moves_less_and_says_so():
    work = Workload(Operation.ALL_REDUCE, (tuple(range(32)),), find_fabric("trn1.32xlarge"))
    report = check(work, DataType.BF16, Algorithm.MESH, 2**25, budget_bytes=2**20)
    assert report.ok
    assert (report.asked_bytes, report.verified_bytes) == (2**25, 7232 // 64 * 64)


def test_progress_is_reported_for_every_step():
    told = []
    work = Workload(Operation.ALL_GATHER, (tuple(range(8)),), find_fabric("trn2.3xlarge", 1))
    check(work, DataType.UINT8, Algorithm.RING, 64, on_step=lambda done, total: told.append((done, total)))
    assert told == [(done, 7) for done in range(1, 8)]


@pytest.mark.parametrize("algorithm", [Algorithm.RING, Algorithm.KANGARING, Algorithm.RDH])
def test_blocks_that_are_passed_on_are_not_kept(algorithm):
    work = Workload(Operation.ALLTOALL, (tuple(range(8)),), find_fabric("trn1.32xlarge"))
    steps = make_plan(algorithm, work.operation, work.groups[0], work.fabric)
    data = rank_data(work, DataType.UINT8, 8, 512, RANDOM, (0,))
    memory = starting_memory(data, steps.channels)
    execute_plan(steps, memory)
    for position, held in enumerate(memory):
        assert sorted({piece // steps.channels for piece in held}) == list(range(position, 64, 8))
