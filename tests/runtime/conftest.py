"""A runtime on a machine that is only a counter of bytes, and real machines for the end-to-end tests."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

import pytest

from neurontools.errors import DaemonError
from neurontools.machine import launch
from neurontools.machine.client import Client, Registration
from neurontools.machine.instances.catalogue import instance_type
from neurontools.machine.pages.page import PageIdentity, PageReader, create_page
from neurontools.machine.protocol import OutOfDeviceMemoryError
from neurontools.runtime.core_claim import CoreClaim
from neurontools.runtime.log import RuntimeLog
from neurontools.runtime.session import Model, Runtime

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from neurontools.machine.snapshot import Snapshot
    from neurontools.runtime.status import NrtStatus
    from tests.loaded_python import LoadedPython

_numbers = itertools.count()


class CountingMachine:
    """Stands for the daemon's client: one pool of bytes, and what was asked of it."""

    machine = "nowhere"

    def __init__(self, total: int) -> None:
        self.total = total
        self.reserved: Counter[int] = Counter()
        self.calls: list[tuple[int, int]] = []
        self.down = self.loses_answers = False
        self.closed = False

    def reserve(self, core: int, total_bytes: int) -> None:
        """As the daemon: the total for a core, whatever was reserved before."""
        assert total_bytes >= 0
        self.calls.append((core, total_bytes))
        if self.down:
            raise DaemonError("gone")
        growth = total_bytes - self.reserved[core]
        if growth > 0 and self.used + growth > self.total:
            raise OutOfDeviceMemoryError("full", total=self.total, used=self.used, needed=growth)
        self.reserved[core] = total_bytes
        if self.loses_answers:
            raise DaemonError("the connection broke")

    @property
    def used(self) -> int:
        return sum(self.reserved.values())

    def close(self) -> None:
        self.closed = True


class Place:
    """A runtime with its counting machine and a reader of its page."""

    def __init__(
        self, directory: Path, *, total: int, cores: tuple[int, ...], environ: dict[str, str]
    ) -> None:
        self.client = CountingMachine(total)
        identity = PageIdentity("nowhere", 1, 1, "", 0, "", "", "", 0)
        page_path = str(directory / f"place-{next(_numbers)}.page")
        fd = create_page(page_path, identity, cores)
        registration = Registration(cores, fd, "trn1.2xlarge", 1, "nowhere")
        claim = CoreClaim(cast("Client", self.client), registration, instance_type("trn1.2xlarge"), 1)
        self._page_fd = os.dup(fd)
        self.page = PageReader(self._page_fd)
        self.runtime = Runtime(claim, environ, RuntimeLog(environ))

    def load(self, nc: int = 0, **changes: Any) -> Model:
        wanted: dict[str, Any] = {
            "name": "model",
            "uuid": bytes(16),
            "neff": b"neff",
            "code_bytes": 1000,
            "constant_bytes": 2000,
            "scratch_bytes": 3000,
            "modelled_ns": 10,
            "flops": 7,
            "gpsimd_ns": 3,
        }
        return self.runtime.load(nc, **{**wanted, **changes})

    def close(self) -> None:
        self.runtime.close()
        os.close(self._page_fd)


class Watcher:
    """An observer that keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def on_load(self, model: Model, start_ns: int, end_ns: int) -> None:
        assert start_ns <= end_ns
        self.told.append(("load", model.model_id))

    def on_execute(self, model: Model, execution: int, start_ns: int, end_ns: int, status: NrtStatus) -> None:
        assert start_ns <= end_ns
        self.told.append(("execute", model.model_id, execution, status))

    def on_unload(self, model: Model) -> None:
        self.told.append(("unload", model.model_id))

    def on_close(self) -> None:
        self.told.append(("close",))


@pytest.fixture
def watcher() -> Watcher:
    return Watcher()


@pytest.fixture
def new_place(home: Path) -> Iterator[Callable[..., Place]]:
    """Make a runtime of two cores of one device of 1 GiB; another one closes it."""
    places: list[Place] = []

    def make(*, total: int = 1 << 30, cores: tuple[int, ...] = (0, 1), **environ: str) -> Place:
        while places:
            places.pop().close()
        places.append(Place(home, total=total, cores=cores, environ=environ))
        return places[0]

    yield make
    while places:
        places.pop().close()


@pytest.fixture
def place(new_place: Callable[..., Place]) -> Place:
    return new_place()


class Job:
    """A program of its own that obeys: each line of Python that it gets is evaluated, the result comes back."""

    PROGRAM = """
import json, os, sys
from neurontools.runtime.core_claim import CoreClaim
from neurontools.runtime.session import Runtime
from neurontools.machine.snapshot import MemoryCategory
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
print(os.getpid(), file=answers, flush=True)
for line in sys.stdin:
    try:
        result = {"value": eval(line)}
    except Exception as error:
        result = {"error": str(error), "remedy": getattr(error, "remedy", ""), "kind": type(error).__name__}
    print(json.dumps(result, default=repr), file=answers, flush=True)
"""
    LOAD = (
        "(m := runtime.load(0, name='m', uuid=bytes(16), neff=b'', code_bytes=1, constant_bytes=1, scratch_bytes=1,"
        " modelled_ns=1, flops=1)).model_id"
    )

    def __init__(self, python: str, environ: dict[str, str], log: Path) -> None:
        self._log = log
        with log.open("w") as stderr:
            self.process = subprocess.Popen(
                [python, "-c", self.PROGRAM],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env=environ,
            )
        assert self.process.stdout is not None
        self.pid = int(self.process.stdout.readline())

    def ask(self, expression: str) -> Any:
        answer = self.try_to(expression)
        assert "value" in answer, answer
        return answer["value"]

    def try_to(self, expression: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(expression + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def open(self) -> list[int]:
        cores: list[int] = self.ask("(runtime := Runtime.open()).cores")
        return cores

    def stderr(self) -> str:
        return self._log.read_text()

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.end()

    def end(self) -> int:
        with suppress(BrokenPipeError):
            self.process.communicate(timeout=600)
        return self.process.returncode


@pytest.fixture
def new_job(home: Path, loaded_commands: LoadedPython) -> Iterator[Callable[..., Job]]:
    jobs: list[Job] = []

    def start(**environ: str) -> Job:
        jobs.append(Job(loaded_commands.executable, {**os.environ, **environ}, home / f"job-{len(jobs)}.err"))
        return jobs[-1]

    yield start
    for job in jobs:
        job.kill()


@pytest.fixture
def start_machine() -> Iterator[Callable[..., Callable[[], Snapshot]]]:
    """Start the default machine of this test and return what takes its snapshots."""
    started: list[str] = []

    def start(instance: str = "trn1.2xlarge", name: str = "default") -> Callable[[], Snapshot]:
        launch.start(launch.StartOptions(machine=name, instance_type=instance))
        started.append(name)

        def snapshot() -> Snapshot:
            with Client.connect(name) as client:
                return client.snapshot()

        return snapshot

    yield start
    for name in started:
        with suppress(Exception):
            launch.stop(name, force=True)
