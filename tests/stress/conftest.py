"""Processes on a machine that end in ways of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from neurontools.machine import launch
from neurontools.machine.client import Client
from neurontools.machine.machine_config import DaemonInfo, StartOptions
from neurontools.machine.processes import is_readable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

JOB = """
import os, sys, time
from neurontools.machine.client import Client
from neurontools.machine.pages.page import PageWriter
client = Client.connect()
place = client.register("job", "python job.py", cores=(0, 1))
page = PageWriter(place.page_fd)
for _ in range(5):
    page.begin(0)
    page.end(0, 0, 1000, 10)
print("ready", flush=True)
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
"""


class Job:
    """A process with cores 0 and 1 and five executions; it executes lines of Python."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", JOB], stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8"
        )
        self.pid = self.process.pid
        assert self._answer() == "ready\n"

    def do(self, line: str) -> None:
        self.send(line)
        assert self._answer() == "done\n"

    def send(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def _answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()


@pytest.fixture
def job(daemon: DaemonInfo) -> Iterator[Job]:
    made = Job()
    yield made
    made.kill()


@pytest.fixture
def daemon() -> DaemonInfo:
    return launch.start(StartOptions("default", "trn1.32xlarge"))


@pytest.fixture
def kill_daemon() -> Callable[[], None]:
    """End the daemon at once and wait until it is gone."""

    def kill() -> None:
        descriptor = os.pidfd_open(launch.find("default").pid)
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        assert is_readable(descriptor, 20)
        os.close(descriptor)

    return kill


@pytest.fixture
def lifetime() -> Callable[[], dict[str, int]]:
    """The lifetime counters, of a machine that is started if need be."""

    def read() -> dict[str, int]:
        launch.start(StartOptions("default", "trn1.32xlarge"))
        with Client.connect() as client:
            return dict(client.snapshot().lifetime)

    return read
