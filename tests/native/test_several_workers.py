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
        environ["NEURON_RT_NUM_CORES"] = str(count)  # as in AWS's example of a profile of several workers
        command = ("neuron-run", "--", *torchrun, str(_HERE / program), ".")
        done = tool(*command, env=environ)
        if "Gloo connectFullMesh failed" in done.stderr:  # torch's own backend, on a very busy computer
            done = tool(*command, env=environ)
        assert done.returncode == 0, done.stderr
        return [json.loads((home / f"rank{rank}.json").read_text()) for rank in range(count)]

    return run


@pytest.fixture
def seen(run_workers: Start) -> list[dict[str, Any]]:
    """What each check saw in each of four workers: they run all checks, because starting them takes most of the time."""
    if not _seen:
        _seen.extend(run_workers(4, "four_workers.py"))
    return _seen


def test_two_workers_train_like_one_and_name_a_lost_worker(run_workers):
    workers = run_workers(2, "native_worker.py")
    name = f"rank 1 (pid {workers[1].pop('pid')} on {os.uname().nodename})"
    del workers[0]["pid"]
    message = 'nrt_execute status={} message="{} of ranks 0,1: {}"'
    receive, no_answer, ended = "recv from rank 1", f"no answer in 1 s from {name}", f"{name} has ended"
    assert [seen.pop("lost") for seen in workers] == [
        [
            message.format(5, "all_reduce", no_answer),
            message.format(5, receive, no_answer),
            message.format(1200, receive, ended),
            message.format(1200, receive, ended),
        ],
        [],
    ]
    for rank, seen in enumerate(workers):
        differences = seen.pop("differences")
        assert list(differences) == [
            "data parallel",
            "data parallel by local rank",
            "compiled",
            "fully sharded",
            "tensor parallel",
            "tensor parallel, compiled",
        ]
        assert max(differences.values()) < 1e-6
        assert seen == {
            "backend": "neuron",
            "own device": ["neuron:0", 0],
            "cores": str(rank),
            "sum": 3.0,
            "parts": [0.0, 1.0],
            "compiled": [5.0, 5.0],
        }


@pytest.mark.parametrize(("order", "is_new"), [("before", True), ("after", False), ("never", False)])
def test_spawned_workers_have_the_core_of_their_rank(tool, home, torch_python, order, is_new):
    start(StartOptions(machine="default", instance_type="trn2.3xlarge"))
    environ = {**os.environ, "NEURONTOOLS_DEVICE": "neuron"}
    program = str(_HERE / "spawned_workers.py")
    python = "python" if is_new else torch_python
    done = tool("neuron-run", "--", python, program, order, env=environ)
    assert done.returncode == 0, done.stderr
    seen = [json.loads((home / f"rank{rank}.json").read_text()) for rank in range(2)]
    # The mean over the workers of 3 rows of 1 and of 2, for each of 8 weights.
    assert seen == [{"cores": str(rank), "gradient": 36.0} for rank in range(2)]


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


def test_compiled_draws_of_shards_are_those_of_eager_ones(seen):
    for of_worker in seen:
        same = [True, True, False, False]
        assert of_worker["random_numbers_in_graphs"] == {
            "dropout": same,
            "rand_like": same,
            "normal_": same,
            "bernoulli": same,
            "backward": True,
            "checkpoint": True,
        }


def test_attention_is_computed_where_its_shards_are(seen):
    for of_worker in seen:
        found = of_worker["attention_of_shards"]
        assert max(difference for difference, _ in found.values()) < 1e-5
        assert [stays for _, stays in found.values()] == [True, True, False, False, True, True]
        assert max(of_worker["context"].values()) < 1e-5


def test_batches_are_normalised_over_all_workers(seen):
    for of_worker in seen:
        assert max(of_worker["normalisation"]) < 1e-5


def test_fsdp_takes_the_local_rank_as_its_device(seen):
    for of_worker in seen:
        assert max(of_worker["sharded_by_local_rank"]) < 1e-5


def test_messages_arrive_by_sender_and_tag_however_late(seen):
    for rank, of_worker in enumerate(seen):
        before = (rank - 1) % 4
        assert of_worker["messages"] == {
            "ring": [before] * 2,
            "late": [before + 10] * 2,
            "tags": [[before + value] * 2 for value in (200, 300, 100)],
            "asked": {
                device: [False, False, True, True, [before + 100, before + 200]]
                for device in ("cpu", "neuron")
            },
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


def test_reductions_are_those_of_torch(seen):
    for rank, of_worker in enumerate(seen):
        assert of_worker["reductions"] == {
            "SUM": 10,
            "AVG": 2.5,
            "MAX": 4,
            "MIN": 1,
            "PRODUCT": 24,
            "BAND": 16,
            "BOR": 31,
            "torch.bfloat16": [4, 4],
            "torch.int64": [4, 4],
            "torch.uint8": [4, 4],
            "torch.bool": [True, True],
            "PREMUL_SUM": 5,
            "reduce": 10 if rank == 2 else None,
        }


@pytest.mark.parametrize("where", ["device", "host"])
def test_tensors_are_exchanged_in_equal_and_other_parts(seen, where):
    pairs = [[rank, rank] for rank in range(4)]
    growing = [[rank] * (rank + 1) for rank in range(4)]
    sizes = [[(rank + other) % 3 for other in range(4)] for rank in range(4)]
    for rank, of_worker in enumerate(seen):
        starts = [sum(sizes[other][:rank]) for other in range(4)]
        assert of_worker[f"collectives_on_the_{where}"] == {
            "broadcast": [1, 1],
            "all_gather": pairs,
            "all_gather uneven": growing,
            "all_gather_into_tensor": [0, 0, 1, 1, 2, 2, 3, 3],
            "gather": pairs if rank == 3 else [],
            "scatter": [10 * rank + 1] * 2,
            "reduce_scatter": [40 * rank + 6] * 2,
            "reduce_scatter uneven": [6] * (rank + 1),
            "reduce_scatter_tensor": [10 * rank + 1.5] * 2,
            "all_to_all": [[10 * rank + other] * 2 for other in range(4)],
            "all_to_all uneven": growing,
            "all_to_all_single": [10 * rank + other for other in (0, 0, 1, 1, 2, 2, 3, 3)],
            "all_to_all_single uneven": [
                10 * other + starts[other] + number
                for other in range(4)
                for number in range(sizes[other][rank])
            ],
        }


def test_collectives_are_coalesced_and_waited_for(seen):
    for of_worker in seen:
        gathered = [[0, 0, 1, 1, 2, 2, 3, 3], [0, 1, 2, 3]]
        assert of_worker["coalesced"] == [[6, 6], [6] * 3, [4, 4], [8, 8], *gathered, [6], [6, 6]]
        assert of_worker["asynchronous"] == [
            [True, True],
            [True, True, True],
            [[4, 4], [1, 1], [8, 8], [16, 16]],
        ]


def test_objects_reach_the_other_workers(seen):
    for rank, of_worker in enumerate(seen):
        assert of_worker["objects"] == [
            [{"rank": other} for other in range(4)],
            [2, "text"],
            [0, 1, 2, 3] if rank == 0 else None,
            [f"for {rank}"],
        ]


def test_groups_of_some_workers_have_collectives_of_their_own(seen):
    for rank, of_worker in enumerate(seen):
        mine = [rank % 2, rank % 2 + 2]
        assert of_worker["groups"] == {
            "odd": [sum(mine)] * 2,
            "half": [1, 1] if rank < 2 else [5, 5],
            "cast": [mine[1]] * 2,
            "names": mine,
            "sizes": [2, rank // 2, "neuron"],
            "ranks": mine,
            "monitored": "monitored_barrier is only implemented for GLOO backend.",
        }
        assert of_worker["again"] == 4


def test_functional_collectives_give_values_and_gradients(seen):
    for rank, of_worker in enumerate(seen):
        assert of_worker["functional_collectives"] == [
            [6] * 4,
            [other for other in range(4) for _ in range(4)],
            [1.5],
            [0, 1, 2, 3],
            [1] * 4,
            [(rank - 1) % 4] * 4,
            *[[3] * 4] * 2,
            [8] * 4,
            [10] * 4,
        ]
