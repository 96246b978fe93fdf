"""Filtering processes, and the tree by parents."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from neurontools.dashboard.process_rows import ProcessRow, process_rows
from neurontools.dashboard.process_table import ProcessFilter, problem_of, tree

if TYPE_CHECKING:
    from neurontools.machine.snapshot import ProcessState, Snapshot

MonitoredMachine = Callable[..., "Snapshot"]
Process = Callable[..., "ProcessState"]


@pytest.fixture
def machine(machine_at: MonitoredMachine, process_at: Process) -> Snapshot:
    return machine_at(
        1,
        replace(process_at(10, cores=(0,)), tag="train-a"),
        replace(process_at(20, cores=(1, 2), command="python serve.py --port 80"), tag="serve"),
        replace(process_at(30, cores=(3,)), tag="train-b", origin="synthetic"),
    )


@pytest.mark.parametrize(
    ("text", "pids"),
    [
        ("", [10, 20, 30]),
        ("  ", [10, 20, 30]),
        ("train", [10, 30]),
        ("TRAIN-", [10, 30]),
        ("serve.py --port", [20]),
        ("tag~train", [10, 30]),
        ("tag~train pid>10", [30]),
        ("command~serve.py --port 80", [20]),
        ("20 tag=serve", [20]),
        ("device=1", [20, 30]),
        ("device=1 origin=synthetic", [30]),
        ("state=idle", []),
        ("pid=10,30", [10, 30]),
        ("nothing at all", []),
    ],
)
def test_a_line_of_filters(machine: Snapshot, text: str, pids: list[int]) -> None:
    rows = process_rows(None, machine, {})
    assert [row.process.pid for row in ProcessFilter(text)(machine, rows)] == pids


@pytest.mark.parametrize(
    "text", ["pid~4", "pid>", "pid=x", "owner=nobody-has-this-name", "bogus=1", "state=lazy"]
)
def test_invalid_input_is_named(text: str) -> None:
    assert problem_of(text)


@given(st.text(max_size=40))
def test_any_line_is_a_filter_or_has_a_problem(text: str) -> None:
    if not problem_of(text):
        ProcessFilter(text)


def rows_of(*pids: int, process_at: Process) -> tuple[ProcessRow, ...]:
    return tuple(ProcessRow(None, process_at(pid), 0, 0.0, None) for pid in pids)


def test_a_tree_has_every_row_once_also_when_parents_go_in_a_circle(process_at: Process) -> None:
    rows = rows_of(2, 3, 4, 5, process_at=process_at)
    lines = tree(rows, {2: 3, 3: 2, 4: 9, 5: 4})
    assert sorted(line.pid for line in lines) == [2, 3, 4, 5]
    assert {line.pid: line.depth for line in lines}[5] == 1


@given(parents=st.dictionaries(st.integers(2, 12), st.integers(0, 14), max_size=11))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_row_is_lost_or_doubled_in_a_tree(process_at: Process, parents: dict[int, int]) -> None:
    rows = rows_of(*range(2, 13), process_at=process_at)
    lines = [line.pid for line in tree(rows, parents) if line.row]
    assert sorted(lines) == list(range(2, 13))
