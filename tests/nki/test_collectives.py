"""Collectives in kernels, with ranks in one process."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from neurontools.compat.nki import collectives as ncc
from neurontools.compat.nki import isa as nisa
from neurontools.compat.nki import language as nl
from neurontools.nki.errors import KernelError
from neurontools.nki.launch import Kernel, run, run_ranks

RANKS = 4
DATA = np.random.default_rng(5).standard_normal((RANKS, 8, 4), dtype=np.float32)
ALL = ncc.ReplicaGroup([list(range(RANKS))])
PAIRS = ncc.ReplicaGroup([[0, 1], [2, 3]])


def _run(step: Any, shape: tuple[int, ...], cores: int = 1) -> list[np.ndarray]:
    """Return what each rank gets: a step fills a tensor in HBM of a shape."""

    def kernel(data: Any) -> Any:
        out = nl.ndarray(shape, data.dtype, nl.shared_hbm)
        step([data], [out])
        return out

    return [
        finished.results for finished in run_ranks(Kernel(kernel, cores), [((part,), {}) for part in DATA])
    ]


CASES: dict[str, tuple[Any, tuple[int, ...], Any]] = {
    "all_reduce": (lambda s, d: ncc.all_reduce(s, d, ALL, nl.add), (8, 4), lambda rank: DATA.sum(0)),
    "all_reduce maximum of pairs": (
        lambda s, d: ncc.all_reduce(s, d, PAIRS, nl.maximum),
        (8, 4),
        lambda rank: DATA[rank // 2 * 2 : rank // 2 * 2 + 2].max(0),
    ),
    "all_gather": (lambda s, d: ncc.all_gather(s, d, ALL, 0), (32, 4), lambda rank: DATA.reshape(32, 4)),
    "reduce_scatter": (
        lambda s, d: ncc.reduce_scatter(s, d, ALL, 0, nl.add),
        (2, 4),
        lambda rank: DATA.sum(0)[rank * 2 : rank * 2 + 2],
    ),
    "all_to_all": (
        lambda s, d: ncc.all_to_all(s, d, ALL, 0),
        (8, 4),
        lambda rank: np.concatenate([part[rank * 2 : rank * 2 + 2] for part in DATA]),
    ),
    "collective_permute": (
        lambda s, d: ncc.collective_permute(s, d, [(0, 1), (1, 0), (2, 3), (3, 2)]),
        (8, 4),
        lambda rank: DATA[rank ^ 1],
    ),
    "collective_permute_implicit": (
        lambda s, d: ncc.collective_permute_implicit([s], [d], ALL),
        (8, 4),
        lambda rank: DATA[rank - 1],
    ),
    "collective_permute_implicit_reduce": (
        lambda s, d: ncc.collective_permute_implicit_reduce([s], [s], [d], ALL, nl.add),
        (8, 4),
        lambda rank: 2 * DATA[rank - 1],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_collectives(name: str) -> None:
    step, shape, expected = CASES[name]
    for rank, result in enumerate(_run(step, shape)):
        np.testing.assert_allclose(result, expected(rank), rtol=1e-6)


def test_ranks_of_two_cores_join_core_by_core() -> None:
    def step(srcs: Any, dsts: Any) -> None:
        core = nl.program_id(0)
        part = slice(core * 4, core * 4 + 4)
        ncc.all_reduce([srcs[0][part]], [dsts[0][part]], ALL, nl.add)

    def kernel(data: Any) -> Any:
        out = nl.ndarray(data.shape, data.dtype, nl.shared_hbm)
        step([data], [out])
        return out

    made = Kernel(kernel)[2]
    for finished in run_ranks(made, [((part,), {}) for part in DATA]):
        np.testing.assert_allclose(finished.results, DATA.sum(0), rtol=1e-6)


def test_chunks_of_any_size_are_sent_by_a_table() -> None:
    counts = np.array([[1, 2, 3, 4]] * RANKS, np.uint32)  # of elements to each rank
    starts = np.zeros((RANKS, RANKS), np.uint32)

    def kernel(data: Any, table: Any) -> Any:
        out = nl.ndarray((16, 1), data.dtype, nl.shared_hbm)
        nisa.dma_copy(out, nl.zeros((16, 1), data.dtype))
        ncc.all_to_all_v([data], [out], ALL, table)
        return out, table

    calls = []
    for rank in range(RANKS):
        table = np.stack([counts[rank], starts[rank], np.zeros(RANKS, np.uint32)])
        calls.append(((DATA[rank].reshape(32, 1).copy(), table), {}))
    for rank, finished in enumerate(run_ranks(Kernel(kernel), calls)):
        out, table = finished.results
        for sender in range(RANKS):
            np.testing.assert_array_equal(
                out[sender * 4 : sender * 4 + rank + 1, 0], DATA[sender].reshape(-1)[: rank + 1]
            )
        assert table[2].tolist() == [rank + 1] * RANKS


def test_the_ring_says_whose_data_a_rank_holds() -> None:
    def kernel(data: Any) -> Any:
        out = nl.ndarray((1, 3), nl.int32, nl.shared_hbm)
        for iteration in range(3):
            owner = ncc.collective_permute_implicit_current_processing_rank_id(iteration, ALL)
            number = nl.ndarray((1, 1), nl.int32)
            nisa.register_store(number, owner)
            nisa.dma_copy(out[:, iteration : iteration + 1], number)
        return out

    for rank, finished in enumerate(run_ranks(Kernel(kernel), [((part,), {}) for part in DATA])):
        assert finished.results.tolist() == [[(rank - iteration) % RANKS for iteration in range(3)]]


def test_a_collective_that_a_rank_leaves_out_names_the_ranks() -> None:
    def kernel(data: Any) -> None:
        if int(ncc.rank_id()) != 2:
            ncc.all_reduce([data], [data], ALL, nl.add)

    with pytest.raises(KernelError, match="wait for each other") as caught:
        run_ranks(Kernel(kernel), [((part,), {}) for part in DATA])
    assert "note: rank 2 core 0 has ended" in str(caught.value)
    assert "note: rank 0 core 0 waits in all_reduce" in str(caught.value)


def test_a_group_that_is_larger_than_the_job_is_refused() -> None:
    def kernel(data: Any) -> None:
        ncc.all_reduce([data], [data], ALL, nl.add)

    with pytest.raises(KernelError, match="rank 3 of the replica group does not exist, the job has 1 ranks"):
        run(Kernel(kernel), (DATA[0],), {})


def test_one_rank_alone_reduces_to_itself() -> None:
    def kernel(data: Any) -> Any:
        out = nl.ndarray(data.shape, data.dtype, nl.shared_hbm)
        ncc.all_reduce([data], [out], ncc.ReplicaGroup([[0]]), nl.add)
        return out

    np.testing.assert_array_equal(run(Kernel(kernel), (DATA[0],), {}).results, DATA[0])
