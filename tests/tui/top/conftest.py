"""Machines to look at: fixed snapshots, the same in every run; a real machine, a job on it, and a real terminal."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from neurontools.commands.top import main
from neurontools.machine import launch
from neurontools.machine.client import Client
from neurontools.machine.host import CpuTimes, HostSample
from neurontools.machine.launch import StartOptions
from neurontools.machine.pages.page import PageWriter
from neurontools.machine.snapshot import (
    LATENCY_BUCKETS,
    CoreUse,
    DeviceState,
    MemoryCategory,
    MemoryUse,
    ModelState,
    ProcessState,
    Snapshot,
)
from neurontools.tui.top.source import TimedSnapshot
from tests.tui.terminal import Terminal

MIB = 1 << 20
GIB = 1 << 30
SECOND_NS = 1_000_000_000


@dataclass(frozen=True)
class Job:
    """A process on `cores`, each busy for `busy[i]` of the interval."""

    pid: int
    tag: str
    cores: tuple[int, ...]
    busy: tuple[float, ...]
    flops_s: float = 4.2e12
    running: bool = True


Make = Callable[..., tuple[TimedSnapshot, TimedSnapshot]]


def process_at(job: Job, second: int) -> ProcessState:
    memory = MemoryUse(
        constants=300 * MIB,
        model_code=1200 * MIB,
        model_shared_scratchpad=256 * MIB,
        runtime_memory=3 * MIB,
        tensors=640 * MIB,
        dma_buffers=2 * MIB,
    )
    in_model = MemoryUse(constants=300 * MIB, model_code=1200 * MIB, tensors=128 * MIB)
    cores = tuple(
        CoreUse(
            core=core,
            busy_ns=round(busy * SECOND_NS) * second,
            executions=40 * second,
            flops=round(job.flops_s * busy) * second,
            gpsimd_ns=0,
            executing=busy > 0,
            memory=memory,
        )
        for core, busy in zip(job.cores, job.busy, strict=True)
    )
    models = tuple(
        ModelState(
            model_id=10001 + index,
            name=f"bert-large-train-{index}.neff",
            uuid=f"{core:032x}",
            core=core,
            running=job.running,
            memory=in_model,
        )
        for index, core in enumerate(job.cores)
    )
    return ProcessState(
        pid=job.pid,
        start_ticks=job.pid * 10,
        uid=1000,
        command=f"python train.py --rank {job.pid}",
        tag=job.tag,
        runtime_version="2.32.0",
        origin="recorded",
        uses_device=True,
        cores=cores,
        host_memory=MemoryUse(tensors=12 * MIB, dma_buffers=256 * 1024, application_memory=420 * MIB),
        models=models,
        status_counts=((0, 40 * second),),
        latency_counts=(0,) * LATENCY_BUCKETS,
        registered_ns=job.pid,
    )


def snapshot_at(
    second: int, devices: int, cores: int, jobs: tuple[Job, ...], instance: str, version: str
) -> Snapshot:
    return Snapshot(
        machine="default",
        source="sim",
        instance_type=instance,
        instance_id="i-0123456789abcdef0",
        lnc=1,
        lnc_applies=False,
        neuroncore_version=version,
        taken_ns=second * SECOND_NS,
        taken_unix_s=1_780_000_000.0 + second,
        started_unix_s=1_780_000_000.0,
        devices=tuple(
            DeviceState(
                index=index,
                bdf=f"0000:{index:02x}:1e.0",
                cpu_affinity="0-7",
                numa_node="0",
                connected_to=None,
                core_ids=tuple(range(index * cores, (index + 1) * cores)),
                memory_bytes=32 * GIB,
                memory_used_bytes=0,
            )
            for index in range(devices)
        ),
        processes=tuple(process_at(job, second) for job in jobs),
    )


@pytest.fixture
def job() -> type[Job]:
    return Job


@pytest.fixture
def ticks() -> Make:
    """Two ticks a second apart of a machine: `ticks(devices=16, cores=2, jobs=(...))`."""

    def make(
        devices: int = 1,
        cores: int = 2,
        jobs: tuple[Job, ...] = (),
        instance: str = "trn1.2xlarge",
        version: str = "v2",
    ) -> tuple[TimedSnapshot, TimedSnapshot]:
        def tick(second: int) -> TimedSnapshot:
            cpu = HostSample(
                capacity_s=8.0 * second,
                host=CpuTimes(2.4 * second, 0.8 * second),
                processes=tuple(
                    ((job.pid, job.pid * 10), CpuTimes(1.6 * second, 0.3 * second)) for job in jobs
                ),
            )
            return TimedSnapshot(snapshot_at(second, devices, cores, jobs, instance, version), cpu)

        return tick(1), tick(2)

    return make


@pytest.fixture
def training(ticks: Make) -> tuple[TimedSnapshot, TimedSnapshot]:
    """A trn1.32xlarge with a training job on most cores and an inference process that is paused."""
    busy = tuple(((37 * core) % 100) / 100 for core in range(28))
    return ticks(
        devices=16,
        cores=2,
        jobs=(
            Job(4021, "bert-pretrain", tuple(range(28)), busy, flops_s=21e12),
            Job(5117, "", (28, 29), (0.5681, 1.0)),
            Job(5203, "", (31,), (0.0,), running=False),
        ),
        instance="trn1.32xlarge",
    )


@pytest.fixture
def trn2(ticks: Make) -> tuple[TimedSnapshot, TimedSnapshot]:
    """A trn2.48xlarge of 64 logical cores, all in use."""
    busy = tuple(((53 * core + 11) % 101) / 101 for core in range(64))
    return ticks(
        devices=16,
        cores=4,
        jobs=(Job(257726, "", tuple(range(64)), busy, flops_s=60e12),),
        instance="trn2.48xlarge",
        version="v3d",
    )


@pytest.fixture
def single(ticks: Make) -> tuple[TimedSnapshot, TimedSnapshot]:
    """A trn1.2xlarge with one process on one of its two cores."""
    return ticks(jobs=(Job(3141, "mnist", (0,), (0.7342,)),))


@pytest.fixture
def top(capsys: pytest.CaptureFixture[str]) -> Callable[..., subprocess.CompletedProcess[str]]:
    """neuron-top without a terminal in this process, for what needs no process of its own: `top("--once")`."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        capsys.readouterr()
        try:
            code = main(arguments)
        except SystemExit as end:
            code = int(end.code or 0)
        out, err = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, code, out, err)

    return run


@pytest.fixture
def machine() -> launch.DaemonInfo:
    return launch.start(StartOptions(machine="default", instance_type="trn1.32xlarge"))


@pytest.fixture
def working(machine: launch.DaemonInfo) -> Iterator[PageWriter]:
    """A process (this one) that claims cores 2 and 3 and executes on core 3 without end."""
    with Client.connect() as client:
        registration = client.register(tag="busy-job", command="python train.py", cores=(2, 3))
        writer = PageWriter(registration.page_fd)
        writer.set_memory(1, MemoryCategory.TENSORS, 3 << 30)
        writer.begin(1)
        yield writer
        writer.close()
        os.close(registration.page_fd)
        client.unregister()


@pytest.fixture
def terminal(machine: launch.DaemonInfo) -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def start(*arguments: str, **options: object) -> Terminal:
        opened.append(Terminal(*arguments, **options))  # type: ignore[arg-type]
        return opened[-1]

    yield start
    for one in opened:
        one.close()
