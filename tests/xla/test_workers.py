"""Several workers: collectives, training, spawned workers, and workers that hang or end."""

from __future__ import annotations

import itertools
import json
import logging
import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist

from neurontools.collectives.model import modelled_time
from neurontools.machine.client import Client
from neurontools.machine.instances.catalogue import instance_type
from neurontools.machine.launch import start
from neurontools.machine.machine_config import StartOptions
from neurontools.runtime.status import NrtError
from neurontools.xla.distributed import collectives, process_group, worker_group, workers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.xla.conftest import InMemoryAccelerator

pytestmark = pytest.mark.torch

CHECKS = Path(__file__).parent / "worker_checks.py"
SPAWNS = Path(__file__).parent / "worker_spawns.py"
NODES = Path(__file__).parent / "worker_nodes.py"
ENDS = Path(__file__).parent / "worker_ends.py"
AVERAGING = Path(__file__).parent / "worker_averaging.py"
X = [[1.0, 2.0], [2.0, 2.0]]
"""A tensor of each rank; MATRIX is another one."""
MATRIX = [[[0.0, 1.0], [2.0, 3.0]], [[10.0, 11.0], [12.0, 13.0]]]


def program(*command: str, **environ: str) -> subprocess.CompletedProcess[str]:
    bin_directory = os.path.dirname(sys.executable)
    return subprocess.run(
        [f"{bin_directory}/neuron-run", "--", *command],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={**os.environ, **environ},
    )


@pytest.mark.slow
def test_two_workers_of_torchrun(home: Path, torch_python: str) -> None:
    start(StartOptions(machine="default", instance_type="trn1.2xlarge"))
    saved = home / "saved"
    saved.mkdir()
    started = ("--standalone", "--nproc_per_node=2", str(CHECKS))
    result = program("torchrun", *started, CHECKS_PATH=str(saved), PYTHON_EXEC=torch_python)
    assert result.returncode == 0, result.stderr
    seen = [json.loads((saved / f"rank{rank}.json").read_text()) for rank in range(2)]
    for rank, own in enumerate(seen):
        assert own["ranks"] == [rank, rank, rank, 2, 2, 2]
        assert own["master"] is (rank == 0)
        assert own["cores"] == [rank]
        assert own["visible"] == str(rank)
        assert own["shown"] == [[0], [1]]
        check_xm(own["xm"], rank)
        check_dist(own["dist"], rank)
        # One graph a step: nothing is compiled after the steps in which the optimizer gets its state.
        assert own["compiled"] == {"optimizer_step": 0, "ddp": 0, "fsdp": 0, "tensor parallel": 0}
        assert own["fsdp"] < 1e-6
        assert own["fsdp wrapped"] == [True, True, True, False, True]
        assert own["fsdp layers"] == ["XlaFullyShardedDataParallel", "ReLU"]
        assert own["fsdp recomputed"] < 1e-6
        assert own["fsdp parts"] == [[24], [4], [12], [2]]  # 48, 8, 24 and 3 numbers, divided by two
        # All gradients, 83 numbers, are one collective of the graph, with the time that nccom-test shows.
        modelled_ns = round(modelled_time("all_reduce", 83 * 4, 2, "trn1.2xlarge").time_s * 1e9)
        name, opcode = "neurontools.all_reduce_.default", "PSEUDO_TRIGGER_COLLECTIVE"
        assert own["graph"] == [name, opcode, modelled_ns, True]
        assert own["parts"] == [[4, 6], [4], [2, 8], [2]]  # 8, 8, 3 and 3 rows, divided by two
        for same, difference in own["train"].values():
            assert same
            assert difference < 1e-6
    assert "all.pt" in seen[0]["saved"]
    # Both workers need the same graphs: each is compiled by one of them and found by the other.
    entries = list(Path(os.environ["NEURON_COMPILE_CACHE_URL"]).glob("*/MODULE_*/model.neff"))
    assert result.stderr.count("Call compiler with cmd") == len(entries) > 10


def check_xm(seen: dict[str, Any], rank: int) -> None:
    assert seen == {
        "sum": [3, 4],
        "kept": X[rank],
        "scaled": [1.5, 2],
        "max": [2, 2],
        "min": [1, 2],
        "mul": [2, 4],
        "or": [3],
        "and": [1],
        "bf16": [3],
        "int16": [3],
        "list": [[1.5], [5, 0]],
        "same list": True,
        "alone": X[rank],
        "gather": MATRIX[0] + MATRIX[1],
        "gather 1": [[0, 1, 10, 11], [2, 3, 12, 13]],
        "scatter": [[10, 12], [14, 16]][rank : rank + 1],
        "scatter 1": [[[5], [7]], [[6], [8]]][rank],
        "all to all": [MATRIX[0][rank], MATRIX[1][rank]],
        "all to all 1": [MATRIX[0][rank] + MATRIX[1][rank]],
        "permute": X[1 - rank],
        "one way": [[0, 0], X[0]][rank],
        "rendezvous": ["rank 0", "rank 1"],
        "mesh": [3, 4],
        "broadcast": X[1],
    }


def check_dist(seen: dict[str, Any], rank: int) -> None:
    assert seen == {
        "mean": [1.5, 2],
        "product": [2, 4],
        "broadcast": X[1],
        "gather list": X,
        "gather": X[0] + X[1],
        "stacked": X,
        "scatter": [[10, 12], [14, 16]][rank : rank + 1],
        "scatter list": [[10, 12], [14, 16]][rank],
        "all to all": [MATRIX[0][rank], MATRIX[1][rank]],
        "all to all list": [[value + 100 * rank for value in row] for row in X],
        "gather at 0": X if rank == 0 else None,
        "scattered": [value + 10 * rank for value in X[0]],
        "reduced": [3, 4] if rank == 0 else None,
        "cpu": [3],
        "objects": [{"rank": 0}, {"rank": 1}],
        "object": ["from 0"],
        "sent": [7 * value for value in X[0]] if rank else [0, 0],
        "around": X[1 - rank],
        "alone": X[rank],
    }


@pytest.mark.slow
def test_two_machines_with_two_workers_each(home: Path, torch_python: str) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]

    def node(number: int) -> subprocess.CompletedProcess[str]:
        start(StartOptions(machine=f"node{number}", instance_type="trn1.2xlarge"))
        where = f"--nnodes=2 --nproc_per_node=2 --master_addr=127.0.0.1 --master_port={port}".split()
        return program(
            *(torch_python, "-m", "torch.distributed.run"),
            *(*where, f"--node_rank={number}", str(NODES), str(home)),
            NEURONTOOLS_MACHINE=f"node{number}",
            PYTHON_EXEC=torch_python,
        )

    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(node, range(2)))
    assert [result.returncode for result in results] == [0, 0], results
    for rank in range(4):
        assert json.loads((home / f"rank{rank}.json").read_text()) == {
            "local rank": rank % 2,
            "cores": [rank % 2],
            "sum": [10, 8],
            "scaled": [[5, 4], [5, 4]],
            "node": [3, 4] if rank < 2 else [7, 4],
            "gather": [1, 2, 2, 2, 3, 2, 4, 2],
            "scatter": [[4 * number for number in range(4 * rank, 4 * rank + 4)]],
            "all to all": [rank, rank + 10, rank + 20, rank + 30],
            "permute": [(rank - 1) % 4 + 1, 2],
            "around": [(rank - 1) % 4 + 1, 2],
            "broadcast": [[3, 3], [3]],
            "rendezvous": ["0", "1", "2", "3"],
        }


@pytest.mark.slow
def test_hierarchical_sgd_on_a_slow_core_averages_as_it_does_over_gloo(home: Path, torch_python: str) -> None:
    start(StartOptions(machine="default", instance_type="trn1.32xlarge"))
    with Client.connect() as client:
        client.inject("slow-core", core=2, factor=3.0)
    result = program(
        *(torch_python, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=4"),
        *(str(AVERAGING), str(home)),
        PYTHON_EXEC=torch_python,
    )
    assert result.returncode == 0, result.stderr
    with Client.connect() as client:
        (slow,) = client.faults()
    assert slow.hits >= 16  # eight steps in each of two modes
    for rank in range(4):
        seen = json.loads((home / f"rank{rank}.json").read_text())
        # Steps 0 and 1 are synchronous SGD; then all four average after steps 4, and pairs after steps 2 and 6.
        alone, pairs, everyone = [0, 1, 2, 3], [0, 0, 2, 2], [0, 0, 0, 0]
        steps = [everyone, everyone, pairs, alone, everyone, alone, pairs, alone]
        assert seen["local gradients"]["sharing"] == steps
        together = [pairs if step == alone else step for step in steps]
        assert seen["gradients in pairs"]["sharing"] == together
        for of_mode in seen.values():
            assert of_mode["gloo"] == of_mode["sharing"]
            assert of_mode["difference"] < 1e-6


@pytest.mark.slow
def test_spawned_workers_that_hang_and_end_are_named(home: Path, torch_python: str) -> None:
    start(StartOptions(machine="default", instance_type="trn1.2xlarge"))
    result = program(torch_python, str(SPAWNS), str(home))
    seen = json.loads((home / "rank0.json").read_text())
    name = f"rank 1 (pid {seen['pid of 1']} on {os.uname().nodename})"
    assert seen["sum"] == 3
    message = 'nrt_execute status={} message="all_reduce of ranks 0,1: {}"'
    assert seen["hang"] == message.format(5, f"no answer in 1 s from {name}")
    assert seen["end"] == message.format(1200, f"{name} has ended")
    assert "process 1 terminated with exit code 3" in result.stderr
    assert "Unsupported nprocs (3)." in result.stdout
    with Client.connect() as client:
        assert client.snapshot().processes == ()


def test_a_worker_that_ends_is_named_however_it_ends_and_whatever_waits_for_it(
    home: Path, torch_python: str
) -> None:
    ways = ("exit slowly", "raise", "kill", "exit at once")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        common = {
            **os.environ,
            "MASTER_PORT": str(unused.getsockname()[1]),
            "WORLD_SIZE": "5",
            "LOCAL_WORLD_SIZE": "5",
        }
    command = [torch_python, str(ENDS), str(home), *ways]
    own = [
        subprocess.Popen(command, env={**common, "RANK": str(rank)}, stderr=subprocess.DEVNULL)
        for rank in range(5)
    ]
    assert [process.wait(240) for process in own] == [0, 0, 1, -9, 3]
    errors = json.loads((home / "errors.json").read_text())
    assert len(errors) == 20
    for name, error in errors.items():
        assert error.endswith(': the other has ended"'), name


@pytest.fixture
def alone(machine: InMemoryAccelerator, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    values = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    worker_group.replace(None)
    process_group.register()
    yield
    if dist.is_initialized():
        dist.destroy_process_group()
    worker_group.replace(None)


def test_one_worker_needs_no_other(alone: None, machine: InMemoryAccelerator) -> None:
    dist.init_process_group("xla", init_method="xla://")
    x = torch.tensor([1.0, 2.0], device="xla")
    dist.all_reduce(x)
    dist.broadcast(x, src=0)
    gathered = torch.zeros(2, device="xla")
    dist.all_gather_single(gathered, x)
    dist.barrier()
    collectives.all_reduce_([x], "sum", 0.5)
    assert x.tolist() == [0.5, 1]
    assert gathered.tolist() == [1, 2]
    assert collectives.all_to_all(x).tolist() == [0.5, 1]
    assert collectives.reduce_scatter(x, "sum", 2.0).tolist() == [1, 2]
    assert collectives.collective_permute(x, [(0, 0)]).tolist() == [0.5, 1]
    assert worker_group.current().group((0,)).gather_bytes(b"") == [b""]
    ops = {node.op for graph in machine.graphs for node in graph.nodes}
    assert not {op for op in ops if op.startswith("neurontools.")} - {
        "neurontools.collective_permute.default"
    }


def test_invalid_requests_are_refused(alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(3, device="xla")
    with pytest.raises(ValueError, match="Invalid reduce type: avg"):
        collectives.all_reduce_([x], "avg")
    with pytest.raises(ValueError, match="name processes that do not exist: the run has 1"):
        collectives.all_gather(x, groups=[[0, 1]])
    worker_group.replace(None)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("MASTER_ADDR")
    with pytest.raises(workers.WorkerError, match="WORLD_SIZE is 2 but MASTER_ADDR is not set"):
        collectives.all_gather(x)


@pytest.mark.parametrize(
    ("environ", "cores"),
    [
        ({}, None),
        ({"LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "8"}, "3"),
        ({"LOCAL_RANK": "0"}, "0"),
        ({"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "NEURON_RT_VISIBLE_CORES": "4-5"}, "5"),
        ({"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "NEURON_RT_NUM_CORES": "4"}, "4-7"),
    ],
)
def test_a_worker_has_the_core_of_its_local_rank(environ: dict[str, str], cores: str | None) -> None:
    for _ in range(2):  # the second time, for a child of the worker, nothing changes
        workers.assign_core(environ)
        assert environ.get("NEURON_RT_VISIBLE_CORES") == cores


def test_a_worker_has_its_rank_as_a_tag_unless_the_program_has_one() -> None:
    environ = {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "4", "RANK": "3"}
    tagged = {**environ, "NEURON_PROCESS_TAG": "mine"}
    alone = {"LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    for values in (environ, tagged, alone):
        workers.assign_core(values)
    assert environ["NEURON_PROCESS_TAG"] == "rank3"
    assert tagged["NEURON_PROCESS_TAG"] == "mine"
    assert "NEURON_PROCESS_TAG" not in alone


def test_workers_that_torchrun_restarts_do_not_find_the_processes_of_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = dist.HashStore()  # torchrun keeps it
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")

    def start_process(rank: int, restarts: int) -> worker_group.Communicator:
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", str(restarts))
        monkeypatch.setattr(worker_group, "_numbers", itertools.count())  # of a new process
        return worker_group.Communicator(store, rank, 2, timedelta(seconds=1))

    first = [start_process(rank, restarts=0) for rank in range(2)]
    assert first[1].peer(0)
    second = start_process(1, restarts=1)
    assert second.peer(0) is None
    start_process(0, restarts=1)
    assert second.peer(0)


def test_visible_cores_have_to_be_as_many_as_the_workers() -> None:
    environ = {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "NEURON_RT_VISIBLE_CORES": "0-3"}
    with pytest.raises(ValueError, match="NEURON_RT_VISIBLE_CORES=0-3 names 4 cores for 2 workers"):
        workers.assign_core(environ)
    environ["NEURON_RT_VISIBLE_CORES"] = "x"
    with pytest.raises(NrtError, match="malformed"):
        workers.assign_core(environ)


@pytest.mark.parametrize(
    ("count", "world", "choices"),
    [(2, 2, ""), (3, 3, "1 or 2 or 8 or 32 workers;"), (8, 16, "32 workers per node;"), (32, 64, "")],
)
def test_a_number_of_workers_that_the_real_instance_refuses_is_warned_about(
    count: int, world: int, choices: str, caplog: pytest.LogCaptureFixture
) -> None:
    environ = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": str(count), "WORLD_SIZE": str(world)}
    with caplog.at_level(logging.WARNING):
        workers.check_worker_count(instance_type("trn1.32xlarge"), 1, environ)
    assert (choices in caplog.text) if choices else not caplog.text
