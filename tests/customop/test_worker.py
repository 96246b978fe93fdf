"""Processes: one worker per library and process, new ones after faults and forks, nothing left behind."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from neurontools.customop import executors
from neurontools.customop.arena import sealed_memory
from neurontools.customop.errors import CustomOpLibraryError, NeuronCustomOpError
from neurontools.customop.executors import WorkerExecutor
from neurontools.customop.marshalling import execute
from neurontools.customop.operation import CustomOperator
from neurontools.customop.session import Session
from neurontools.errors import UsageError
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from neurontools.customop.package import Package
    from tests.customop.conftest import Read

Find = Callable[[str], CustomOperator]


@pytest.fixture
def executor(package: Read) -> WorkerExecutor:
    return WorkerExecutor(package("faults").parts, "test")


def call(executor: WorkerExecutor, package: Package, name: str, *arguments: object) -> torch.Tensor:
    index = next(i for i, entry in enumerate(package.manifest.operators) if entry.name == name)
    return execute(CustomOperator(package, index, executor), arguments)[0]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def descriptors() -> list[str]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:
            continue
    return sorted(link for link in found if not link.startswith("/proc"))


def test_calls_faults_and_the_end_leave_no_descriptor_and_no_process(
    executor: WorkerExecutor, package: Read
) -> None:
    contents = package("faults")
    x = torch.rand(10)
    before = descriptors()
    for _ in range(3):
        call(executor, contents, "copy", x)
        with pytest.raises(NeuronCustomOpError):
            call(executor, contents, "fault", x, x, 60)
    call(executor, contents, "copy", torch.rand(300_000))
    pid = executor.pid
    assert pid is not None
    assert executor.restarts == 3
    executor.close()
    assert not alive(pid)
    assert descriptors() == before
    with pytest.raises(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def test_a_worker_that_was_killed_while_idle_is_replaced_unnoticed(
    executor: WorkerExecutor, package: Read
) -> None:
    x = torch.rand(10)
    call(executor, package("faults"), "copy", x)
    pid = executor.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] == "Z")
    assert torch.equal(call(executor, package("faults"), "copy", x), x)
    assert executor.pid != pid
    executor.close()


def test_a_forked_child_has_a_worker_of_its_own(executor: WorkerExecutor, package: Read) -> None:
    contents = package("faults")
    x = torch.rand(100)
    call(executor, contents, "copy", x)
    parents = executor.pid
    child = os.fork()
    if child == 0:
        code = 1
        try:
            y = torch.rand(100)
            fine = executor.pid is None and torch.equal(call(executor, contents, "copy", y), y)
            code = 0 if fine and executor.pid != parents else 2
            executor.close()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert executor.pid == parents
    assert torch.equal(call(executor, contents, "copy", x), x)
    executor.close()


def test_threads_share_a_worker_and_outlive_the_thread_that_started_it(
    executor: WorkerExecutor, package: Read
) -> None:
    contents = package("faults")
    results: list[bool] = []

    def work(seed: int) -> None:
        x = torch.rand(50, generator=torch.Generator().manual_seed(seed))
        results.extend(torch.equal(call(executor, contents, "copy", x), x) for _ in range(20))

    first = threading.Thread(target=work, args=(0,))
    first.start()
    first.join()
    pid = executor.pid
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 100
    assert executor.pid == pid
    executor.close()


PROGRAM = """
import sys, time
import torch
from neurontools.customop.package import read_package
from neurontools.customop.executors import WorkerExecutor
from neurontools.customop.operation import CustomOperator
from neurontools.customop.marshalling import execute
package = read_package(sys.argv[1])
executor = WorkerExecutor(package.parts, "test")
x = torch.rand(4)
execute(CustomOperator(package, 1, executor), (x,))
print(executor.pid, flush=True)
execute(CustomOperator(package, 2, executor), (x, float(sys.argv[2])))
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_worker_ends_with_its_host_even_in_the_middle_of_a_call(
    package: Read, torch_python: str, number: int
) -> None:
    path = package("faults").path
    host = subprocess.Popen(
        [torch_python, "-c", PROGRAM, path, "60"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert host.stdout is not None
    worker = int(host.stdout.readline())
    time.sleep(0.05)
    host.send_signal(number)
    host.wait(20)
    host.stdout.close()
    wait_until(lambda: not alive(worker))


@pytest.fixture
def pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[select.poll]:
    """Return a poll object of the pipe that processes of a kernel hold: readable after their start, hung up at their end."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    monkeypatch.setenv("TEST_PIPE", str(path))
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    yield poll
    os.close(fd)


def are_gone(pipe: select.poll, timeout_s: float = 0) -> bool:
    """Return whether all processes that held the pipe have ended."""
    deadline = time.monotonic() + timeout_s
    while True:
        ((fd, events),) = pipe.poll(1000 * timeout_s) or ((-1, 0),)
        if events & select.POLLIN:
            os.read(fd, 64)
        elif events & select.POLLHUP or time.monotonic() >= deadline:
            return bool(events & select.POLLHUP)


@pytest.mark.parametrize("which", [104, 105], ids=["child", "daemon"])
def test_processes_of_a_kernel_end_with_its_worker(
    executor: WorkerExecutor, package: Read, pipe: select.poll, which: int
) -> None:
    x = torch.arange(8.0)
    assert torch.equal(call(executor, package("faults"), "fault", x, x.clone(), which), x)
    assert pipe.poll(20_000), "the process was not started"
    executor.close()
    assert are_gone(pipe)


@pytest.mark.parametrize(
    ("which", "message"),
    [(102, "executed another program"), (106, "was killed by SIGKILL"), (107, "was killed by SIGKILL")],
    ids=["exec", "child", "daemon"],
)
def test_a_worker_that_ends_in_a_call_takes_its_processes_along(
    executor: WorkerExecutor, package: Read, pipe: select.poll, which: int, message: str
) -> None:
    x = torch.arange(8.0)
    with pytest.raises(NeuronCustomOpError, match=message):
        call(executor, package("faults"), "fault", x, x.clone(), which)
    assert are_gone(pipe)
    assert torch.equal(call(executor, package("faults"), "copy", x), x)
    executor.close()


@pytest.mark.parametrize("which", [102, 104, 105], ids=["exec", "child", "daemon"])
def test_processes_of_a_kernel_end_with_a_killed_host(
    package: Read, torch_python: str, pipe: select.poll, which: int
) -> None:
    program = PROGRAM.replace("2, executor), (x, float", "0, executor), (x, x.clone(), int")
    host = subprocess.Popen(
        [torch_python, "-c", program + "sys.stdin.read()", package("faults").path, str(which)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )
    with host:
        assert pipe.poll(60_000), "the process was not started"
        host.kill()
    assert are_gone(pipe, 20)


def test_a_worker_cannot_resize_the_memory_that_it_shares() -> None:
    fd = sealed_memory("test", 4096)
    with pytest.raises(PermissionError):
        os.ftruncate(fd, 0)
    with pytest.raises(PermissionError):
        os.ftruncate(fd, 8192)
    os.close(fd)


def test_a_program_that_just_ends_leaves_no_worker(package: Read) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, package("faults").path, "0"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert not alive(int(done.stdout))
    assert done.stderr == ""


@pytest.mark.parametrize("size", [0, 1, 3, 1023, 1024, 1025, 100_000])
def test_tensors_of_any_size_and_growth(operation: Find, size: int) -> None:
    copy = operation("faults::copy")
    for count in (size, 2 * size + 1, size):
        x = torch.rand(count)
        assert torch.equal(execute(copy, (x,))[0], x)


def test_strided_inputs_arrive_dense(operation: Find) -> None:
    x = torch.rand(20)[::2]
    assert torch.equal(execute(operation("faults::copy"), (x,))[0], x)


def test_tensors_beyond_the_share_of_memory_are_an_error_of_its_own(
    executor: WorkerExecutor, package: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("neurontools.customop.arena._SHARE_OF_RAM", 1e-6)
    with pytest.raises(CustomOpLibraryError, match="the limit is a quarter of this computer's memory"):
        call(executor, package("faults"), "copy", torch.rand(1_000_000))
    executor.close()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NEURON_RT_EXEC_TIMEOUT", "soon"),
        ("NEURON_RT_EXEC_TIMEOUT", "-1"),
        ("NEURON_RT_GPSIMD_STDOUT_QUEUE_SIZE_BYTES", "1000"),
        ("NEURON_RT_GPSIMD_STDOUT_QUEUE_SIZE_BYTES", "262144"),
    ],
)
def test_invalid_settings_are_reported(
    operation: Find, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=f"{name}={value}"):
        execute(operation("faults::copy"), (torch.rand(3),))


def test_in_process_gives_the_same_results(operation: Find, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURONTOOLS_CUSTOMOP_INPROCESS", "1")
    copy = operation("faults::copy")
    x = torch.rand(7)
    assert torch.equal(execute(copy, (x,))[0], x)
    with pytest.raises(NeuronCustomOpError, match="index 8 is out of bounds"):
        execute(operation("faults::fault"), (torch.arange(8.0), torch.zeros(8), 4))


def test_the_interface_has_the_same_layout_on_both_sides(scratch: Path) -> None:
    from neurontools.customop import abi
    from neurontools.customop.building.toolchain import INCLUDE, find_compiler

    cpp_names = {name: name for name in ("Tensor", "Argument", "Counters", "Reply")} | {
        "CallRequest": "Request"
    }
    checks = [
        f"static_assert(sizeof(neurontools::abi::{cpp_name}) == "
        f'{ctypes.sizeof(getattr(abi, name))}, "{name}");'
        for name, cpp_name in cpp_names.items()
    ]
    fields = [
        f"static_assert(offsetof(neurontools::abi::{cpp_names[structure]}, {field[0]}) == "
        f'{getattr(getattr(abi, structure), field[0]).offset}, "{field[0]}");'
        for structure in ("CallRequest", "Reply", "Tensor", "Argument")
        for field in getattr(abi, structure)._fields_
    ]
    (scratch / "layout.cpp").write_text(
        "\n".join(["#include <cstddef>", '#include "neurontools/abi.hpp"', *checks, *fields])
    )
    command = [*find_compiler().command, "-std=c++14", "-fsyntax-only", "-I", str(INCLUDE), "layout.cpp"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("own", [True, False])
def test_a_directory_of_loaded_code_is_removed_only_by_the_process_that_made_it(
    tmp_path: Path, own: bool
) -> None:
    (tmp_path / "code").mkdir()
    executors._remove(str(tmp_path / "code"), os.getpid() if own else os.getpid() + 1)
    assert (tmp_path / "code").exists() is not own


@pytest.mark.parametrize(("cores", "alone"), [(1, True), (2, False), (8, False)])
def test_a_failure_names_the_core_only_where_one_core_works(cores: int, alone: bool) -> None:
    mailbox = SimpleNamespace(
        put=lambda _: None, post=lambda: None, wait=lambda _: True, memory=bytearray(1 << 16), is_plain=False
    )
    worker: Any = SimpleNamespace(
        mailbox=mailbox,
        _place=lambda *_: False,
        _place_output=lambda *_, resident: "block",
        _outcome=lambda *_, alone: SimpleNamespace(alone=alone, failure=None),
    )
    call: Any = SimpleNamespace(packed=b"", is_quick=False, core_count=cores)
    outcome: Any = Session.run(worker, call, (), lambda _: 0, 1.0, 0)
    assert outcome.alone is alone
