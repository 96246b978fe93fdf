"""Signals to processes: real ones, of this user and of another one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from neurontools.base.procfs import read_start_ticks
from neurontools.dashboard.local_processes import rejection_reason, send_signal
from neurontools.errors import NeuronToolsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from neurontools.machine.snapshot import ProcessState

NOBODY = 65534
AS_NOBODY = f"""
import os, signal, sys
from neurontools.dashboard.local_processes import send_signal
from neurontools.errors import NeuronToolsError
os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
try:
    send_signal(int(sys.argv[1]), int(sys.argv[2]), signal.SIGKILL)
except NeuronToolsError as error:
    print(error.message, '|', error.remedy)
"""


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


def state(process_at: Callable[..., ProcessState], pid: int, uid: int = 0) -> ProcessState:
    return replace(process_at(pid), start_ticks=read_start_ticks(pid), uid=uid)


def test_an_own_process_gets_it(
    victim: subprocess.Popen[bytes], process_at: Callable[..., ProcessState]
) -> None:
    assert rejection_reason(state(process_at, victim.pid), "sim") == ""
    send_signal(victim.pid, read_start_ticks(victim.pid), signal.SIGTERM)
    assert victim.wait(timeout=600) == -signal.SIGTERM
    assert rejection_reason(process_at(victim.pid), "sim") == f"process {victim.pid} is gone"
    with pytest.raises(NeuronToolsError, match="is gone"):
        send_signal(victim.pid, 1, signal.SIGTERM)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_users_process_gets_none_and_lives(victim: subprocess.Popen[bytes]) -> None:
    told = subprocess.run(
        [sys.executable, "-c", AS_NOBODY, str(victim.pid), str(read_start_ticks(victim.pid))],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert told.startswith(f"process {victim.pid} belongs to another user: ")
    assert "may not signal it | run neuron-top as that user" in told
    assert victim.poll() is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_it_is_refused_before_anything_is_asked(
    victim: subprocess.Popen[bytes], process_at: Callable[..., ProcessState]
) -> None:
    process = state(process_at, victim.pid)
    reason = as_nobody(lambda: rejection_reason(process, "sim"))
    assert reason.startswith(f"process {victim.pid} belongs to ")
    assert reason.endswith("may not signal it")


def as_nobody(answer: Callable[[], str]) -> str:
    """Return what a function says as another user, in a child that is that user for good."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.setgroups([])
        os.setresuid(NOBODY, NOBODY, NOBODY)
        os.write(writer, answer().encode())
        os._exit(0)
    os.close(writer)
    with open(reader) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return said
