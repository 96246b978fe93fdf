"""Scenarios to play, and a player in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from neurontools.errors import NeuronToolsError
from neurontools.machine import launch
from neurontools.machine.client import Client
from neurontools.machine.processes import wait_for_end
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from neurontools.machine.snapshot import Snapshot
    from tests.loaded_python import LoadedPython

COMMAND = (
    "import os; print(os.getpid(), flush=True)\n"
    "from neurontools.commands.scenario import main; raise SystemExit(main())"
)

STEADY = """
name: steady
description: four busy processes
instance: trn1.32xlarge
duration: 10m
processes:
  worker:
    count: 4
    cores: 2
    tag: "steady-{rank}"
    command: "python steady.py --rank {rank}"
    utilization: 60
    executions: 20
    latency: {p50: 20ms, p99: 40ms, tail: {share: 2%, factor: 10}}
    errors: {NRT_TIMEOUT: 0.5}
    mfu: 40%
    memory: {tensors: 2 GiB}
    models: [{name: "steady-{rank}.neff", code: 64 MiB, constants: 1 GiB, scratchpad: 128 MiB}]
    host_memory: {application_memory: 1 GiB}
    cpu: {user: 50, system: 5}
"""


class Player:
    """`neurontools scenario play` in a process of its own."""

    def __init__(self, python: str, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [python, "-c", COMMAND, "play", "--json", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.pid = int(self.process.stdout.readline())

    def wait_for(self, kind: str, count: int = 1) -> dict[str, Any]:
        """Read events until one of a kind has come so often."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            event: dict[str, Any] = json.loads(line)
            count -= event["kind"] == kind
            if not count:
                return event
        raise AssertionError(f"the player ended: {self.process.communicate()[1]}")

    def end(self, number: int) -> tuple[int, str]:
        """Send a signal and return exit code and stderr."""
        os.kill(self.pid, number)
        errors = self.process.communicate(timeout=600)[1]
        return self.process.returncode, errors

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def player(loaded_commands: LoadedPython) -> Iterator[Callable[..., Player]]:
    made: list[Player] = []

    def make(*arguments: str) -> Player:
        made.append(Player(loaded_commands.executable, *arguments))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def steady(home: Any) -> str:
    """A scenario file whose processes never change."""
    (home / "steady.yaml").write_text(STEADY)
    return str(home / "steady.yaml")


@pytest.fixture
def snapshot() -> Callable[[], Snapshot]:
    def take() -> Snapshot:
        with Client.connect() as client:
            return client.snapshot()

    return take


@pytest.fixture
def kill_daemon() -> Callable[[], None]:
    def kill() -> None:
        pid = launch.find("default").pid
        os.kill(pid, signal.SIGKILL)
        wait_for_end(pid, 600)

    return kill


@pytest.fixture(name="wait_until")
def wait_until_fixture() -> Callable[[Callable[[], bool]], None]:
    """Wait for something that another process does, while the daemon may be between two lives."""

    def wait(condition: Callable[[], bool]) -> None:
        def holds() -> bool:
            with suppress(NeuronToolsError):
                return condition()
            return False

        wait_until(holds)

    return wait
