"""Where an operator runs in processes and threads: data loaders, forks, kills, interrupts, the end of the interpreter."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from neurontools.customop import torch_operators as registered
from neurontools.customop.errors import NeuronCustomOpError
from neurontools.customop.load import load_library
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.customop.executors import WorkerExecutor


@pytest.fixture
def faults(library: Callable[[str], Path]) -> Any:
    """The operators of the library `faults`."""
    load_library(library("faults"))
    return torch.ops.faults


def executor_of(qualified: str) -> WorkerExecutor:
    """Return what runs a loaded operator."""
    return registered._registry.operations[qualified].executor  # type: ignore[return-value]


def kill_until(done: threading.Event, executor: WorkerExecutor) -> None:
    """Kill the worker until a call has ended: the first time it may not have taken the request yet."""
    while not done.wait(0.1):
        pid = executor.pid
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def is_gone(pid: int) -> bool:
    """Return whether a process of another parent has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def script(body: str, *arguments: str, python: str = sys.executable, **options: Any) -> subprocess.Popen[str]:
    """Start a Python program that has loaded the library that its first argument names."""
    head = """
        import os, signal, sys, threading, time
        import torch
        from neurontools.customop import torch_operators
        from neurontools.customop.load import load_library
        load_library(sys.argv[1])
        x = torch.rand(8)
        def worker():
            return torch_operators._registry.operations["faults::copy"].executor.pid
    """
    return subprocess.Popen(
        [python, "-c", textwrap.dedent(head) + textwrap.dedent(body), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **options,
    )


class Numbers(torch.utils.data.Dataset[torch.Tensor]):
    """Numbers that went through an operator; loads its library where that is not loaded."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> torch.Tensor:
        load_library(self.path)
        return torch.ops.faults.copy(torch.full((8,), float(index)))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_the_workers_of_a_data_loader_call_operators(
    faults: Any, library: Callable[[str], Path], method: str
) -> None:
    faults.copy(torch.rand(3))
    mine = executor_of("faults::copy").pid
    loader = torch.utils.data.DataLoader(
        Numbers(str(library("faults"))),
        batch_size=4,
        num_workers=2 if method == "fork" else 1,  # others import torch anew, each for itself
        multiprocessing_context=method,
    )
    assert torch.equal(torch.cat(list(loader))[:, 0], torch.arange(24.0))
    assert executor_of("faults::copy").pid == mine
    assert torch.equal(faults.copy(torch.ones(3)), torch.ones(3))


def call_fault(x: torch.Tensor, which: int) -> torch.Tensor:
    """Call the operator that fails, by a name that can be sent to another process."""
    return torch.ops.faults.fault(x, x, which)


def test_an_error_in_a_pool_of_processes_arrives_as_it_is(faults: Any) -> None:
    x = torch.arange(8.0)
    with (
        multiprocessing.get_context("fork").Pool(1) as pool,
        pytest.raises(NeuronCustomOpError, match="index 8 is out of bounds") as caught,
    ):
        pool.apply_async(call_fault, (x, 4)).get(60)
    assert (caught.value.op, caught.value.kind, caught.value.core) == ("faults::fault", "bounds", 0)
    assert any("hint: " in note for note in caught.value.__notes__)


def test_children_forked_while_threads_call_have_workers_of_their_own(faults: Any) -> None:
    stop = threading.Event()
    counts = [0, 0]

    def work(index: int) -> None:
        x = torch.full((100,), float(index))
        while not stop.is_set():
            assert torch.equal(faults.copy(x), x)
            counts[index] += 1

    threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    try:
        codes = [_fork_and_call(faults) for _ in range(8)]
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert codes == [0] * 8
    assert min(counts) > 0


def _fork_and_call(faults: Any) -> int:
    child = os.fork()
    if child == 0:
        signal.alarm(30)  # a deadlock is a failure, not a test that never ends
        try:
            x = torch.full((5,), 7.0)
            os._exit(0 if torch.equal(faults.copy(x), x) else 2)
        finally:
            os._exit(3)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_fork_while_a_kernel_runs_waits_for_nothing(faults: Any) -> None:
    x = torch.rand(8)
    done: list[bool] = []
    thread = threading.Thread(target=lambda: done.append(torch.equal(faults.nap(x, 1.0), x)))
    thread.start()
    wait_until(executor_of("faults::nap")._lock.locked)
    assert _fork_and_call(faults) == 0
    thread.join()
    assert done == [True]


def test_a_fork_of_a_process_without_workers_waits_for_nothing(
    library: Callable[[str], Path], torch_python: str
) -> None:
    program = script(
        """
        executor = torch_operators._registry.operations["faults::nap"].executor
        thread = threading.Thread(target=torch.ops.faults.nap, args=(x, 0.5))
        thread.start()
        while not executor._lock.locked():
            time.sleep(0.01)
        child = os.fork()
        if child == 0:
            signal.alarm(30)
            os._exit(0 if torch.equal(torch.ops.faults.copy(x), x) else 2)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        thread.join()
        sys.exit(code)
        """,
        str(library("faults")),
        python=torch_python,
        env={**os.environ, "NEURONTOOLS_CUSTOMOP_INPROCESS": "1"},
    )
    _, errors = program.communicate(timeout=600)
    assert (program.returncode, errors) == (0, "")


def test_threads_on_two_libraries_get_their_own_results(faults: Any, library: Callable[[str], Path]) -> None:
    load_library(library("relu_tcm"))
    problems: list[str] = []

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for size in range(1, 40):
            x = torch.randn(size * seed, generator=generator)
            if not torch.equal(faults.copy(x), x):
                problems.append(f"copy of {size}")
            if not torch.equal(torch.ops.relu_tcm.forward(x), torch.relu(x)):
                problems.append(f"relu of {size}")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert executor_of("faults::copy").pid != executor_of("relu_tcm::forward").pid


def test_calls_of_two_libraries_run_side_by_side(faults: Any, library: Callable[[str], Path]) -> None:
    load_library(library("relu_tcm"))
    x = torch.rand(8)
    finished = threading.Event()

    def interrupted() -> None:
        with pytest.raises(NeuronCustomOpError, match="killed by SIGKILL"):
            faults.nap(x, 60.0)
        finished.set()

    faults.copy(x)
    thread = threading.Thread(target=interrupted)
    thread.start()
    wait_until(executor_of("faults::nap")._lock.locked)
    assert torch.equal(torch.ops.relu_tcm.forward(x), x)  # while the other kernel still runs
    assert not finished.is_set()
    kill_until(finished, executor_of("faults::nap"))
    thread.join()


def test_a_worker_killed_in_a_call_fails_that_call_alone(faults: Any) -> None:
    x = torch.rand(8)
    faults.copy(x)
    executor = executor_of("faults::nap")
    pid = executor.pid
    done = threading.Event()
    killer = threading.Thread(target=kill_until, args=(done, executor))
    killer.start()
    with pytest.raises(NeuronCustomOpError, match="worker: the worker was killed by SIGKILL"):
        faults.nap(x, 60.0)
    done.set()
    killer.join()
    assert torch.equal(faults.copy(x), x)
    assert executor.pid != pid


def test_the_end_of_the_interpreter_waits_for_no_kernel(library: Callable[[str], Path]) -> None:
    program = script(
        """
        torch.ops.faults.copy(x)
        print(worker(), flush=True)
        executor = torch_operators._registry.operations["faults::nap"].executor
        threading.Thread(target=torch.ops.faults.nap, args=(x, 600.0), daemon=True).start()
        while not executor._lock.locked():
            time.sleep(0.01)
        """,
        str(library("faults")),
    )
    output, errors = program.communicate(timeout=600)
    assert (program.returncode, errors) == (0, "")
    wait_until(lambda: is_gone(int(output)))


def test_an_interrupt_ends_the_call_and_the_next_one_starts_anew(library: Callable[[str], Path]) -> None:
    program = script(
        """
        def nap():
            torch.ops.faults.copy(x)
            threading.Thread(target=tell).start()
            torch.ops.faults.nap(x, 600.0)
        def tell():
            while not torch_operators._registry.operations["faults::nap"].executor._lock.locked():
                time.sleep(0.01)
            print(worker(), flush=True)
        try:
            nap()
        except KeyboardInterrupt:
            nap()
        """,
        str(library("faults")),
    )
    assert program.stdout is not None
    workers = []
    for _ in range(2):
        workers.append(int(program.stdout.readline()))
        os.killpg(program.pid, signal.SIGINT)  # as a terminal does: to the worker, too
    _, errors = program.communicate(timeout=600)
    assert program.returncode == -signal.SIGINT
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert workers[0] != workers[1]
    for pid in workers:
        wait_until(partial(is_gone, pid))


def test_a_process_that_is_terminated_takes_its_worker_along(
    library: Callable[[str], Path], torch_python: str
) -> None:
    program = script(
        """
        torch.ops.faults.copy(x)
        print(worker(), flush=True)
        torch.ops.faults.nap(x, 600.0)
        """,
        str(library("faults")),
        python=torch_python,
    )
    assert program.stdout is not None
    worker = int(program.stdout.readline())
    program.terminate()
    program.communicate(timeout=600)
    assert program.returncode == -signal.SIGTERM
    wait_until(lambda: is_gone(worker))
