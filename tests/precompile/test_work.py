"""Which graphs are compiled, by which node, and what is said of them."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neurontools import env
from neurontools.errors import UsageError
from neurontools.precompile import compilation, trial_run
from neurontools.precompile.compilation import MAX_NEIGHBOURS, CompileReport, NodeShare, schedule
from neurontools.precompile.worker_pool import CompileResult

if TYPE_CHECKING:
    from pathlib import Path

PATHS = st.lists(st.text("abcdef", min_size=1, max_size=4), unique=True, max_size=40)


@given(PATHS, st.integers(1, 12))
def test_the_nodes_begin_with_shares_that_make_up_the_whole(paths: list[str], nodes: int) -> None:
    plans = [schedule(paths, node, nodes) for node in range(nodes)]
    shares = [plan[: len(sorted(paths)[node::nodes])] for node, plan in enumerate(plans)]
    assert sorted(path for share in shares for path in share) == sorted(paths)


@given(PATHS, st.integers(1, MAX_NEIGHBOURS + 1))
def test_a_node_that_is_done_helps_its_neighbours(paths: list[str], nodes: int) -> None:
    for node in range(nodes):
        assert sorted(schedule(paths, node, nodes)) == sorted(paths)


@given(PATHS, st.integers(MAX_NEIGHBOURS + 2, 40))
def test_no_node_helps_more_than_eight_others(paths: list[str], nodes: int) -> None:
    most = -(-len(paths) // nodes) * (MAX_NEIGHBOURS + 1)
    assert all(len(schedule(paths, node, nodes)) <= most for node in range(nodes))


@pytest.mark.parametrize(("node", "count"), [(-1, 2), (2, 2), (0, 0)])
def test_a_node_that_does_not_exist_is_refused(node: int, count: int) -> None:
    with pytest.raises(UsageError, match=f"node {node} of {count} does not exist"):
        NodeShare(node, count)


def test_the_report_has_the_keys_of_the_real_one() -> None:
    outcome = CompileReport(
        (CompileResult("/c/a", "", 0, 0.25), CompileResult("/c/b", "killed", 2, 1.5)), 1000.0, 1.75
    )
    assert json.loads(compilation.format_report(outcome)) == {
        "compilation_summary": {"true": 1, "false": 1},
        "compilation_report": {
            "/c/a/model.hlo_module.pb": {"status": True, "retry": 0, "compile_time": 0.25},
            "/c/b/model.hlo_module.pb": {"status": False, "retry": 2, "compile_time": 1.5},
        },
        "start_time": 1000.0,
        "compilation_time": 1.75,
    }
    assert compilation.format_totals(outcome) == (
        "Total graphs: 2",
        "Total successful compilations: 1",
        "Total failed compilations: 1",
    )


def test_the_exit_code_is_the_number_of_failures_as_far_as_it_goes() -> None:
    jobs = tuple(CompileResult(f"/c/{number}", "refused", 0, 0.0) for number in range(256))
    assert CompileReport(jobs[:3], 0.0, 0.0).exit_code == 3
    assert CompileReport(jobs, 0.0, 0.0).exit_code == 255
    assert CompileReport((), 0.0, 0.0).exit_code == 0


def test_notes_of_a_killed_run_with_the_same_number_do_not_interfere(tmp_path: Path) -> None:
    environ = {**os.environ, env.RUN: "1"}
    (tmp_path / f"extracted_pid{os.getpid()}.jsonl").touch()
    collected = [trial_run.collect(("true",), str(tmp_path), environ).code for _ in range(2)]
    assert collected == [0, 0]
    assert len(list(tmp_path.iterdir())) == 1
