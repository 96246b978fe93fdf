"""Programs that are no workers of a job and reach its store and its sockets: nothing of theirs gets into a tensor."""

from __future__ import annotations

import errno
import os
import resource
import secrets
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist

from neurontools import env, paths
from neurontools.errors import NeuronToolsError
from neurontools.xla.distributed import greeting, shared_exchange, worker_roster
from neurontools.xla.distributed.greeting import WorkerListener
from neurontools.xla.distributed.worker_roster import JobKey, JobNetwork, WorkerStore
from neurontools.xla.distributed.workers import WorkerError
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.torch
KEY = JobKey(b"secret of the job")
STRANGER = 1001
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start programs of another user")
USERS = [pytest.param(None, id="own user"), pytest.param(STRANGER, id="another user", marks=as_root)]


@contextmanager
def program(user: int | None, text: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a Python program as a user while the block runs; its first line of output says that it is ready."""
    code = f"import os, resource, socket, sys, time\nos.setuid({user or os.geteuid()})\n{text}"
    with subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield process
        finally:
            process.send_signal(signal.SIGKILL)


# The store


@pytest.mark.parametrize(
    "entry",
    [
        b"",
        b"[4711, 1]",
        KEY.sign(b"worker/1", b"[4711, 1]")[1:],
        JobKey(b"").sign(b"worker/1", b"[4711, 1]") + b"[4711, 1]",
        KEY.sign(b"worker/0", b"[4711, 1]") + b"[4711, 1]",
        KEY.sign(b"worker/1", b"[4711, 1]") + b"[4712, 1]",
        KEY.sign(b"worker/1[4711, 1]") + b"[4711, 1]",
    ],
    ids=["empty", "unsigned", "cut off", "without the secret", "of another entry", "changed", "one text"],
)
def test_entries_of_a_stranger_are_named_and_not_used(entry: bytes) -> None:
    plain = dist.HashStore()
    store = WorkerStore(plain, KEY)
    assert store.get("worker/1") is None
    plain.set("worker/1", entry)
    with pytest.raises(WorkerError, match="'worker/1' of the workers' store is not from a worker") as caught:
        store.get("worker/1")
    assert env.JOB_SECRET in caught.value.remedy
    store.set("worker/1", b"[4711, 1]")
    assert store.get("worker/1") == b"[4711, 1]"


def test_an_ended_store_is_a_lost_connection() -> None:
    master = dist.TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)
    store = WorkerStore(dist.TCPStore("127.0.0.1", master.port, None, is_master=False), KEY)
    store.set("a", b"b")
    del master
    for use in (lambda: store.get("a"), lambda: store.has("a"), lambda: store.set("a", b"c")):
        with pytest.raises(ConnectionError, match="the process that holds the workers' store has ended"):
            use()


# The secret


def test_workers_that_start_together_have_one_secret_that_others_cannot_read(home: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda _: worker_roster._user_secret(), range(8)))
    assert len(found) == 1
    file = Path(paths.own_runtime_dir(), paths.JOB_SECRET)
    assert file.stat().st_mode & 0o777 == 0o600
    assert os.listdir(file.parent).count(file.name) == len([*file.parent.glob(".*")]) == 1


def _make(path: str, kind: str) -> None:
    if kind == "link":
        os.symlink("/etc/hostname", path)
    elif kind == "directory":
        os.mkdir(path)
    elif kind == "pipe":
        os.mkfifo(path, 0o600)
    else:
        with open(path, "wb") as file:
            file.write(bytes(31 if kind == "too short" else 33 if kind == "too long" else 32))
        os.chmod(path, 0o640 if kind == "open to others" else 0o600)
        if kind == "another user's":
            os.chown(path, STRANGER, STRANGER)


@pytest.mark.parametrize(
    "kind",
    [
        *("link", "directory", "pipe", "too short", "too long", "open to others"),
        pytest.param("another user's", marks=as_root),
    ],
)
def test_a_secret_that_is_not_private_is_refused(home: Path, kind: str) -> None:
    _make(f"{paths.ensure_private(paths.own_runtime_dir())}/{paths.JOB_SECRET}", kind)
    with pytest.raises(NeuronToolsError, match=r"the workers' secret /.*/\.job-secret"):
        worker_roster._user_secret()


@pytest.mark.parametrize(
    ("local_size", "master", "secret", "same", "authenticated"),
    [
        ("2", "", "", True, True),
        ("2", "a.name.that.nobody.has", "", True, True),
        ("1", "localhost", "", True, True),
        ("1", "127.0.0.1", "", True, True),
        ("1", "127.0.0.1", "given", True, True),
        ("1", "192.0.2.1", "", False, False),
        ("1", "192.0.2.1", "given", False, True),
    ],
)
def test_workers_of_one_host_stay_on_it_and_those_of_several_need_a_given_secret(
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    local_size: str,
    master: str,
    secret: str,
    same: bool,
    authenticated: bool,
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", local_size)
    monkeypatch.setenv("MASTER_ADDR", master)
    monkeypatch.setenv(env.JOB_SECRET, secret)
    monkeypatch.setattr(worker_roster, "_address_towards", lambda host: f"towards {host}")
    worker_roster._warn_of_strangers.cache_clear()
    networks = [JobNetwork(dist.HashStore(), rank, 2) for rank in (0, 1, 0)]
    assert {network.address for network in networks} == {"127.0.0.1" if same else f"towards {master}"}
    signatures = {network.key.sign(b"x") for network in networks}
    assert len(signatures) == 1
    assert (signatures == {JobKey(b"").sign(b"x")}) is not authenticated
    assert caplog.text.count("their messages are not authenticated") == (not authenticated)
    assert Path(paths.own_runtime_dir(), paths.JOB_SECRET).exists() is (same and not secret)


# Connections over TCP

Serve = list[tuple[int, bytes]]


@pytest.fixture
def served() -> Serve:
    """What workers have sent to the listener: their ranks and the first byte."""
    return []


@pytest.fixture
def listener(served: Serve) -> WorkerListener:
    """The listener of rank 1 of 2."""
    return WorkerListener("127.0.0.1", KEY, 1, 2, lambda rank, own: served.append((rank, own.recv(1))))


def reach(listener: WorkerListener, served: Serve) -> None:
    """Connect as rank 0 and send a byte."""
    with greeting.connect(listener.address, KEY, 0, 1) as connection:
        connection.sendall(b"w")
        while connection.recv(1):
            pass
    assert served == [(0, b"w")]


def proof(
    rank: int, theirs: bytes, ours: bytes, key: JobKey = KEY, way: bytes = b"connect", to: int = 1
) -> bytes:
    return greeting._ANSWER.pack(rank, ours, key.sign(way, theirs, ours, greeting._RANKS.pack(rank, to)))


OURS = bytes(32)
ANSWERS: dict[str, Callable[[bytes], bytes]] = {
    "nothing": lambda _: b"",
    "a part": lambda theirs: proof(0, theirs, OURS)[:-1],
    "garbage": lambda _: secrets.token_bytes(200),
    "zeros": lambda _: bytes(200),
    "their challenge": lambda theirs: theirs * 3,
    "a recorded proof": lambda _: proof(0, b"c" * 32, OURS),
    "a proof without the secret": lambda theirs: proof(0, theirs, OURS, JobKey(b"")),
    "a proof of the other direction": lambda theirs: proof(0, theirs, OURS, way=b"accept"),
    "a proof to another worker": lambda theirs: proof(0, theirs, OURS, to=0),
    "challenges in the other order": lambda theirs: proof(0, OURS, theirs),
    "a rank below": lambda theirs: proof(-1, theirs, OURS),
    "a rank above": lambda theirs: proof(2, theirs, OURS),
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_an_answer_that_is_no_proof_is_not_heard(
    listener: WorkerListener, served: Serve, answer: Callable[[bytes], bytes]
) -> None:
    with socket.create_connection(listener.address) as stranger:
        stranger.sendall(answer(bytes(greeting.receive(stranger, 32))))
        with suppress(OSError):  # it has left already, and what was sent
            stranger.shutdown(socket.SHUT_WR)
            assert stranger.recv(1) == b""
    reach(listener, served)


def test_a_proof_of_another_connection_is_not_heard(listener: WorkerListener, served: Serve) -> None:
    with ExitStack() as stack:
        first, second = (stack.enter_context(socket.create_connection(listener.address)) for _ in range(2))
        answer = proof(0, bytes(greeting.receive(first, 32)), OURS)
        greeting.receive(second, 32)
        second.sendall(answer)
        assert second.recv(1) == b""
    reach(listener, served)


@pytest.mark.parametrize("answer", [bytes(32), KEY.sign(b"accept"), b""], ids=["zeros", "a proof", "nothing"])
def test_a_stranger_at_the_address_of_a_worker_gets_no_message(answer: bytes) -> None:
    seen: list[bytes] = []

    def answer_one(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(bytes(32))
            seen.append(bytes(greeting.receive(connection, greeting._ANSWER.size)))
            connection.sendall(answer)
            connection.shutdown(socket.SHUT_WR)
            seen.append(connection.recv(1))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer_one, args=(listener,))
        thread.start()
        with pytest.raises(PermissionError if answer else ConnectionError):
            greeting.connect(listener.getsockname(), KEY, 0, 1)
        thread.join()
    assert seen[1] == b""
    assert b"secret" not in seen[0]


@pytest.mark.parametrize("user", USERS)
def test_a_flood_of_silent_connections_costs_little_and_workers_get_through(
    listener: WorkerListener, served: Serve, user: int | None
) -> None:
    flood = """
resource.setrlimit(resource.RLIMIT_NOFILE, [resource.getrlimit(resource.RLIMIT_NOFILE)[1]] * 2)
address = sys.argv[1], int(sys.argv[2])
kept = [socket.socket() for _ in range(900)]
for one in kept: one.connect(address)
print('ready', flush=True)
time.sleep(600)
"""
    most = greeting._MOST_UNKNOWN + 2
    before = len(os.listdir("/proc/self/fd"))
    host, port = listener.address
    with program(user, flood, host, str(port)):
        reach(listener, served)
        assert len(listener._unknown) <= most
        assert len(os.listdir("/proc/self/fd")) - before <= most + 4  # with the pipe of the program
    wait_until(lambda: not listener._unknown)


def test_a_full_table_of_descriptors_is_survived_and_named(
    listener: WorkerListener, caplog: pytest.LogCaptureFixture
) -> None:
    greeting._warn.cache_clear()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.create_server(("127.0.0.1", 0)) as own, socket.create_connection(own.getsockname()):
        lowest_free = os.dup(0)
        os.close(lowest_free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, limits[1]))
        try:
            assert greeting.accept(own) is None
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        connection = greeting.accept(own)
        assert connection is not None
        connection.close()
    assert "Cannot accept a connection of another worker, trying again: Too many open files" in caplog.text


@pytest.mark.parametrize(
    "number", [errno.ENFILE, errno.ECONNABORTED, errno.ENOBUFS, errno.ENOMEM, errno.EPROTO]
)
def test_other_errors_of_accept_are_survived_and_named(number: int, caplog: pytest.LogCaptureFixture) -> None:
    class Failing(socket.socket):
        def accept(self) -> Any:
            raise OSError(number, os.strerror(number))

    greeting._warn.cache_clear()
    with Failing() as failing:
        assert greeting.accept(failing) is None
    assert os.strerror(number) in caplog.text


# Connections on one computer


class EndedError(Exception):
    """The error of a wait."""


class Waiting:
    """Waits a number of times."""

    def __init__(self, count: int = 1 << 62) -> None:
        self.count = count

    def check(self, takes_part: Callable[[int], bool]) -> None:
        self.count -= 1
        if self.count < 0:
            raise EndedError(*(position for position in range(2) if not takes_part(position)))

    def failure(self, error: Exception, position: int) -> Exception:
        return EndedError(position, str(error))

    def mismatch(self, position: int, other: str) -> Exception:
        return EndedError(position, other)


KNOCK = """
address = b'\\0' + bytes.fromhex(sys.argv[1])
knocks = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(20)]
for knock in knocks: knock.connect(address)
print('ready', flush=True)
for knock in knocks:
    try: print(socket.recv_fds(knock, 256, 1)[:2], flush=True)
    except ConnectionResetError: print((b'', []), flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("user", USERS)
def test_a_stranger_who_comes_first_gets_no_memory(user: int | None) -> None:
    with shared_exchange.listen() as listener:
        name = listener.getsockname()
        with program(user, KNOCK, name[1:].hex()) as stranger:
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    with shared_exchange.listen() as own:
                        pids = [os.getppid(), os.getpid()]
                        exchange = shared_exchange.connect(own, 1, pids, [name, b""], Waiting())
                        exchange.barrier(Waiting())
                        status = 0
                finally:
                    os._exit(status)
            exchange = shared_exchange.connect(listener, 0, [os.getpid(), child], [name, b""], Waiting())
            exchange.barrier(Waiting())
            assert os.waitpid(child, 0)[1] == 0
            assert stranger.stdout is not None
            assert {stranger.stdout.readline() for _ in range(20)} == {b"(b'', [])\n"}
            for connection in exchange.connections:
                connection.close()


@pytest.mark.parametrize("user", USERS)
def test_a_stranger_who_has_the_address_of_a_member_is_not_taken_for_it(user: int | None) -> None:
    squat = """
own = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
own.bind(b'\\0' + bytes.fromhex(sys.argv[1]))
own.listen()
print('ready', flush=True)
time.sleep(600)
"""
    name = b"\0" + secrets.token_bytes(8)
    with program(user, squat, name[1:].hex()) as stranger, shared_exchange.listen() as own:
        # Another user's process may have got the pid of a member that has ended.
        pid = os.getpid() if user is None else stranger.pid
        with pytest.raises(EndedError, match="another process has its address"):
            shared_exchange.connect(own, 1, [pid, os.getpid()], [name, b""], Waiting())


def test_a_full_queue_at_a_member_does_not_stop_the_wait_for_it() -> None:
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        listener.bind("")
        listener.listen(0)
        stranger = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        stranger.connect(listener.getsockname())
        own = stack.enter_context(shared_exchange.listen())
        with pytest.raises(EndedError) as caught:
            shared_exchange.connect(own, 1, [os.getpid()] * 2, [listener.getsockname(), b""], Waiting(1))
    assert caught.value.args == (0,)


def test_strangers_that_keep_knocking_do_not_stop_the_wait_for_a_member() -> None:
    with ExitStack() as stack:
        listener = stack.enter_context(shared_exchange.listen())
        for _ in range(20):
            knock = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            knock.connect(listener.getsockname())
        with pytest.raises(EndedError) as caught:  # before the last of them was accepted
            shared_exchange.connect(listener, 0, [os.getpid(), os.getppid()], [b"", b""], Waiting(10))
        assert caught.value.args == (0, 1)


def test_memory_that_does_not_fit_into_the_table_of_descriptors_is_named() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        socket.send_fds(theirs, [b"areas"], [theirs.fileno()])
        exchange = shared_exchange.SharedExchange(1, {0: ours})
        lowest_free = os.dup(0)
        os.close(lowest_free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, limits[1]))
        try:
            with pytest.raises(OSError, match="Too many open files: 'memory shared by the workers'"):
                exchange.share_memory(Waiting())
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert torch.ones(1).item() == 1
