"""The critical path of programs, from the schedule of their graphs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from benchmarks.engine_model.training import decoder_training
from neurontools.base.units import format_ns
from neurontools.compiler.compile import compile_graph
from neurontools.compiler.graph import Node
from neurontools.compiler.neff import parse
from neurontools.machine.instances.catalogue import instance_type
from neurontools.profiler.analysis.programs import core_of, critical_paths, path_of_neff, schedule_of
from neurontools.profiler.capture.format import ProfileError
from neurontools.profiler.trace.open import load
from tests.compiler.graphs import graph_of, tensor

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Maker

    Tool = Callable[..., subprocess.CompletedProcess[str]]

TRN1 = instance_type("trn1.2xlarge").device


def compiled() -> bytes:
    """A long product and a short sum beside it that nobody waits for."""
    x, w, y = tensor(0, 1024, 1024), tensor(1, 1024, 1024), tensor(2, 1024, 1024)
    a, b = tensor(3, 64, 64), tensor(4, 64, 64)
    graph = graph_of(
        Node("aten.mm.default", (x, w), (), (y,), "train.py:3"),
        Node("aten.neg.default", (a,), (), (b,), "train.py:4"),
        inputs=(0, 1, 3),
    )
    return compile_graph(graph, TRN1, ("--target=trn1",), "two")


def test_the_path_adds_up_to_the_execution() -> None:
    neff = parse(compiled())
    path = path_of_neff(neff)
    assert path.total_ns == pytest.approx(neff.cost.total_ns, abs=2)
    assert path.path_ns == sum(part.part_ns for part in path.parts)
    assert path.path_ns == sum(total.path_ns for total in path.operators)
    assert path.path_ns == sum(total.path_ns for total in path.engines)
    assert path.operators[0].name == "aten.mm.default"
    other = next(total for total in path.operators if total.name == "aten.neg.default")
    assert other.share < 0.1 < path.operators[0].share
    assert other.slack_ns is not None
    assert 0 < other.slack_ns < path.total_ns
    assert {part.source for part in path.parts if part.engine == "Tensor"} == {"train.py:3"}
    assert [part.start_ns for part in path.parts] == sorted(part.start_ns for part in path.parts)


def test_transfers_between_others_do_not_leave_holes_in_the_path() -> None:
    graph = decoder_training(
        layers=2, width=256, heads=4, vocabulary=8192, batch=8, length=128, optimizer="adamw"
    )
    neff = parse(compile_graph(graph, TRN1, ("--target=trn1",), "gpt"))
    planned = schedule_of(neff, core_of(neff))
    reached, holes = 0.0, 0.0
    for number in planned.critical_path():
        group = planned.groups[number]
        assert group.after < number
        holes += max(0.0, group.start_ns - reached)
        reached = max(reached, group.end_ns)
    assert reached == planned.end_ns
    assert holes < 0.02 * planned.end_ns


def test_paths_of_a_profile_are_those_of_its_programs(tool: Tool, home: Path, maker: Maker) -> None:
    capture = maker.capture(home / "profile")
    model = maker.model(neff=compiled(), name="two")
    capture.on_load(model, maker.start_ns, maker.start_ns + 10)
    for number in (1, 2, 3):
        capture.on_execute(
            model, number, maker.start_ns + number * 1000, maker.start_ns + number * 1000 + 500, 0
        )
    capture.on_close()
    (path,) = critical_paths(load(str(home / "profile")))
    assert (path.program, path.executions) == ("two", 3)
    (neff,) = [name for name in os.listdir(capture.directory) if name.endswith(".neff")]
    assert neff == f"neff_{path.neff_hash}.neff"
    text = tool("neuron-profile", "critical-path", str(home / "profile")).stdout
    assert text.startswith(f"two: {format_ns(path.total_ns)} modelled, 3 executions")
    assert max(map(len, text.splitlines())) <= 80
    rows = tool("neuron-profile", "critical-path", str(home / "profile"), "--csv").stdout.splitlines()
    assert len(rows) == 1 + len(path.parts)


def test_a_program_for_no_device_has_no_path(profile_dir: Path) -> None:
    with pytest.raises(ProfileError, match=r"no critical path of mlp: .*unknown device"):
        critical_paths(load(str(profile_dir)))


def test_a_profile_without_executions_has_no_path(home: Path, maker: Maker) -> None:
    maker.finished(home / "none", steps=0)
    with pytest.raises(ProfileError, match="no executed program"):
        critical_paths(load(str(home / "none")))
