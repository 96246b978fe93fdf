"""Requests and replies in shared memory: whoever waits is woken, and nobody waits for a worker that is gone."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from neurontools.customop import mailbox
from neurontools.customop.errors import NeuronCustomOpError
from neurontools.customop.executors import WorkerExecutor
from neurontools.customop.mailbox import Mailbox
from neurontools.customop.operation import CustomOperator
from neurontools.customop.torch_operators import Caller
from tests.customop.conftest import worker_of

Find = Callable[[str], CustomOperator]
Call = Callable[..., torch.Tensor]


@pytest.fixture
def executor(operation: Find) -> WorkerExecutor:
    found = operation("faults::copy").executor
    assert isinstance(found, WorkerExecutor)
    return found


@pytest.fixture
def copy(operation: Find) -> Call:
    return Caller(operation("faults::copy"))


@pytest.fixture
def nap(operation: Find) -> Call:
    return Caller(operation("faults::nap"))


@pytest.fixture
def asleep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks: every message goes with a system call."""
    monkeypatch.setattr("neurontools.customop.mailbox._IN_ORDER", False)


def pid_of(executor: WorkerExecutor) -> int:
    pid = executor.pid
    assert pid is not None
    return pid


def test_many_quick_calls(copy: Call) -> None:
    for number in range(3000):
        x = torch.full((4,), float(number))
        assert torch.equal(copy(x), x)


@pytest.mark.usefixtures("asleep")
def test_without_looking(copy: Call) -> None:
    for number in range(300):
        x = torch.full((4,), float(number))
        assert torch.equal(copy(x), x)


def test_more_wake_ups_than_a_pipe_holds_do_not_block() -> None:
    box = Mailbox()
    box._can_poll = False
    for _ in range(70_000):
        box.post()  # nobody reads
    box.close()


def test_threads_get_their_own_results(copy: Call) -> None:
    wrong: list[int] = []

    def work(seed: int) -> None:
        x = torch.full((6,), float(seed))
        wrong.extend(seed for _ in range(300) if not torch.equal(copy(x), x))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_worker_killed_in_a_call_is_one_error(executor: WorkerExecutor, nap: Call, copy: Call) -> None:
    x = torch.rand(4)
    copy(x)
    killer = threading.Timer(0.3, os.kill, (pid_of(executor), signal.SIGKILL))
    killer.start()
    with pytest.raises(NeuronCustomOpError, match="worker: the worker was killed by SIGKILL"):
        nap(x, 60.0)
    killer.join()
    assert torch.equal(copy(x), x)


def test_kills_at_any_moment_are_errors_or_go_unnoticed(executor: WorkerExecutor, copy: Call) -> None:
    x = torch.rand(4)
    copy(x)
    done = threading.Event()

    def kill() -> None:
        for turn in range(25):
            pid = executor.pid
            if pid is not None:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            done.wait(0.001 * (turn % 5))
        done.set()

    killer = threading.Thread(target=kill)
    killer.start()
    kinds = set()
    while not done.is_set():
        try:
            assert torch.equal(copy(x), x)
        except NeuronCustomOpError as error:
            kinds.add(error.kind)
    killer.join()
    assert kinds <= {"worker"}
    assert torch.equal(copy(x), x)


def test_a_stopped_worker_is_a_timeout(
    executor: WorkerExecutor, copy: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.rand(4)
    copy(x)
    stopped = worker_of(executor)
    os.kill(stopped, signal.SIGSTOP)
    monkeypatch.setenv("NEURON_RT_EXEC_TIMEOUT", "0.2")
    with pytest.raises(NeuronCustomOpError, match=r"timeout: no result after 0\.2 s"):
        copy(x)
    monkeypatch.delenv("NEURON_RT_EXEC_TIMEOUT")
    assert torch.equal(copy(x), x)
    assert not Path(f"/proc/{stopped}").exists()


def test_an_idle_worker_rests(executor: WorkerExecutor, copy: Call) -> None:
    x = torch.rand(4)
    for _ in range(200):
        copy(x)
    state = Path(f"/proc/{worker_of(executor)}/stat")
    ready = threading.Event()
    for _ in range(2000):
        if state.read_text().rpartition(")")[2].split()[0] == "S":
            break
        ready.wait(0.001)
    busy = [int(field) for field in state.read_text().rpartition(")")[2].split()[11:13]]
    ready.wait(0.3)
    assert [int(field) for field in state.read_text().rpartition(")")[2].split()[11:13]] == busy


def test_what_a_quick_kernel_prints_is_kept(
    operation: Find, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NEURON_RT_GPSIMD_STDOUT_QUEUE_SIZE_BYTES", "4096")
    monkeypatch.setenv("NEURON_RT_LOG_LEVEL", "INFO")
    fault = Caller(operation("faults::fault"))
    for _ in range(2):
        fault(torch.rand(5), torch.rand(5), 72)
    fault(torch.rand(5), torch.rand(5), 99)
    assert capfd.readouterr().err.count("5 elements") == 2


class Clock:
    """A clock that advances with each reading; `at` a reading, something happens."""

    def __init__(self, step_ns: int, at: int = 0, happens: Callable[[], None] = lambda: None) -> None:
        self._step_ns, self._at, self._happens = step_ns, at, happens
        self.readings = 0

    def monotonic_ns(self) -> int:
        self.readings += 1
        if self.readings == self._at:
            self._happens()
        return 1_000 + self.readings * self._step_ns


@pytest.fixture
def box() -> Iterator[Mailbox]:
    made = Mailbox()
    made._can_poll = True
    yield made
    made.close()


def answer(box: Mailbox) -> None:
    box._words[mailbox._ANSWERED] = box._number


def test_a_new_mailbox_polls_at_once_and_as_long_as_its_time_lasts(
    box: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(mailbox._POLL_NS // 4, at=4, happens=lambda: answer(box))
    monkeypatch.setattr(mailbox, "time", clock)
    box.post()
    assert box.poll()
    assert clock.readings == 4


def test_a_poll_lasts_as_long_as_a_worker_takes_to_wake_up(
    box: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mailbox, "_SKIPPED_POLLS_MAX", 0)
    readings = []
    for sleeps in (0, 1):
        box._words[mailbox._WORKER_SLEEPS] = sleeps
        box._words[mailbox._WORKER_WAKE_UP] = 2 * mailbox._POLL_NS
        clock = Clock(mailbox._POLL_NS // 4)
        monkeypatch.setattr(mailbox, "time", clock)
        box.post()
        before = clock.readings
        assert not box.poll()
        readings.append(clock.readings - before)
    assert readings == [6, 22]


def test_wake_ups_are_measured_as_a_limited_mean(box: Mailbox, monkeypatch: pytest.MonkeyPatch) -> None:
    known = []
    for took_ns in (40_000, 80_000, 10**9, 10**9):
        mailbox._NUMBER.pack_into(box.memory, mailbox._ANSWERED_NS, 5)
        monkeypatch.setattr(mailbox, "time", Clock(took_ns - 995))
        box._note_wake_up()
        known.append(box._words[mailbox._HOST_WAKE_UP])
    assert known == [40_000, 50_000, 62_500, 71_875]


def relay(read_fd: int, write_fd: int) -> int:
    """Start a process that hands on each wake-up late, as a slow computer does; return its id."""
    pid = os.fork()
    if pid:
        return pid
    try:
        while data := os.read(read_fd, 64):
            threading.Event().wait(60e-6)
            os.write(write_fd, data)
    finally:
        os._exit(0)


@pytest.fixture
def slow_wake_ups(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Wake-ups take longer than the usual polls; return a list with an item for each wake-up of a worker."""
    relays: list[int] = []
    woken: list[int] = []
    wake = Mailbox._wake

    class SlowMailbox(Mailbox):
        def __init__(self) -> None:
            super().__init__()
            self._wake_fd = self._via(self._wake_fd)
            self._woken_write = self._via(self._woken_write)
            os.set_blocking(self._wake_fd, False)

        def _via(self, fd: int) -> int:
            read_fd, write_fd = os.pipe2(os.O_CLOEXEC)
            relays.append(relay(read_fd, fd))
            os.close(fd)
            self._open.remove(fd)
            self._open += [read_fd, write_fd]
            return write_fd

        def _wake(self) -> None:
            woken.append(1)
            wake(self)

    monkeypatch.setattr("neurontools.customop.session.Mailbox", SlowMailbox)
    yield woken
    for pid in relays:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@pytest.mark.skipif(not mailbox._IN_ORDER or len(os.sched_getaffinity(0)) < 2, reason="nobody polls")
def test_calls_in_a_loop_need_no_wake_ups_where_these_are_slow(slow_wake_ups: list[int], copy: Call) -> None:
    x = torch.rand(4)
    for _ in range(1000):
        before = len(slow_wake_ups)
        for _ in range(20):
            copy(x)
        if len(slow_wake_ups) == before:
            return
    pytest.fail("the worker had to be woken up again and again")


def test_polls_that_fail_are_left_out_the_next_times(box: Mailbox, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(mailbox._POLL_NS // 4)
    monkeypatch.setattr(mailbox, "time", clock)
    box.post()
    tried = []
    for _ in range(9):
        before = clock.readings
        assert not box.poll()
        tried.append(clock.readings > before)
    assert tried == [True, False, False, True, False, False, False, False, True]
    assert clock.readings == 3 * 6  # the first starts the time, the last is the first one after it


def test_a_call_is_quick_below_the_time_of_a_wake_up(box: Mailbox) -> None:
    reply = mailbox.abi.Reply.from_buffer(box.memory, mailbox.REPLY_OFFSET)
    quick = []
    for elapsed_ns in (0, mailbox._QUICK_NS - 1, mailbox._QUICK_NS):
        reply.elapsed_ns = elapsed_ns
        quick.append(box.was_quick)
    del reply  # a buffer in use keeps the memory open
    assert quick == [True, True, False]
