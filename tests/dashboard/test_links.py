"""Links between devices: which there are, how busy they are taken to be, and where devices are drawn."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from neurontools.dashboard.links import drawn_pairs, is_switched, links, placement

if TYPE_CHECKING:
    from neurontools.machine.snapshot import ProcessState, Snapshot

MonitoredMachine = Callable[..., "Snapshot"]
Process = Callable[..., "ProcessState"]


def test_a_link_is_as_busy_as_the_less_busy_end_of_a_job_that_spans_it(
    machine_at: MonitoredMachine, process_at: Process
) -> None:
    snapshot = machine_at(1, process_at(7, cores=(0, 1, 2)))
    found = links(snapshot, {0: 1.0, 1: 0.5, 2: 0.25, 3: 1.0})
    assert [(pair, link.is_down, link.load) for pair, link in found.items()] == [((0, 1), False, 0.25)]
    ranks = (process_at(7 + core, cores=(core,), command=f"python train.py --rank {core}") for core in (0, 2))
    assert links(machine_at(1, *ranks), {0: 1.0, 2: 0.5})[0, 1].load == 0.5
    apart = machine_at(1, process_at(7, cores=(0,)), process_at(8, cores=(2,), command="python serve.py"))
    assert links(apart, {0: 1.0, 2: 1.0})[0, 1].load is None


def test_a_broken_link_is_down_whichever_end_says_so(machine_at: MonitoredMachine) -> None:
    first, second = machine_at(1).devices
    broken = (replace(first, connected_to=(), links_down=(1,)), second)
    assert links(machine_at(1, devices=broken), {})[0, 1].is_down
    assert links(machine_at(1, devices=broken[::-1]), {})[0, 1].is_down


def test_neighbours_that_are_not_here_and_a_single_device_have_no_links(machine_at: MonitoredMachine) -> None:
    alone = (replace(machine_at(1).devices[0], connected_to=(9,)),)
    assert links(machine_at(1, devices=alone), {}) == {}
    assert links(machine_at(1, devices=(replace(alone[0], connected_to=None),)), {}) == {}


def torus(side: int) -> set[tuple[int, int]]:
    pairs = set()
    for device in range(side * side):
        row, column = divmod(device, side)
        for down, right in ((1, 0), (0, 1)):
            other = (row + down) % side * side + (column + right) % side
            pairs.add((min(device, other), max(device, other)))
    return pairs


@pytest.mark.parametrize(
    ("count", "pairs"),
    [
        (16, torus(4)),
        (12, {(one, one + 1) for one in range(11)}),
        (2, {(0, 1)}),
        (6, {(one, one + 1) for one in range(5)} | {(0, 5)}),
    ],
    ids=["torus", "chain", "pair", "ring"],
)
def test_the_usual_machines_are_drawn_with_all_their_links(count: int, pairs: set[tuple[int, int]]) -> None:
    place = placement(range(count), pairs, 5)
    assert pairs <= drawn_pairs(place)


def test_a_switch_is_distinguished_from_single_links() -> None:
    everyone = set(combinations(range(8), 2))
    assert is_switched(range(8), everyone)
    assert not is_switched(range(8), everyone - {(0, 1)})
    assert not is_switched(range(2), {(0, 1)})


@given(
    st.integers(1, 20),
    st.integers(1, 8),
    st.sets(st.tuples(st.integers(0, 19), st.integers(0, 19)), max_size=20),
)
def test_every_device_has_one_place(count: int, columns: int, pairs: set[tuple[int, int]]) -> None:
    place = placement(range(count), {pair for pair in pairs if pair[0] < pair[1]}, columns)
    assert sorted(device for row in place.rows for device in row if device is not None) == list(range(count))
    assert {len(row) for row in place.rows} == {len(place.rows[0])}
    assert len(place.rows[0]) <= columns
