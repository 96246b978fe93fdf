"""The simulation of `benchmarks/hierarchical_sgd.py`: who waits for whom, and for how long."""

from __future__ import annotations

import pytest

pytest.importorskip("simpy", reason="simpy, which simulates the workers, is not installed")

from benchmarks.hierarchical_sgd import STALL_S, STEP_S, all_reduce_s, schedule, simulate
from neurontools.collectives.model import modelled_time

BETWEEN_2_S = all_reduce_s(2)


def test_workers_wait_for_the_slowest_of_their_group_alone():
    stalls = [[True, False], [False, True], [False, False], [False, False]]
    every_step = simulate([2, 2], stalls)
    assert every_step == pytest.approx(2 * (STEP_S + STALL_S + BETWEEN_2_S))
    # Two stalls of different workers overlap if they only meet afterwards.
    assert simulate([0, 2], stalls) == pytest.approx(2 * STEP_S + STALL_S + BETWEEN_2_S)
    assert simulate([2, 2], stalls[2:]) == pytest.approx(2 * (STEP_S + BETWEEN_2_S))
    assert simulate([0, 4], stalls) == pytest.approx(2 * STEP_S + STALL_S + all_reduce_s(4))


def test_groups_on_one_machine_share_its_links_and_larger_groups_its_network():
    alone = modelled_time("all_reduce", 45_000_000, 8, "trn1.32xlarge").time_s
    assert alone <= all_reduce_s(8) < all_reduce_s(64)
    assert all_reduce_s(256) == modelled_time("all_reduce", 45_000_000, 32, "trn1.32xlarge", nodes=8).time_s


@pytest.mark.torch
def test_the_groups_are_those_of_torchs_averager():
    assert schedule({2: 4, 4: 8}, 8)[:9] == [8, 0, 4, 0, 8, 0, 4, 0, 8]
