"""Snapshots of machines made by hand, golden files, and a stand-in for the daemon that says what a test wants."""

from __future__ import annotations

import os
import socket
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from neurontools import paths
from neurontools.machine.devices import device_states
from neurontools.machine.instances.catalogue import instance_type
from neurontools.machine.machine_config import HOST, MachineConfig
from neurontools.machine.snapshot import CoreUse, MemoryUse, ProcessState, Snapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

GOLDEN = Path(__file__).parent / "golden"

TRAINING = "python -m torch.distributed.run --nproc_per_node=2 train_llama.py --steps 1000 --batch-size 8 --sequence 4096"


@dataclass(frozen=True)
class Job:
    """A process to put on a machine; without cores it only looks at it."""

    pid: int
    command: str
    cores: tuple[int, ...] = ()
    runtime_version: str = "2.34.10"


@pytest.fixture(scope="session")
def make() -> Callable[..., Snapshot]:
    """Return `make(instance type, jobs, lnc=..., neighbours=..., visible=..., instance_id=...)`."""
    return _snapshot


@pytest.fixture(scope="session")
def busy_jobs() -> Callable[..., tuple[Job, ...]]:
    """Return the jobs of a machine with two processes on device 0, more if it is large, and one that looks on."""
    return _busy_jobs


@pytest.fixture
def golden() -> Callable[[str, bytes], bytes]:
    """Return the contents of a golden file; WRITE_GOLDEN=1 writes what was rendered first."""

    def read(name: str, rendered: bytes) -> bytes:
        path = GOLDEN / name
        if os.environ.get("WRITE_GOLDEN") == "1":
            path.write_bytes(rendered)
        assert path.exists(), f"no golden file {name}: WRITE_GOLDEN=1 writes it"
        return path.read_bytes()

    return read


@pytest.fixture(scope="session")
def job() -> type[Job]:
    """Return the class of what `make` puts on a machine."""
    return Job


@pytest.fixture
def capture() -> Callable[[str], bytes]:
    """Return what the reference shows of the real tool, by the name of its file without its ending."""
    return lambda name: (GOLDEN / f"{name}.txt").read_bytes()


class StandIn:
    """Answers every connection with the same bytes and keeps what it was asked."""

    def __init__(self, path: str, reply: bytes, *, hang: bool = False) -> None:
        self.requests: list[bytes] = []
        self._reply = reply
        self._hang = hang
        self._open: list[socket.socket] = []
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen(64)
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        for connection in self._open:
            connection.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            request = b""
            while not request.endswith(b"\n"):
                part = connection.recv(4096)
                if not part:
                    break
                request += part
            self.requests.append(request)
            if self._hang:
                self._open.append(connection)
                continue
            try:
                connection.sendall(self._reply)
            except OSError:
                pass
            connection.close()


@pytest.fixture
def stand_in() -> Iterator[Callable[..., StandIn]]:
    """Return `stand_in(reply)`: a listener where the daemon would listen."""
    started: list[StandIn] = []

    def start(reply: bytes, machine: str = "default", **options: bool) -> StandIn:
        started.append(StandIn(paths.socket_path(machine), reply, **options))
        return started[-1]

    yield start
    for one in started:
        one.close()


def _snapshot(
    name: str,
    jobs: tuple[Job, ...] = (),
    *,
    lnc: int | None = None,
    neighbours: str = HOST,
    visible: tuple[int, ...] | None = None,
    instance_id: str = "i-0bea223b1afb7e159",
) -> Snapshot:
    instance = instance_type(name)
    kind = MachineConfig(instance.name, lnc or instance.device.lnc_default, neighbours, visible)
    return Snapshot(
        machine="default",
        source="sim",
        instance_type=instance.name,
        instance_id=instance_id,
        lnc=kind.lnc,
        lnc_applies=instance.lnc_applies,
        neuroncore_version=instance.device.core.monitor_version(kind.lnc),
        taken_ns=0,
        taken_unix_s=0.0,
        started_unix_s=0.0,
        devices=device_states(kind, instance),
        processes=tuple(_process(job) for job in jobs),
    )


def _process(job: Job) -> ProcessState:
    idle = CoreUse(0, 0, 0, 0, 0, executing=False, memory=MemoryUse())
    return ProcessState(
        pid=job.pid,
        start_ticks=1,
        uid=1000,
        command=job.command,
        tag=str(job.pid),
        runtime_version=job.runtime_version,
        origin="live",
        uses_device=bool(job.cores),
        cores=tuple(replace(idle, core=core) for core in job.cores),
        host_memory=MemoryUse(),
        models=(),
        status_counts=(),
        latency_counts=(),
        registered_ns=0,
    )


def _busy_jobs(name: str, lnc: int | None = None) -> tuple[Job, ...]:
    instance = instance_type(name)
    jobs = [
        Job(37022, "python serve.py", (1,)),
        Job(37021, TRAINING, (0,)),
        Job(4711, "neuron-monitor", (), ""),
    ]
    if instance.device_count > 3:
        per_device = instance.cores_per_device(lnc or instance.device.lnc_default)
        jobs.append(Job(40000, "./a.out", tuple(range(2 * per_device, 4 * per_device))))
    return tuple(jobs)
