"""Kernels in models: the losses of torch's formula on both devices, and NEFFs that the next run finds in the cache."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from neurontools.compat.nki import jit
from neurontools.compat.nki import language as nl
from neurontools.profiler.advice.rules_kernel import kernels_of
from neurontools.profiler.advice.subject import ProfiledProgram
from neurontools.profiler.analysis.programs import critical_paths
from neurontools.profiler.trace.open import load

if TYPE_CHECKING:
    from neurontools.profiler.capture.format import NeffProgram

pytestmark = [pytest.mark.torch, pytest.mark.slow]
pytest.importorskip("torch")
PROGRAM = Path(__file__).with_name("kernel_in_model.py")


def _run(device: str, program: Path, cache: Path, *options: str) -> str:
    """Return what neuron-run prints on a private trn2 machine."""
    command = [
        str(Path(sys.executable).with_name("neuron-run")),
        "--instance",
        "trn2.3xlarge",
        *options,
        "--",
        sys.executable,
        str(program),
        device,
    ]
    environ = {**os.environ, "NEURON_COMPILE_CACHE_URL": str(cache)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("device", ["xla", "neuron"])
def test_a_model_with_a_kernel_trains_as_torch_does(home: Path, tmp_path: Path, device: str) -> None:
    del home
    first = _run(device, PROGRAM, tmp_path / "cache")
    assert "kernels agree" in first
    again = _run(device, PROGRAM, tmp_path / "cache")
    assert "kernels agree" in again
    if device == "xla":
        assert len(re.findall("Call compiler with cmd", first)) > 0
        assert re.findall("Call compiler with cmd", again) == []
        changed = tmp_path / "changed.py"
        changed.write_text(
            PROGRAM.read_text().replace("nl.multiply, alpha, nl.add", "nl.multiply, alpha + 0.0, nl.add")
        )
        assert len(re.findall("Call compiler with cmd", _run(device, changed, tmp_path / "cache"))) > 0


@pytest.mark.parametrize("device", ["xla", "neuron"])
def test_a_profile_shows_the_instructions_of_kernels_within_the_step(
    home: Path, tmp_path: Path, device: str
) -> None:
    del home
    profile = tmp_path / "profile"
    _run(device, PROGRAM, tmp_path / "cache", "--profile", str(profile))
    trace = load(str(profile))
    lines = PROGRAM.read_text().splitlines()
    kernels = {name for program in trace.programs.values() if program for name in _kernels(program)}
    assert {name.rpartition("_")[0] for name in kernels} == {"nki.scale_and_add", "nki.count_up"}
    for program in filter(None, trace.programs.values()):
        for kernel in _kernels(program):
            own = [each for each in program.operations if each.name == f"{kernel}.default"]
            others = [each for each in program.operations if each.name != f"{kernel}.default"]
            numbers = [int(each.source.removeprefix(f"{PROGRAM}:")) for each in own]
            assert all("nisa" in lines[number - 1] or "nl." in lines[number - 1] for number in numbers)
            assert {each.engine.value for each in own} >= {"DMA", "Vector"}
            first = min(each.start_ns for each in own)
            last = max(each.start_ns + each.duration_ns for each in own)
            assert 0 < first < last <= program.total_ns
            assert all(
                each.start_ns >= last - 1 or each.start_ns + each.duration_ns <= first + 1 for each in others
            )
    text = critical_paths(trace)
    assert any("kernel_in_model.py:" in total.name for path in text for total in path.operators)


def _kernels(program: NeffProgram) -> set[str]:
    return {each.name.removesuffix(".default") for each in program.operations if each.name.startswith("nki.")}


def test_the_instructions_of_a_kernel_stand_within_those_of_the_graph() -> None:
    import torch

    from neurontools.compiler.compile import KERNELS, compile_graph
    from neurontools.compiler.graph import Node
    from neurontools.compiler.neff import parse
    from neurontools.machine.instances.catalogue import instance_type
    from neurontools.nki import torch_operator
    from neurontools.nki.program import schedule_of
    from tests.compiler.graphs import graph_of, tensor
    from tests.nki.launches import launch_of, scale

    before = set(KERNELS)
    data = torch.ones(128, 512)
    assert torch_operator.bind(scale, (data,), {}) is None  # plain kernels run tensors of the CPU
    assert torch.equal(_as_operator(scale, data), 2 * data)
    (operator,) = set(KERNELS) - before
    assert operator.startswith("nki.scale_")
    alone = schedule_of(launch_of(scale, data.numpy()).cores[0])
    views = [tensor(number, 128, 512) for number in range(4)]
    graph = graph_of(
        Node("aten.exp.default", (views[0],), (), (views[1],)),
        Node(operator, (views[1],), (), (views[2],)),
        Node("aten.exp.default", (views[2],), (), (views[3],)),
    )
    device = instance_type("trn2.48xlarge").device
    neff = parse(compile_graph(graph, device, ["--target=trn2"], "kernel"))
    (profiled,) = kernels_of(ProfiledProgram(neff, "kernel"))
    assert (profiled.name, profiled.positions) == ("scale", [1])
    cost = neff.cost
    rows = [row for row in cost.rows if row.operator == 1]
    first = rows[0].start_ns
    assert [(row.engine, row.opcode) for row in rows] == [
        (group.engine, group.instruction.opcode) for group in alone.groups
    ]
    for row, group in zip(rows, alone.groups, strict=True):
        assert row.start_ns - first == pytest.approx(group.start_ns - alone.groups[0].start_ns, abs=1)
        assert row.duration_ns == pytest.approx(group.end_ns - group.start_ns, abs=1)
        assert row.source == group.instruction.source
    ends = [row.start_ns + row.duration_ns for row in cost.rows if row.operator == 0]
    starts = [row.start_ns for row in cost.rows if row.operator == 2]
    last = max(row.start_ns + row.duration_ns for row in rows)
    assert max(ends) <= first + 1
    assert min(starts) >= last - 1


def _as_operator(kernel: Any, *args: Any) -> Any:
    """Return the results of a kernel that is called as an operator, on the CPU."""
    from neurontools.nki import torch_operator

    leaves, form, tensors = torch_operator.split((args, {}))
    return torch_operator.operator_for(kernel, leaves, form, tensors)(tensors)


def test_kernels_of_equal_source_differ_by_the_values_that_they_capture() -> None:
    import torch

    def times(factor: float) -> Any:
        @jit
        def kernel(a: Any) -> Any:
            out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
            nl.store(out, nl.multiply(nl.load(a), factor))
            return out

        return kernel

    ones = torch.ones(4, 4)
    assert [_as_operator(times(factor), ones)[0, 0].item() for factor in (2.0, 3.0, 2.0)] == [2.0, 3.0, 2.0]


def test_nested_arguments_and_results_keep_their_form() -> None:
    import torch

    @jit
    def kernel(pair: Any, options: Any) -> Any:
        made = []
        for source in (*pair, options["third"]):
            out = nl.ndarray(source.shape, source.dtype, buffer=nl.shared_hbm)
            nl.store(out, nl.multiply(nl.load(source), options["factor"]))
            made.append(out)
        return {"first": made[0], "rest": (made[1], [made[2]]), "count": 3}

    tensors = [torch.full((2, 2), value) for value in (1.0, 2.0, 3.0)]
    result = _as_operator(kernel, tensors[:2], {"third": tensors[2], "factor": 10.0})
    assert result["count"] == 3
    assert [part[0, 0].item() for part in (result["first"], result["rest"][0], result["rest"][1][0])] == [
        10,
        20,
        30,
    ]
