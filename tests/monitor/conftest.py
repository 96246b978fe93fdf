"""Machines to report on: fixed snapshots of any instance type, a host that says what it is told, running jobs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from neurontools.machine.host import CpuTimes, HostSample
from neurontools.machine.instances.catalogue import instance_type
from neurontools.machine.snapshot import (
    LATENCY_BUCKETS,
    CoreUse,
    DeviceState,
    HardwareCounters,
    MemoryUse,
    ModelState,
    ProcessState,
    Snapshot,
)
from neurontools.monitor.collector import VcpuSample
from neurontools.monitor.report import HostMemoryInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.loaded_python import LoadedPython

SECOND_NS = 1_000_000_000
MIB = 1 << 20


def machine_at(
    second: float, *processes: ProcessState, instance: str = "trn1.2xlarge", lnc: int | None = None
):
    """A machine `second` seconds after it came to be."""
    kind = instance_type(instance)
    lnc = kind.device.lnc_default if lnc is None else lnc
    cores = kind.cores_per_device(lnc)
    return Snapshot(
        machine="default",
        source="sim",
        instance_type=instance,
        instance_id="i-0123456789abcdef0",
        lnc=lnc,
        lnc_applies=kind.lnc_applies,
        neuroncore_version=kind.device.core.monitor_version(lnc),
        taken_ns=round(second * SECOND_NS),
        taken_unix_s=1_780_000_000.0 + second,
        started_unix_s=1_780_000_000.0,
        devices=tuple(
            DeviceState(
                index=index,
                bdf=kind.pci_bdf[index],
                cpu_affinity="0-7",
                numa_node="0",
                connected_to=None,
                core_ids=tuple(range(index * cores, (index + 1) * cores)),
                memory_bytes=kind.device.memory_bytes,
                memory_used_bytes=0,
            )
            for index in range(kind.device_count)
        ),
        processes=processes,
    )


def job(
    pid: int = 4021,
    cores: tuple[int, ...] = (0,),
    *,
    busy_s: float = 0.0,
    flops: int = 0,
    statuses: dict[int, int] | None = None,
    latencies: dict[int, int] | None = None,
    registered_s: float = 0.0,
    **changes: Any,
) -> ProcessState:
    """A process that was busy for so long on each of its cores since it began."""
    histogram = [0] * LATENCY_BUCKETS
    for bucket, count in (latencies or {}).items():
        histogram[bucket] = count
    values: dict[str, Any] = {
        "pid": pid,
        "start_ticks": pid * 10,
        "uid": 1000,
        "command": "python train.py",
        "tag": "",
        "runtime_version": "2.32.0",
        "origin": "live",
        "uses_device": True,
        "cores": tuple(
            CoreUse(
                core=core,
                busy_ns=round(busy_s * SECOND_NS),
                executions=0,
                flops=flops,
                gpsimd_ns=0,
                executing=False,
                memory=MemoryUse(constants=5 * MIB, model_code=4 * MIB, tensors=3 * MIB, dma_buffers=MIB),
            )
            for core in cores
        ),
        "host_memory": MemoryUse(tensors=2 * MIB, application_memory=100 * MIB),
        "models": tuple(
            ModelState(
                model_id=10001 + index,
                name=f"bert-{index}.neff",
                uuid=f"{index:032x}",
                core=core,
                running=True,
                memory=MemoryUse(constants=5 * MIB, model_code=4 * MIB, model_shared_scratchpad=7),
            )
            for index, core in enumerate(cores)
        ),
        "status_counts": tuple(sorted((statuses or {}).items())),
        "latency_counts": tuple(histogram),
        "registered_ns": round(registered_s * SECOND_NS),
    }
    return ProcessState(**{**values, **changes})


def with_errors(snapshot: Snapshot, device: int, **counts: int) -> Snapshot:
    """The machine with so many errors counted on a device."""
    devices = list(snapshot.devices)
    devices[device] = replace(devices[device], hardware=HardwareCounters(**counts))
    return replace(snapshot, devices=tuple(devices))


@dataclass
class FixedHost:
    """A host with two vCPUs that says what it is told."""

    now: float = 0.0
    times: dict[tuple[int, int], CpuTimes] = field(default_factory=dict)

    def now_ns(self) -> int:
        return round(self.now * SECOND_NS)

    def vcpus(self) -> VcpuSample:
        idle = (0.0, 0.0, 0.0, self.now, 0.0, 0.0, 0.0, 0.0)
        half = (self.now / 2, 0.0, self.now / 4, self.now / 4, 0.0, 0.0, 0.0, 0.0)
        return VcpuSample(round(self.now * SECOND_NS), (idle, half), round(self.now * 100))

    def processes(self, keys):
        found = tuple((key, self.times[key]) for key in keys if key in self.times)
        return HostSample(self.now * 2, CpuTimes(0.0, 0.0), found)

    def memory(self, period_s: float) -> HostMemoryInfo:
        return HostMemoryInfo(period_s, 33110204416, 1284890624, 0, 0)


@pytest.fixture
def fixed_host() -> FixedHost:
    return FixedHost()


WORKER = """
import json, os, sys, time
from neurontools.machine.snapshot import MemoryCategory
from neurontools.runtime.session import Runtime
from neurontools.runtime.status import NrtError, NrtStatus
runtime = Runtime.open()
model = runtime.load(0, name="bert.neff", uuid=bytes(range(16)), neff=b"", code_bytes=1 << 20,
    constant_bytes=1 << 21, scratch_bytes=1 << 19, modelled_ns=1000, flops=10**9)
runtime.allocate(0, 3 << 20, MemoryCategory.TENSORS)
def run(seconds=0.0, status=0):
    def body():
        time.sleep(seconds)
        if status:
            raise NrtError("nrt_execute", NrtStatus(status))
    try:
        runtime.execute(model, body)
    except NrtError as error:
        return int(error.status)
    return 0
print(json.dumps({"pid": os.getpid(), "cores": list(runtime.cores)}), flush=True)
for line in sys.stdin:
    print(json.dumps(run(**json.loads(line))), flush=True)
"""


class Worker:
    """A process of its own that holds cores and executes when it is told to."""

    def __init__(self, python: str, environ: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [python, "-c", WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environ},
        )
        assert self.process.stdout is not None
        self.facts = json.loads(self.process.stdout.readline())
        self.pid: int = self.facts["pid"]

    def run(self, seconds: float = 0.0, status: int = 0) -> int:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"seconds": seconds, "status": status}) + "\n")
        self.process.stdin.flush()
        return int(json.loads(self.process.stdout.readline()))

    def end(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.process.communicate()


@pytest.fixture
def worker(loaded_commands: LoadedPython) -> Iterator[Callable[..., Worker]]:
    """Start a process that holds cores: `worker(NEURON_RT_NUM_CORES="1")`."""
    workers: list[Worker] = []

    def start(**environ: str) -> Worker:
        workers.append(Worker(loaded_commands.executable, environ))
        return workers[-1]

    yield start
    for each in workers:
        each.end()


class Program:
    """One of our console scripts while it runs."""

    def __init__(self, name: str, *arguments: str, **options: Any) -> None:
        self.process = subprocess.Popen(
            [str(Path(sys.executable).parent / name), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            **{"stdin": subprocess.DEVNULL, **options},
        )
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.stdout = self.process.stdout
        self.stderr = self.process.stderr

    def line(self) -> str:
        return self.stdout.readline().decode()

    def report(self) -> Any:
        return json.loads(self.line())

    def end(self) -> int:
        """End it, if it has not ended, and return its exit code."""
        self.process.kill()
        for stream in (self.process.stdin, self.stdout, self.stderr):
            if stream is not None:
                stream.close()
        return self.process.wait()


@pytest.fixture
def program() -> Iterator[Callable[..., Program]]:
    """Start a console script: `program("neuron-monitor", "-c", path)`."""
    programs: list[Program] = []

    def start(name: str, *arguments: str, **options: Any) -> Program:
        programs.append(Program(name, *arguments, **options))
        return programs[-1]

    yield start
    for each in programs:
        each.end()


@pytest.fixture
def config(home: Path) -> Callable[..., str]:
    """Write a configuration file and return its path: `config(period="100ms", system_metrics=[])`."""

    def write(**root: Any) -> str:
        path = home / "monitor.conf"
        path.write_text(json.dumps(root))
        return str(path)

    return write


@pytest.fixture
def certificate(home: Path) -> tuple[str, str]:
    """A certificate for localhost and its key."""
    cert, key = home / "cert.pem", home / "key.pem"
    subject = "-subj /CN=localhost -addext subjectAltName=DNS:localhost,IP:127.0.0.1"
    command = f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 {subject} -keyout {key} -out {cert}"
    subprocess.run(command.split(), check=True, capture_output=True)
    return str(cert), str(key)


EVERYTHING = {
    "neuron_runtimes": [
        {
            "metrics": [
                {"type": name}
                for name in (
                    "neuroncore_counters",
                    "memory_used",
                    "neuron_runtime_vcpu_usage",
                    "execution_stats",
                )
            ]
        }
    ],
    "system_metrics": [{"type": name} for name in ("vcpu_usage", "memory_info", "neuron_hw_counters")],
}
