"""Programs on the simulated machine: cores and memory claimed, graphs cached between processes, faults survived."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from neurontools.machine.client import Client
from neurontools.machine.launch import start
from neurontools.machine.machine_config import StartOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from neurontools.machine.snapshot import Snapshot

    Python = Callable[..., subprocess.CompletedProcess[str]]

pytestmark = pytest.mark.torch

# By hand: loading torch.optim takes as long as all the rest.
TRAIN = """
    import sys, torch
    from neurontools.xla import api
    from neurontools.xla.debugging import metrics
    api.activate()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(20, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)).to("xla")
    x, y = torch.randn(16, 20), torch.randint(0, 2, (16,))
    for step in range(5):
        model.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x.to("xla")), y.to("xla"))
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
        api.mark_step()
    print("loss", loss.item())
    print("compiled", metrics.counter_value("UncachedCompile") or 0, "cached", metrics.counter_value("CachedCompile"))
    print("memory", api.engine().memory(0).used_bytes, "of", api.engine().memory(0).limit_bytes, api.engine().accelerator.device_kind())
"""


@pytest.fixture(autouse=True)
def running_machine(home: Path) -> None:
    start(StartOptions(machine="default", instance_type="trn1.2xlarge"))


@pytest.fixture
def python(torch_python: str) -> Python:
    """Run a program in a process that has loaded torch."""

    def run(body: str, **environ: str) -> subprocess.CompletedProcess[str]:
        command = [torch_python, "-c", textwrap.dedent(body)]
        return subprocess.run(
            command, capture_output=True, text=True, check=False, env={**os.environ, **environ}
        )

    return run


@pytest.fixture
def holder(torch_python: str) -> Iterator[int]:
    """The id of a process that has trained and waits, its tensors alive."""
    body = textwrap.dedent(TRAIN) + "import os\nprint('ready', os.getpid(), flush=True)\nsys.stdin.read()\n"
    process = subprocess.Popen(
        [torch_python, "-c", body], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )  # fmt: skip
    assert process.stdout is not None
    yield next(int(line.split()[1]) for line in process.stdout if line.startswith("ready "))
    process.kill()
    process.communicate()


def snapshot() -> Snapshot:
    with Client.connect() as client:
        return client.snapshot()


@pytest.mark.slow
def test_graphs_are_compiled_once_for_all_processes(python: Python) -> None:
    first, second = python(TRAIN), python(TRAIN)
    assert first.returncode == second.returncode == 0, first.stderr + second.stderr
    assert "compiled 1 cached 4" in first.stdout
    assert "compiled 0 cached 5" in second.stdout
    assert first.stdout.splitlines()[0] == second.stdout.splitlines()[0]
    assert "of 34359738368 NC_v2" in first.stdout
    assert "||NEURON_CC_WRAPPER||: Call compiler with cmd: neuronx-cc compile" in first.stderr
    assert "||NEURON_CC_WRAPPER||: Using a cached neff at" in second.stderr
    assert "Call compiler" not in second.stderr

    (neff,) = Path(os.environ["NEURON_COMPILE_CACHE_URL"]).glob("*/MODULE_*/model.neff")
    data = bytearray(neff.read_bytes())
    data[1200:1240] = bytes(40)
    neff.chmod(0o644)
    neff.write_bytes(data)
    damaged = python(TRAIN, NEURON_CC_FLAGS="--log_level=WARNING")
    assert damaged.returncode == 0, damaged.stderr
    assert "compiled 1" in damaged.stdout
    assert {line.split("||")[0].split()[-1] for line in damaged.stderr.splitlines() if "||" in line} == {
        "WARNING"
    }


def test_the_machine_sees_cores_memory_models_and_executions(holder: int) -> None:
    (process,) = snapshot().processes
    assert process.pid == holder
    assert [use.core for use in process.cores] == [0, 1]
    used = process.cores[0]
    assert used.executions == 5
    assert used.busy_ns > 0
    assert used.flops > 0
    parameters = (20 * 8 + 8 + 8 * 2 + 2) * 4
    assert used.memory.tensors >= parameters
    assert used.memory.model_code > 0
    (model,) = process.models
    assert re.fullmatch(r"SyncTensorsGraph\.\d+", model.name)
    assert process.cores[1].executions == 0


def test_killing_the_process_frees_everything(holder: int, python: Python) -> None:
    refused = python(TRAIN)
    assert refused.returncode == 1
    assert "NRT_RESOURCE" in refused.stderr or "nrt_init" in refused.stderr
    assert snapshot().processes[0].pid == holder
    os.kill(holder, signal.SIGKILL)
    with Client.connect() as client:
        after = next(seen for seen in client.watch(0.05) if not seen.processes)
    assert all(device.memory_used_bytes == 0 for device in after.devices)


@pytest.mark.parametrize(
    ("chosen", "returns_memory"), [({}, False), ({"MALLOC_TRIM_THRESHOLD_": "131072"}, True)]
)
def test_freed_memory_stays_with_the_process_unless_the_user_chooses_otherwise(
    chosen: dict[str, str], returns_memory: bool
) -> None:
    program = """
import resource
import torch
from neurontools.xla import api
from neurontools.xla.debugging import metrics
api.activate()

def page_faults_of_a_step():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    tensors = [torch.ones(512, 1024) for _ in range(16)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

print(*(page_faults_of_a_step() for _ in range(5)))
"""
    environ = {**os.environ, **chosen}  # glibc reads it when a process starts, so not a copy of one
    result = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True, env=environ
    )
    pages = 16 * 512 * 1024 * 4 // 4096
    assert (int(result.stdout.split()[-1]) > pages // 2) is returns_memory, result


def test_visible_cores_and_their_memory_limit_a_process(python: Python) -> None:
    result = python(
        """
        import torch
        from neurontools.errors import NeuronToolsError
        from neurontools.xla import api
        from neurontools.xla.debugging import metrics
        api.activate()
        print(api.device_count(), api.runtime().cores, torch.ones(2, device="xla").sum().item())
        try:
            torch.ones(2, device="xla:1")
        except NeuronToolsError as error:
            print(error)
        info = api.engine().memory(0)
        nearly_all = info.limit_bytes - info.used_bytes - (64 << 20)
        api.runtime().allocate(0, nearly_all)
        try:
            y = torch.ones(1 << 25, device="xla")
            api.mark_step()
        except NeuronToolsError as error:
            print(type(error).__name__, error.status.name)
        y = None
        api.runtime().free(0, nearly_all)
        print(torch.ones(4, device="xla").sum().item())
        """,
        NEURON_RT_VISIBLE_CORES="1",
    )
    assert result.stdout.splitlines() == [
        "1 (1,) 2.0",
        "device xla:1 does not exist: this process has 1 NeuronCore(s)",
        "DeviceMemoryError NRT_RESOURCE",
        "4.0",
    ], result.stderr


def test_a_profile_is_captured_when_the_environment_asks(home: Path, python: Python) -> None:
    result = python(TRAIN, NEURON_RT_INSPECT_ENABLE="1", NEURON_RT_INSPECT_OUTPUT_DIR=str(home / "profile"))
    assert result.returncode == 0, result.stderr
    assert any(path.is_file() for path in (home / "profile").rglob("*"))
