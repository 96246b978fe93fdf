"""Real processes on a real daemon: claims, memory, telemetry pages, and what happens when they die."""

from __future__ import annotations

import os
import signal
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from neurontools import paths
from neurontools.errors import DaemonError
from neurontools.machine.client import Client
from neurontools.machine.connection import SilentDaemonError
from neurontools.machine.pages.page import PageReader, PageWriter
from neurontools.machine.protocol import CoresBusyError, OutOfDeviceMemoryError, Request
from neurontools.machine.snapshot import MemoryCategory

if TYPE_CHECKING:
    from collections.abc import Callable

    Workers = Callable[..., Any]
    Wait = Callable[[Callable[[], bool]], None]

GIB = 1 << 30


def pages() -> list[str]:
    return sorted(os.listdir(paths.pages_dir("default")))


def test_a_registered_process_is_in_the_snapshot(client: Client, worker: Workers) -> None:
    job = worker()
    assert job.do("register", cores=[2, 3])["cores"] == [2, 3]
    (process,) = client.snapshot().processes
    assert (process.pid, process.command, process.tag) == (job.pid, "python job.py", "job")
    assert (process.origin, process.uses_device, process.runtime_version) == ("live", True, "NA")
    assert [use.core for use in process.cores] == [2, 3]
    assert not process.stale


def test_busy_cores_name_their_holder(client: Client, worker: Workers) -> None:
    job = worker()
    job.do("register", cores=[0, 1])
    with pytest.raises(CoresBusyError, match=f"process {job.pid} holds cores 0-1") as caught:
        client.register(cores=(1, 2))
    assert (caught.value.requested, caught.value.available) == ((1, 2), 1)
    with pytest.raises(CoresBusyError, match="requested 32 NeuronCores, 30 free") as caught:
        client.register()
    assert (caught.value.requested, caught.value.count, caught.value.available) == ((), 32, 30)
    assert caught.value.owners == (job.pid,)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGHUP])
def test_a_process_that_dies_by_any_signal_loses_everything(
    client: Client, worker: Workers, wait_until: Wait, number: int
) -> None:
    job = worker()
    job.do("register", count=32)
    job.do("reserve", core=5, total_bytes=GIB)
    assert len(pages()) == 2
    job.kill(number)
    wait_until(lambda: not client.snapshot().processes)
    assert all(device.memory_used_bytes == 0 for device in client.snapshot().devices)
    assert pages() == []
    assert client.register().cores == tuple(range(32))


def test_a_zombie_holds_nothing(client: Client, worker: Workers, wait_until: Wait) -> None:
    job = worker(sys.executable)  # a child of this process
    job.do("register")
    os.kill(job.pid, signal.SIGKILL)
    wait_until(lambda: not client.snapshot().processes)
    assert job.process.returncode is None, "nobody reaped it yet"


def test_a_forked_child_that_holds_the_socket_does_not_keep_the_claim(
    client: Client, worker: Workers, wait_until: Wait
) -> None:
    job = worker()
    job.do("register")
    child = job.do("fork")
    os.kill(job.pid, signal.SIGKILL)
    wait_until(lambda: not client.snapshot().processes)
    os.kill(child, signal.SIGKILL)


def test_a_forked_child_is_not_the_owner(client: Client) -> None:
    client.register(count=2)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            client.reserve(0, 1)
        except DaemonError as error:
            os.write(write, error.message.encode())
        os._exit(0)
    os.close(write)
    with open(read, encoding="utf-8") as answer:
        assert answer.read() == f"process {child} is not registered"
    os.waitpid(child, 0)
    client.reserve(0, 1)


def test_a_process_can_not_register_another(client: Client, worker: Workers) -> None:
    other = worker()
    with pytest.raises(DaemonError, match=f"process {os.getpid()} can't register process {other.pid}"):
        client.call("register", pid=other.pid, count=1)
    client.call("register", pid=os.getpid(), count=1)


def test_a_process_registers_once_and_may_come_back(client: Client) -> None:
    client.register(count=1)
    with Client.connect() as second, pytest.raises(DaemonError, match="already registered"):
        second.register(count=1)
    client.unregister()
    assert pages() == []
    client.unregister()
    assert client.register(count=3).cores == (0, 1, 2)


def test_what_became_of_a_process_by_exec_may_register_anew(client: Client) -> None:
    client.register(count=4)
    client.close()  # as exec does
    with Client.connect() as successor:
        assert successor.register(count=2).cores == (0, 1)
        assert len(successor.snapshot().processes) == 1


def test_a_process_that_only_looks_claims_nothing(client: Client, worker: Workers) -> None:
    client.register("", "neuron-top", uses_device=False)
    assert worker().do("register")["cores"] == list(range(32))
    looker = client.snapshot().processes[0]
    assert (looker.command, looker.uses_device, looker.cores) == ("neuron-top", False, ())
    assert looker.runtime_version == "NA"
    assert dict(client.snapshot().lifetime) == {"processes": 1}


def test_device_memory_is_shared_by_the_cores_of_a_device(client: Client) -> None:
    client.register(cores=(0, 1))
    client.reserve(0, 20 * GIB)
    with pytest.raises(OutOfDeviceMemoryError) as caught:
        client.reserve(1, 13 * GIB)
    error = caught.value
    assert (error.device, error.total, error.used, error.needed) == (0, 32 * GIB, 20 * GIB, 13 * GIB)
    client.reserve(0, 12 * GIB)
    client.reserve(1, 13 * GIB)
    assert [device.memory_used_bytes for device in client.snapshot().devices[:2]] == [25 * GIB, 0]
    with pytest.raises(DaemonError, match="does not hold core 2"):
        client.reserve(2, 1)


def test_the_page_is_the_process_s_own_and_shows_in_the_snapshot(client: Client) -> None:
    registration = client.register(cores=(4, 5))
    reader = PageReader(registration.page_fd)
    assert (reader.identity.pid, reader.cores) == (os.getpid(), (4, 5))
    writer = PageWriter(registration.page_fd)
    writer.begin(1, -1)
    assert [use.executing for use in client.snapshot().processes[0].cores] == [False, True]
    writer.end(1, 0, 5_000_000, 123, 7)
    writer.begin(1, -1)
    writer.end(1, 1003, 1_000_000, 100, 0)
    writer.set_memory(0, MemoryCategory.TENSORS, 4096)
    (process,) = client.snapshot().processes
    first, second = process.cores
    assert (first.memory.tensors, first.executions) == (4096, 0)
    assert (second.busy_ns, second.executions, second.flops, second.gpsimd_ns) == (6_000_000, 2, 223, 7)
    assert dict(process.status_counts) == {0: 1, 1003: 1}
    expected = {"processes": 1, "executions": 2, "execution_errors": 1, "flops": 223}
    assert dict(client.snapshot().lifetime) == expected
    writer.close()
    client.unregister()
    assert dict(client.snapshot().lifetime) == expected
    os.close(registration.page_fd)


@pytest.mark.parametrize("damage", ["truncate", "overwrite"])
def test_a_damaged_page_keeps_the_last_good_values_marked_stale(client: Client, damage: str) -> None:
    registration = client.register(cores=(0,))
    writer = PageWriter(registration.page_fd)
    writer.begin(0, -1)
    writer.end(0, 0, 1000, 1, 0)
    assert client.snapshot().processes[0].cores[0].busy_ns == 1000
    size = os.fstat(registration.page_fd).st_size
    if damage == "truncate":
        os.truncate(registration.page_fd, 100)
    else:
        os.pwrite(registration.page_fd, os.urandom(size - 1416), 1416)
    (process,) = client.snapshot().processes
    assert process.stale
    assert process.cores[0].busy_ns == 1000
    client.unregister()
    assert client.register(cores=(0,)).cores == (0,)


def test_registering_makes_a_deleted_pages_directory_again(client: Client) -> None:
    os.rmdir(paths.pages_dir("default"))
    client.register(count=1)
    assert len(pages()) == 2


def test_many_processes_come_and_go(client: Client, worker: Workers, wait_until: Wait) -> None:
    jobs = [worker() for _ in range(8)]
    cores = [job.do("register", count=4)["cores"] for job in jobs]
    assert sorted(core for some in cores for core in some) == list(range(32))
    for job in jobs:
        job.kill()
    wait_until(lambda: not client.snapshot().processes)
    assert dict(client.snapshot().lifetime) == {"processes": 8}


class Answers:
    """Connections to a daemon that fails every registration in one way, and what was asked on them."""

    def __init__(self, failure: Exception) -> None:
        self.asked: list[str] = []
        self._failure = failure

    def __call__(self, _machine: str) -> Answers:
        return self

    def hello(self, *, owner: bool) -> SimpleNamespace:
        return SimpleNamespace(registered=None)

    def call(self, method: str, _params: object, _result_type: object) -> object:
        self.asked.append(method)
        if method == "register":
            raise self._failure
        return None

    def request(self, request: Request, result_type: object) -> object:
        return self.call(request.method, {}, result_type)

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("failure", "asked"),
    [
        (CoresBusyError("busy"), ["register", "describe"]),
        (SilentDaemonError("silent"), ["register", "unregister", "describe"]),
    ],
)
def test_only_a_registration_without_an_answer_is_taken_back_by_the_next_connection(
    monkeypatch: pytest.MonkeyPatch, failure: Exception, asked: list[str]
) -> None:
    answers = Answers(failure)
    monkeypatch.setattr("neurontools.machine.connection.SyncConnection", answers)
    client = Client("default")
    with pytest.raises(type(failure)):
        client.register()
    client.close()
    client.call("describe")
    assert answers.asked == asked


def test_a_page_that_cannot_be_created_leaves_the_cores_free(client: Client) -> None:
    folder = paths.pages_dir("default")
    os.rmdir(folder)
    os.symlink("/nowhere", folder)  # the daemon refuses to restore a directory through a link
    with pytest.raises(DaemonError, match="cannot"):
        client.register("job", "python job.py", count=2)
    assert client.snapshot().processes == ()
    assert client.call("describe")["claimed_core_count"] == 0
    os.unlink(folder)
    place = client.register("job", "python job.py")
    os.close(place.page_fd)
    assert len(place.cores) == client.call("describe")["core_count"]
