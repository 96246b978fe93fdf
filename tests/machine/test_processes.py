"""Who made a connection, with and without the kernel's pidfd of a peer (SO_PEERPIDFD)."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from neurontools.machine import processes
from neurontools.machine.processes import PeerProcess, key_of

if TYPE_CHECKING:
    from pathlib import Path

WITH_AND_WITHOUT_PIDFD = pytest.mark.parametrize("has_pidfd", [True, False])

# Process 1 of a pid namespace: a pid is used again by another user, while the first user's connection lives on.
REUSE = """
import os, socket, subprocess, sys
sys.path.insert(0, sys.argv[1])
from neurontools.machine import processes
subprocess.run(["mount", "-t", "proc", "proc", "/proc"], check=True)
if sys.argv[2] == "False":
    processes.has_peer_pidfd = lambda: False
listener = socket.socket(socket.AF_UNIX)
listener.bind("\\0reuse")
listener.listen()
ours, theirs = socket.socketpair()

def start(uid, act):
    pid = os.fork()
    if pid == 0:
        os.setresuid(uid, uid, uid)
        act()
        os._exit(0)
    return pid

def connect():
    client = socket.socket(socket.AF_UNIX)
    client.connect("\\0reuse")
    socket.send_fds(theirs, [b"."], [client.fileno()])
    theirs.recv(1)

first = start(65534, connect)
_, kept, _, _ = socket.recv_fds(ours, 1, 1)
accepted = None
if sys.argv[3] == "accepted before":
    accepted = processes.PeerProcess(listener.accept()[0])
    assert accepted.key().pid == first
ours.send(b".")
os.waitpid(first, 0)
with open("/proc/sys/kernel/ns_last_pid", "w") as file:
    file.write(str(first - 1))
second = start(65533, lambda: theirs.recv(1))
assert second == first
accepted = accepted or processes.PeerProcess(listener.accept()[0])
assert accepted.peer == processes.Peer(first, 65534)
try:
    print("taken for", accepted.key())
except ProcessLookupError:
    print("alive" if accepted.is_alive() else "gone")
ours.send(b".")
"""


def connected(listener: socket.socket) -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.connect(listener.getsockname())
    return client


@pytest.fixture
def listener(tmp_path: Path) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(tmp_path / "socket"))
    listening.listen()
    return listening


@WITH_AND_WITHOUT_PIDFD
def test_a_connection_is_the_process_that_made_it(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch, has_pidfd: bool
) -> None:
    if has_pidfd and not processes.has_peer_pidfd():
        pytest.skip("this kernel has no SO_PEERPIDFD")
    monkeypatch.setattr(processes, "has_peer_pidfd", lambda: has_pidfd)
    parent, child_end = socket.socketpair()
    child = os.fork()
    if child == 0:
        client = connected(listener)
        socket.send_fds(child_end, [b"."], [client.fileno()])
        child_end.recv(1)
        os._exit(0)
    # The connection itself outlives the process that made it.
    _, (kept,), _, _ = socket.recv_fds(parent, 1, 1)
    with listener.accept()[0] as accepted, parent, child_end, listener:
        process = PeerProcess(accepted)
        assert process.is_alive()
        assert process.key() == key_of(child)
        parent.send(b".")
        os.waitpid(child, 0)
        assert not process.is_alive()
        with pytest.raises(ProcessLookupError):
            process.key()
    os.close(kept)


@pytest.mark.skipif(os.geteuid() != 0, reason="a pid namespace and other users need root")
@WITH_AND_WITHOUT_PIDFD
@pytest.mark.parametrize("accepted", ["accepted before", "accepted after"])
def test_a_reused_pid_does_not_speak_for_another_user(has_pidfd: bool, accepted: str) -> None:
    if has_pidfd and not processes.has_peer_pidfd():
        pytest.skip("this kernel has no SO_PEERPIDFD")
    ran = subprocess.run(
        [
            *("unshare", "--pid", "--mount", "--net", "--fork", sys.executable, "-c", REUSE),
            *(os.path.dirname(os.path.dirname(processes.__file__)) + "/..", str(has_pidfd), accepted),
        ],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if "unshare failed" in ran.stderr:
        pytest.skip(f"no namespaces here: {ran.stderr.strip()}")
    assert (ran.stdout, ran.stderr) == ("gone\n", "")


def test_a_process_that_is_shown_or_gone_is_not_hidden() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert not processes.is_hidden(os.getpid())
    assert not processes.is_hidden(gone.pid)
    assert not processes.is_hidden(1 << 70)


def test_a_process_that_proc_does_not_show_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes.os, "access", lambda *_: False)
    assert processes.is_hidden(os.getpid())


def test_the_stack_of_a_process_is_known_while_it_lives() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert processes.stack_start(gone.pid) == 0
    assert processes.stack_start(os.getpid()) > 0
