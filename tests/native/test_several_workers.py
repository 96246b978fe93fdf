"""Programs with several workers on the device `neuron`, compared with one process."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from neurontools.machine.launch import start
from neurontools.machine.machine_config import StartOptions

pytestmark = pytest.mark.torch
_HERE = Path(__file__).parent
_seen: list[dict[str, Any]] = []
Start = Callable[[int, str], list[dict[str, Any]]]


@pytest.fixture
def run_workers(tool: Any, home: Path, torch_python: str) -> Start:
    """A function that runs a program in several workers, and returns what each of them has written."""

    def run(count: int, program: str) -> list[dict[str, Any]]:
        start(StartOptions(machine="default", instance_type="trn2.3xlarge"))
        torchrun = (torch_python, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={count}")
        environ = {**os.environ, "PYTHON_EXEC": torch_python, "NEURONTOOLS_DEVICE": "neuron"}
        done = tool("neuron-run", "--", *torchrun, str(_HERE / program), ".", env=environ, timeout=280)
        assert done.returncode == 0, done.stderr
        return [json.loads((home / f"rank{rank}.json").read_text()) for rank in range(count)]

    return run


@pytest.fixture
def seen(run_workers: Start) -> list[dict[str, Any]]:
    """What each check saw in each of four workers: they run all checks, because starting them takes most of the time."""
    if not _seen:
        _seen.extend(run_workers(4, "four_workers.py"))
    return _seen


def test_two_workers_train_like_one(run_workers):
    for rank, seen in enumerate(run_workers(2, "native_worker.py")):
        differences = seen.pop("differences")
        assert list(differences) == ["data parallel", "compiled", "fully sharded", "tensor parallel"]
        assert max(differences.values()) < 1e-6
        assert seen == {"backend": "neuron", "cores": str(rank), "sum": 3.0, "parts": [0.0, 1.0]}


def test_each_way_to_train_gives_the_weights_of_one_process(seen):
    for of_worker in seen:
        differences = of_worker["training"]
        assert 1e-4 < differences.pop("mixed precision") < 0.1
        assert len(differences) == 9
        assert max(differences.values()) < 1e-5, differences


def test_gradients_of_shards_are_accumulated_and_clipped(seen):
    for of_worker in seen:
        sharded, alone = of_worker["gradients_of_shards"]
        assert sharded == pytest.approx(alone, rel=1e-5)


def test_distributed_tensors_are_redistributed(seen):
    for of_worker in seen:
        assert of_worker["redistribution"] == {
            "partial": {"sum": 6, "avg": 1.5, "max": 3},
            "parts": {"sum": [2, 2, 6], "avg": [2, 2, 1.5], "max": [2, 2, 3]},
            "product": True,
        }


def test_shards_have_random_numbers_of_their_own_and_replicas_the_same(seen):
    for of_worker in seen:
        assert of_worker["random_numbers"] == {
            "all differ": 32,
            "repeated": True,
            "replicas are equal": [True, False, True, False],
            "as one process": True,
            "halves of dropout differ": True,
            "generator": True,
            "after": seen[0]["random_numbers"]["after"],
        }
        assert of_worker["compiled_random_numbers"]


def test_messages_arrive_by_sender_and_tag_however_late(seen):
    for rank, of_worker in enumerate(seen):
        before = (rank - 1) % 4
        assert of_worker["messages"] == {
            "ring": [before] * 2,
            "late": [before + 10] * 2,
            "tags": [[before + value] * 2 for value in (200, 300, 100)],
            "host": [True, True, [before]],
            "objects": ["text", {"rank": before}] if rank % 2 else [None, None],
        }


def test_pipelines_give_the_weights_of_one_process(seen):
    for of_worker in seen:
        differences = of_worker["pipelines"]
        assert list(differences) == ["GPipe", "1F1B", "interleaved"]
        assert max(differences.values()) < 1e-6


def test_checkpoints_are_loaded_by_other_shards_and_other_devices(seen):
    for of_worker in seen:
        differences = of_worker["checkpoints"]
        assert list(differences) == [
            "first",
            "first, next step",
            "later",
            "later, next step",
            "cpu",
            "one device",
            "tensor parallel",
            "from the first worker",
            "torch.save",
        ]
        assert max(differences.values()) < 1e-6, differences
