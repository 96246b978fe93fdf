"""Machines and processes to put on them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from neurontools import paths
from neurontools.machine import launch
from neurontools.machine.client import Client
from neurontools.machine.machine_config import DaemonInfo, StartOptions
from neurontools.machine.processes import ProcessKey, is_alive

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.loaded_python import LoadedPython

WORKER = """
import json, os, sys
from neurontools.machine.client import Client
print(os.getpid(), flush=True)
client = Client.connect()
def register(**wishes):
    value = client.register("job", "python job.py", **wishes)
    return {"cores": value.cores, "page": os.fstat(value.page_fd).st_size}
def fork():
    child = os.fork()
    if child == 0:
        os.read(0, 1)
        os._exit(0)
    return child
for line in sys.stdin:
    name, arguments = json.loads(line)
    try:
        answer = {"register": register, "fork": fork, "cores": lambda: client.call("hello", protocol=1, client="x"),
                  "reserve": client.reserve, "unregister": client.unregister}[name](**arguments)
    except Exception as error:
        answer = {"error": type(error).__name__, "message": str(error)}
    print(json.dumps(answer), flush=True)
"""


class Worker:
    """A process on the machine that does what it is told."""

    def __init__(self, python: str) -> None:
        self.process = subprocess.Popen(
            [python, "-c", WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.pid = int(self.process.stdout.readline())

    def do(self, name: str, **arguments: Any) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([name, arguments]) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def kill(self, number: int = signal.SIGKILL) -> None:
        os.kill(self.pid, number)
        self.process.wait()

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


class Line:
    """A bare connection that says hello only when told to."""

    def __init__(self, machine: str = "default") -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(20)
        self.socket.connect(paths.socket_path(machine))
        self.file = self.socket.makefile("rb")

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def receive(self) -> Any:
        return json.loads(self.file.readline())

    def call(self, method: str, **params: Any) -> Any:
        self.send(
            json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode() + b"\n"
        )
        return self.receive()

    def hello(self) -> Any:
        return self.call("hello", protocol=1, client="test")

    def close(self) -> None:
        self.file.close()
        self.socket.close()


@pytest.fixture
def daemon() -> Iterator[DaemonInfo]:
    """The default machine, a trn1.32xlarge: 16 devices, 32 cores."""
    info = launch.start(StartOptions("default", "trn1.32xlarge"))
    yield info
    if is_alive(
        ProcessKey(info.pid, info.start_ticks)
    ):  # a test may have deleted what the home's end looks for
        os.kill(info.pid, signal.SIGKILL)


@pytest.fixture
def client(daemon: DaemonInfo) -> Iterator[Client]:
    with Client.connect() as connected:
        yield connected


@pytest.fixture
def worker(loaded_commands: LoadedPython) -> Iterator[Callable[..., Worker]]:
    made: list[Worker] = []

    def make(python: str = loaded_commands.executable) -> Worker:
        made.append(Worker(python))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def line() -> Iterator[Callable[[], Line]]:
    made: list[Line] = []

    def make() -> Line:
        made.append(Line())
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def end_daemon() -> Callable[[DaemonInfo], None]:
    """End a daemon at once, as `kill -9` does, and wait until it is gone."""

    def kill(info: DaemonInfo) -> None:
        descriptor = os.pidfd_open(info.pid)
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        wait_readable(descriptor)
        os.close(descriptor)

    return kill


def wait_readable(descriptor: int) -> None:
    """Wait until a descriptor can be read."""
    import select

    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    poll.poll()
