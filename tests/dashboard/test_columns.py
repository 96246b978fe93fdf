"""The columns of the process table: order, sorting."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from neurontools.dashboard.process_rows import process_rows
from neurontools.tui.top.pages.columns import COLUMNS, Sorting, ordered

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.machine.snapshot import ProcessState, Snapshot


@pytest.mark.parametrize("name", COLUMNS)
def test_every_column_orders(
    machine_at: Callable[..., Snapshot], process_at: Callable[..., ProcessState], name: str
) -> None:
    machine = machine_at(
        1,
        replace(process_at(10, cores=(0,)), tag="train-a"),
        replace(process_at(20, cores=(1, 2)), tag="serve"),
        replace(process_at(30, cores=()), tag="train-b"),
    )
    rows = process_rows(None, machine, {})
    up, down = (
        [row.process.pid for row in ordered(rows, Sorting(COLUMNS[name], descending=turned))]
        for turned in (False, True)
    )
    assert sorted(up) == sorted(down) == [10, 20, 30]
    if name in {"pid", "tag", "cores"}:
        assert up == down[::-1] == {"tag": [20, 10, 30]}.get(name, [10, 20, 30])


def test_choosing_a_column_again_turns_it_round_and_another_makes_it_the_second() -> None:
    cores, tag, utilization = (COLUMNS[name] for name in ("cores", "tag", "utilization"))
    first = Sorting().by(utilization)
    assert (first.column, first.descending, first.then) == (utilization, True, (cores, False))
    again = first.by(utilization)
    assert (again.descending, again.then) == (False, (cores, False))
    assert again.by(tag) == Sorting(tag, descending=False, then=(utilization, False))
