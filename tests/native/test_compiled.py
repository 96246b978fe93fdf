"""torch.compile on the device `neuron`: training steps, what is run again, messages, operators in Python, other backends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from neurontools.machine.launch import start
from neurontools.machine.machine_config import StartOptions

pytestmark = pytest.mark.torch
CHECKS = Path(__file__).with_name("compiled_checks.py")
STATIC = "torch.compile(backend='neuron') does not support dynamic=True or dynamic dimensions"
_seen: dict[str, Any] = {}


@pytest.fixture
def seen(tool: Any, home: Path, torch_python: str) -> dict[str, Any]:
    """What each check saw: one process runs them all."""
    if not _seen:
        start(StartOptions(machine="default", instance_type="trn2.3xlarge"))
        run = tool("neuron-run", "--", torch_python, "-W", "ignore", str(CHECKS), "seen.json")
        assert run.returncode == 0, run.stderr
        _seen.update(json.loads((home / "seen.json").read_text()))
        assert [value["error"] for value in _seen.values() if "error" in value] == []
    return _seen


def test_a_whole_training_step_has_the_numbers_of_the_cpu_in_three_executions(seen):
    counted = seen["whole_step"]["counted"]
    assert seen["whole_step"]["same"]
    assert seen["whole_step"]["steps"] == 5
    assert counted[-2:] == [[0, 3], [0, 3]]  # forward, backward, optimizer


def test_a_step_in_one_function_has_the_numbers_of_the_cpu_in_one_execution(seen):
    assert seen["step_in_one_function"] == {"same": True, "counted": [1] * 4}


def test_a_graph_that_makes_uninitialised_tensors_is_recorded_once(seen):
    expected = {"recordings": 1, "same": True, "used": 3 * 2 * 3 * 4, "left": 0}
    assert seen["uninitialised_tensors"] == [expected] * 2


def test_a_graph_of_views_alone_is_recorded_once_and_never_executed(seen):
    assert seen["views_alone"] == [1, 0, True]


def test_attention_is_the_one_that_the_cpu_chooses(seen):
    assert seen["attention"] == [True] * 3


def test_flexible_attention_has_the_numbers_of_attention_with_a_mask(seen):
    assert seen["flexible_attention"] == [True] * 3  # eager, compiled, compiled again


def test_a_forward_graph_saves_no_views(seen):
    assert sorted(seen["saved_tensors"]) == [[2, 3], [2, 4], [5, 4]]


def test_a_checkpoint_draws_the_same_random_numbers_again(seen):
    assert seen["replayed_dropout"] == {"same": True, "executions": 3}  # one of them for the sum


def test_operators_with_effects_run(seen):
    assert seen["effects"] == [[[0.5, 0], [0, 0.25]]] * 2


def test_a_model_without_gradients_is_one_execution(seen):
    assert seen["inference"] == [[1, False]] * 2 + [[1, True]] * 2


def test_changes_of_inputs_that_share_storage_are_those_of_the_cpu(seen):
    found = seen["changed_and_shared_inputs"]
    assert found == {"same": [True] * 7, "versions": [1] * 6, "view": [7, 7]}


def test_a_replaced_parameter_is_read(seen):
    assert seen["replaced_parameter"] == [[[2, 2]], [[4, 4]], [[6, 6]]]


def test_code_that_reads_values_or_draws_numbers_runs_each_time(seen):
    found = seen["what_is_not_repeated"]
    assert found == {"drawn": 4, "chosen": [1, 1, -1, 1], "sums": [1, 3, 3], "dropout": True}


def test_numbers_on_the_cpu_are_written_back(seen):
    assert seen["numbers_of_the_cpu"] == {"seen": [[1, 1], [2, 2], [3, 3]], "count": 3, "device": "cpu"}


def test_inputs_on_the_cpu_get_their_gradients_there(seen):
    assert seen["gradients_of_the_cpu"] == [[4, 4], "cpu"]


def test_a_compiled_optimizer_is_not_recorded_again_for_its_numbers_on_the_cpu(seen):
    found = seen["numbers_of_an_optimizer"]
    assert (found["same"], found["steps"]) == (True, [5, "cpu"])
    executions, versions, recordings = zip(*found["counted"], strict=True)
    assert executions[-3:] == (1, 1, 1)
    assert min(versions) > 0
    assert recordings[-3:] == (0, 0, 0)


def test_each_shape_has_a_graph_and_dynamic_ones_are_refused_with_the_line(seen):
    found = seen["shapes"]
    for name in ("dynamic", "marked"):
        place, reason = found.pop(name).splitlines()[1].split(": ", 1)[1].split(": ", 1)
        assert reason == STATIC
        assert place.startswith(f"{CHECKS}:")
    assert found == {"many": [27, 30, 33], "results": [4, 6, 4, 8], "graphs": 3, "logged": 2, "others": True}


def test_failures_name_the_line_first(seen):
    found = seen["failures"]
    kind, place, reason = found["complex"].split(": ", 2)
    assert (kind, reason.split(":")[0]) == (
        "CompileError",
        "[NCC_EVRF004] Complex data types are not supported",
    )
    assert place.startswith(f"{CHECKS}:")
    assert found["large"].startswith(f"DeviceMemoryError: {CHECKS}:")
    assert found["large"].endswith('message="Allocation Failure"')
    assert found["broken"] == "Unsupported: Call to `torch._dynamo.graph_break()`"
    assert found["triton"] == "DeviceError: Triton kernels do not run on the device neuron"
    assert found["sparse"][0].startswith(
        "DeviceError: aten._to_sparse.default returns a tensor of layout torch.sparse_coo"
    )
    assert found["sparse"][1] == found["sparse"][0]
    assert found["after"] == [2]


def test_operators_in_python_run_on_the_device_or_on_the_cpu_each_time(seen):
    assert seen["operators_in_python"] == {
        "anywhere": [[3, 5, 7], ["neuron"] * 3],
        "on_cpu": [[3, 5, 7], ["cpu"] * 3],
        "both": [[3, 5, 7], ["own neuron"] * 3],
    }


def test_a_backend_of_another_package_works_beside_ours(seen):
    assert seen["another_backend"] == {
        "values": [[0, 1, 4], [0, 2, 8], [0, 2, 8], [1, 4, 9]],
        "devices": ["neuron:0", "cpu"],
        "graphs": 2,
        "listed": ["doubling", "neuron"],
        "through ours": [0, 1, 4],
    }


def test_launch_blocking_runs_each_operator_at_once_and_a_compiled_graph_as_one(seen):
    assert seen["launch_blocking"] == [2, 1, 1, 0, 0]


def test_operators_of_compiled_graphs_have_lines_and_layers(seen):
    layers = [["addmm", "layer"], ["mm", "layer (backward)"], ["sum", "layer (backward)"]]
    assert seen["lines"] == {"layers": layers, "lines": True}
