"""Kernels in models: the losses of torch's formula on both devices, and NEFFs that the next run finds in the cache."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from neurontools.compat.nki import jit
from neurontools.compat.nki import language as nl
from neurontools.machine.launch import start
from neurontools.machine.machine_config import StartOptions
from neurontools.profiler.advice.rules_kernel import kernels_of
from neurontools.profiler.advice.subject import ProfiledProgram
from neurontools.profiler.analysis.programs import critical_paths
from neurontools.profiler.trace.open import load

if TYPE_CHECKING:
    from neurontools.profiler.capture.format import NeffProgram

pytestmark = pytest.mark.torch
pytest.importorskip("torch")
PROGRAM = Path(__file__).with_name("kernel_in_model.py")
WORKER = Path(__file__).with_name("kernel_worker.py")
CHECKS = "training in_place compiled_kernel wrapped operator gradients declared_output first_generation warnings_of_each_line"
COMPILES = "Call compiler with cmd"
Tool = Callable[..., Any]


@pytest.fixture
def machine(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A trn2 machine, whose target kernels have without a variable."""
    monkeypatch.delenv("NEURON_PLATFORM_TARGET_OVERRIDE")
    start(StartOptions(machine="default", instance_type="trn2.3xlarge"))
    return home


def _run(tool: Tool, python: str, device: str, factor: int, *checks: str) -> str:
    arguments = (str(PROGRAM), device, str(factor), *checks)
    done = tool("neuron-run", "--", python, "-W", "ignore", *arguments, timeout=280)
    assert done.stdout.strip() == (" ".join(checks) or CHECKS), done.stdout + done.stderr
    return str(done.stderr)


@pytest.mark.slow
def test_models_with_kernels_compute_as_torch_does_and_are_found_in_the_cache(tool, machine, torch_python):
    first = _run(tool, torch_python, "xla", 3)
    assert COMPILES in first
    assert first.count("elements were never written") == 1  # of three executions
    assert COMPILES not in _run(tool, torch_python, "xla", 3, "training")

    assert COMPILES in _run(tool, torch_python, "xla", 4, "training")
    why = tool("neuron-cache", "why", "--last", "--json")
    causes = {cause["text"] for miss in json.loads(why.stdout)["misses"] for cause in miss["causes"]}
    assert "kernel scale_and_add of kernel_in_model.py: captured value FACTOR: 3.0 -> 4.0" in causes


@pytest.mark.slow
def test_kernels_run_on_the_native_device(tool, machine, torch_python):
    assert COMPILES in _run(tool, torch_python, "neuron", 3)


@pytest.mark.slow
def test_kernels_of_two_workers_exchange_data(tool, machine, torch_python):
    torchrun = (torch_python, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")
    environ = {**os.environ, "PYTHON_EXEC": torch_python, "NEURON_RT_NUM_CORES": "2"}
    done = tool("neuron-run", "--", *torchrun, str(WORKER), env=environ, timeout=280)
    assert done.returncode == 0, done.stderr
    workers = [json.loads((machine / f"rank{rank}.json").read_text()) for rank in range(2)]
    for rank, seen in enumerate(workers):
        assert seen == {
            "all_reduce": 3.0,
            "all_gather": [[1.0, 2.0]],
            "reduce_scatter": [2, 3.0],
            "collective_permute": 2.0 - rank,
            "two cores": [3.0, 3.0],
            "losses": workers[0]["losses"],
        }


@pytest.mark.slow
@pytest.mark.parametrize("device", ["xla", "neuron"])
def test_a_profile_shows_the_instructions_of_kernels_within_the_step(
    tool, machine, torch_python, tmp_path, device
):
    profile = tmp_path / "profile"
    arguments = (str(PROGRAM), device, "3", "training", "in_place")
    done = tool(
        "neuron-run", "--profile", str(profile), "--", torch_python, "-W", "ignore", *arguments, timeout=280
    )
    assert done.returncode == 0, done.stderr
    trace = load(str(profile))
    lines = PROGRAM.read_text().splitlines()
    kernels = {name for program in trace.programs.values() if program for name in _kernels(program)}
    assert {name.split(".")[1] for name in kernels} == {"scale_and_add", "count_up"}
    for program in filter(None, trace.programs.values()):
        for kernel in _kernels(program):
            own = [each for each in program.operations if each.name == kernel]
            others = [each for each in program.operations if each.name != kernel]
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
    return {each.name for each in program.operations if each.name.startswith("nki.")}


def test_the_instructions_of_a_kernel_stand_within_those_of_the_graph():
    import torch

    from neurontools.compiler.compile import KERNELS, compile_graph
    from neurontools.compiler.graph import Node
    from neurontools.compiler.neff import parse
    from neurontools.machine.instances.catalogue import instance_type
    from neurontools.nki.program import schedule_of
    from tests.compiler.graphs import graph_of, tensor
    from tests.nki.launches import launch_of, scale

    before = set(KERNELS)
    data = torch.ones(128, 512)
    assert torch.equal(scale(data), 2 * data)  # plain kernels run tensors of the CPU
    assert set(KERNELS) == before
    assert torch.equal(_as_operator(scale, data), 2 * data)
    ((operator, constants, tensors),) = set(KERNELS) - before
    assert operator == "nki.scale.in1_out1"
    assert dict(constants)["arguments"] == ("x=tensor 0",)
    assert tensors == (("float32", (128, 512)),)
    alone = schedule_of(launch_of(scale, data.numpy()).cores[0])
    views = [tensor(number, 128, 512) for number in range(4)]
    graph = graph_of(
        Node("aten.exp.default", (views[0],), (), (views[1],)),
        Node(operator, (views[1],), constants, (views[2],)),
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


def test_kernels_of_equal_source_differ_by_the_values_that_they_capture():
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


def test_nested_arguments_and_results_keep_their_form():
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


def test_a_trial_prints_no_elements_and_does_not_stop(capsys, monkeypatch):
    import torch

    stops: list[int] = []
    monkeypatch.setattr("sys.breakpointhook", lambda: stops.append(1))

    @jit
    def kernel(a: Any) -> Any:
        out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
        tile = nl.load(a)
        breakpoint()  # noqa: T100
        print("tile is", tile)  # noqa: T201
        nl.device_print("on the device", tile)
        nl.store(out, tile)
        return out

    _as_operator(kernel, torch.full((1, 2), 5.0))
    lines = capsys.readouterr().out.splitlines()
    assert stops == [1]
    assert [line for line in lines if not line.startswith("tile is")] == [
        "no elements yet: the kernel is traced on zeros",
        "[[5. 5.]]",
        "on the device [[5. 5.]]",
    ]


@pytest.mark.parametrize("is_operator", [True, False], ids=["on the device", "on the CPU"])
def test_a_function_mode_of_the_program_sees_nothing_that_runs_a_kernel(is_operator):
    import torch
    from torch.overrides import TorchFunctionMode

    @jit
    def kernel(a: Any) -> Any:
        out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
        nl.store(out, nl.multiply(nl.load(a), 2.0))
        return out

    class Forbidden(TorchFunctionMode):
        """As a recording refuses to read values."""

        def __torch_function__(self, func, types, args=(), kwargs=None):
            assert func not in {torch.Tensor.numpy, torch.Tensor.cpu, torch.Tensor.item}
            return func(*args, **(kwargs or {}))

    ones = torch.ones(2, 4)
    with Forbidden():
        result = _as_operator(kernel, ones) if is_operator else kernel(ones)
    assert result.tolist() == (2 * ones).tolist()
