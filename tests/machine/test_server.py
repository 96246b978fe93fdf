"""What each client gets of the daemon's time and memory."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from contextlib import suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from neurontools.machine import processes
from neurontools.machine.daemon import daemon as daemon_module
from neurontools.machine.daemon import fault_service, methods, server, telemetry
from neurontools.machine.daemon.exit_watcher import ExitWatcher
from neurontools.machine.daemon.rpc import RpcHandler, Watching
from neurontools.machine.daemon.server import Connection, Server
from neurontools.machine.daemon.service import MachineService
from neurontools.machine.processes import ProcessKey
from neurontools.machine.protocol import SYNTHETIC_PIDS_ABOVE, ErrorCode, RpcCall

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from neurontools.machine.machine_config import DaemonInfo


class Recorder:
    """Takes connections and records their lines."""

    def __init__(self) -> None:
        self.lines: list[bytes | None] = []

    def on_open(self, connection: Connection) -> None:
        pass

    def on_line(self, _connection: Connection, line: bytes | None) -> None:
        self.lines.append(line)

    def on_close(self, _connection: Connection) -> None:
        pass


def serve(home: Path, sent: list[bytes], is_done: Callable[[Recorder, Server], bool]) -> list[bytes | None]:
    """Return the lines that a server got in order from clients that sent everything before it started."""

    async def run() -> list[bytes | None]:
        recorder = Recorder()
        listening = Server(asyncio.get_running_loop(), recorder)
        listening.listen(str(home / "socket"), 0o600)
        clients = []
        for data in sent:
            clients.append(socket.socket(socket.AF_UNIX))
            clients[-1].connect(str(home / "socket"))
            clients[-1].sendall(data)
        while not is_done(recorder, listening):  # noqa: ASYNC110  the server's own turns are awaited
            await asyncio.sleep(0)
        listening.close()
        for client in clients:
            client.close()
        return recorder.lines

    return asyncio.run(asyncio.wait_for(run(), 20))


def test_clients_are_answered_in_turn(home: Path) -> None:
    sent = [b"many\n" * 100, b"one\n", b"few\n" * 3]
    lines = serve(home, sent, lambda recorder, _: len(recorder.lines) == 104)
    assert lines.index(b"one") < 3
    assert max(place for place, line in enumerate(lines) if line == b"few") < 9


def test_the_longest_unfinished_request_of_a_user_goes_first(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_UNFINISHED_MAX_BYTES", 1000)
    sent = [b"a" * 400, b"b" * 900, b"c" * 300, b"done\n"]
    left: list[int] = []

    def is_done(recorder: Recorder, listening: Server) -> bool:
        left[:] = sorted(connection.unfinished_bytes for connection in listening.connections)
        return left == [0, 300, 400] and recorder.lines == [b"done"]

    serve(home, sent, is_done)
    assert left == [0, 300, 400]


def test_a_client_that_sends_invalid_requests_is_dropped(daemon: DaemonInfo, line: Callable[[], Any]) -> None:
    flood, other = line(), line()
    flood.send(b"\n" * 1000)
    answers = flood.file.readlines()
    assert len(answers) == 100
    assert json.loads(answers[-1])["error"]["message"].startswith("the line is not valid JSON: ")
    assert other.hello()["result"]["machine"] == "default"
    with open(daemon.log, encoding="utf-8") as log:
        assert "it sends invalid requests" in log.read()


def test_a_watcher_has_one_timer_whatever_periods_it_asks_for() -> None:
    async def run() -> None:
        watching: Any = Watching(lambda: None, lambda: "{}")  # type: ignore[arg-type,return-value]
        one, other = object(), object()
        for number in range(100):
            watching.add(one, 100.0 + number, changes=number % 2 == 0)
        watching.add(other, 199.0)
        assert len(watching._timers) == 1
        watching.remove(one)
        assert len(watching._timers) == 1
        watching.remove(other)
        assert not watching._timers
        assert not watching._whole
        assert not watching._changes

    asyncio.run(run())


def test_a_closed_connection_speaks_for_no_process() -> None:
    added: list[ProcessKey] = []
    service: Any = SimpleNamespace(exec_detector=SimpleNamespace(add=added.append))
    spoken = methods.Methods(service, *[cast("Any", None)] * 4)
    one, other = cast("Connection", object()), cast("Connection", object())
    first, second, third = (ProcessKey(pid, 1) for pid in (1, 2, 3))
    spoken.owners.update({first: one, second: other, third: one})
    spoken.forget(one)
    spoken.forget(one)
    assert spoken.owners == {second: other}
    assert added == [first, third]


def test_a_process_that_exits_while_it_is_answered_is_no_failure_of_the_daemon(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It was alive when its request was checked; its exit is detected when it is to be watched."""
    handler = RpcHandler.__new__(RpcHandler)
    sent: list[bytes] = []
    connection: Any = SimpleNamespace(peer=processes.Peer(7, 1), send=sent.append)

    def register(*_: object) -> None:
        raise ProcessLookupError(7)

    monkeypatch.setattr(handler, "_call", register)
    handler._answer(connection, RpcCall(3, "register", {}))
    answer = json.loads(sent[0])
    assert (answer["id"], answer["error"]["code"]) == (3, ErrorCode.PEER_REFUSED)
    assert answer["error"]["message"] == "process 7 that made this connection is gone"
    assert not caplog.records


def test_what_a_full_socket_does_not_take_is_sent_later() -> None:
    """Every byte arrives once and in order, and what waits is counted until it is sent."""
    messages = [bytes([number]) * 300_000 for number in range(1, 4)]

    async def run() -> tuple[list[int], int, bytes]:
        left, right = socket.socketpair()
        left.setblocking(False)
        right.setblocking(False)
        full = 0
        with suppress(BlockingIOError):
            while True:
                full += left.send(bytes(1000))
        connection = Connection(Server(asyncio.get_running_loop(), Recorder()), left)
        waiting = []
        for message in messages:
            connection.send(message)
            waiting.append(connection._unsent_bytes)
        arrived = b""
        while len(arrived) < full + 900_000:
            try:
                arrived += right.recv(1 << 16)
            except BlockingIOError:
                await asyncio.sleep(0)
        rest = connection._unsent_bytes
        asyncio.get_running_loop().remove_reader(left.fileno())
        left.close()
        right.close()
        return waiting, rest, arrived[full:]

    waiting, rest, arrived = asyncio.run(asyncio.wait_for(run(), 20))
    assert waiting == [300_000, 600_000, 900_000]
    assert arrived == b"".join(messages)
    assert rest == 0


@pytest.mark.parametrize("uid", [os.getuid(), os.getuid() + 1])
def test_only_the_daemon_s_user_can_ask_it_to_restore_its_directory(
    home: Path, monkeypatch: pytest.MonkeyPatch, uid: int
) -> None:
    restored: list[bool] = []
    monkeypatch.setattr(daemon_module, "peer_of", lambda _: processes.Peer(7, uid))
    asked = daemon_module.Daemon.__new__(daemon_module.Daemon)
    monkeypatch.setattr(asked, "restore", lambda: restored.append(True), raising=False)
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as client:
        listener.bind(str(home / "socket"))
        listener.listen()
        client.connect(str(home / "socket"))
        asked._recover(listener)
        assert client.recv(10) == (b"\n" if uid == os.getuid() else b"")
    assert restored == ([True] if uid == os.getuid() else [])


class Timers:
    """A loop that notes when its timers are due."""

    def __init__(self) -> None:
        self.delays: list[float] = []

    def call_later(self, delay_s: float, _call: object) -> None:
        self.delays.append(delay_s)


@pytest.mark.parametrize("armed", [0, 2])
def test_a_new_process_learns_of_the_faults_that_are_armed_for_it(
    monkeypatch: pytest.MonkeyPatch, armed: int
) -> None:
    rung: list[tuple[int, int]] = []
    monkeypatch.setattr(fault_service, "ring", lambda fd, count: rung.append((fd, count)))
    machine: Any = SimpleNamespace(
        faults=SimpleNamespace(faults=lambda: tuple(range(armed)), armed_for=lambda _: armed)
    )
    key, telemetry = ProcessKey(1, 1), SimpleNamespace(process=None, page_fd=5)
    service = fault_service.FaultService(machine, cast("Any", {key: telemetry}), *[cast("Any", None)] * 3)
    service.joined(key)
    assert rung == ([(5, 2)] if armed else [])


def test_a_fault_is_due_at_its_time_and_at_once_if_that_is_past(monkeypatch: pytest.MonkeyPatch) -> None:
    timers = Timers()
    due = iter([2_500_000_000, 500_000_000, None])
    machine: Any = SimpleNamespace(faults=SimpleNamespace(next_ns=lambda: next(due)))
    monkeypatch.setattr(fault_service.time, "monotonic_ns", lambda: 1_000_000_000)
    service = fault_service.FaultService(
        machine, {}, cast("Any", None), cast("Any", timers), cast("Any", None)
    )
    for _ in range(3):
        service._schedule()
    assert timers.delays == [1.5, 0.0]


def test_hangs_of_processes_that_ended_without_a_daemon_are_forgotten() -> None:
    held = [SimpleNamespace(held=((1, 0), (2, 0))), SimpleNamespace(held=((3, 1),))]
    released: list[int] = []
    machine: Any = SimpleNamespace(
        handle=lambda *_: (),
        processes={1: SimpleNamespace(key=ProcessKey(1, 7))},
        faults=SimpleNamespace(faults=lambda: held, release=released.append, next_ns=lambda: None),
    )
    service = fault_service.FaultService(machine, {}, *[cast("Any", None)] * 3)
    service.adopted()
    assert released == [2, 3]


def test_synthetic_processes_get_pids_that_no_real_one_has() -> None:
    living = [ProcessKey(12, 1)]
    service: Any = SimpleNamespace(machine=SimpleNamespace(processes=living))
    player = methods.Methods(service, *[cast("Any", None)] * 4)
    first = SYNTHETIC_PIDS_ABOVE + 1
    assert list(player._next_pids(2)) == [first, first + 1]
    assert list(player._next_pids(1)) == [first + 2]
    living.append(ProcessKey(first + 50, 1))
    assert list(player._next_pids(1)) == [first + 51]
    living.clear()
    assert list(player._next_pids(1)) == [first + 52]


def test_the_journal_is_written_once_for_all_synthetic_processes_that_end() -> None:
    left: list[tuple[int, bool]] = []
    synthetic = {pid: SimpleNamespace(key=ProcessKey(pid, 1)) for pid in (1, 2, 3, 4)}
    machine: Any = SimpleNamespace(
        synthetic_of=lambda _: synthetic,
        leave=lambda key, _why, *, at_once: left.append((key.pid, at_once)),
    )
    methods.Methods(machine, *[cast("Any", None)] * 4)._remove_synthetic(ProcessKey(9, 1), {1, 2, 4})
    assert left == [(1, False), (2, False), (4, True)]


def test_the_journal_is_written_before_a_player_is_answered() -> None:
    changes: list[bool] = []
    machine: Any = SimpleNamespace(_admit=lambda event: event, _on_change=changes.append)
    assert MachineService.register_synthetic(machine, [cast("Any", 1), cast("Any", 2)]) == [1, 2]
    assert changes == [True]


def test_a_page_that_is_lost_shows_no_activity() -> None:
    lost = telemetry._LostPage((3, 4))
    assert [use.core for use in lost.uses] == [3, 4]
    assert not any(lost.latency_counts)
    assert (lost.cpu_ns, lost.counts, lost.models) == ((0, 0), (0, 0, 0), ())


def test_temporary_files_of_processes_that_have_ended_are_removed(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    own, left = f".tmp-{os.getpid()}-0-ab", f".tmp-{gone.pid}-0-ab"
    for name in (own, left, f"{gone.pid}-0-ab", ".tmp-x-1"):
        (tmp_path / name).touch()
    daemon_module._remove_temporaries(str(tmp_path))
    assert sorted(os.listdir(tmp_path)) == sorted([own, f"{gone.pid}-0-ab", ".tmp-x-1"])


def test_a_closed_watcher_leaves_no_descriptor() -> None:
    readers: list[int] = []
    loop: Any = SimpleNamespace(add_reader=lambda fd, *_: readers.append(fd), remove_reader=readers.remove)
    watcher = ExitWatcher(loop, lambda _: None)
    own = processes.key_of(os.getpid())
    watcher.watch(ProcessKey(1, 1), own)
    (pidfd,) = readers
    os.fstat(pidfd)
    watcher.close()
    assert readers == []
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(pidfd)


def test_lines_of_the_log_cannot_move_the_cursor(tmp_path: Path) -> None:
    code = (
        "import logging, sys\nfrom neurontools.machine.daemon.daemon import _log_to_file\n"
        "_log_to_file(sys.argv[1], foreground=True)\nlogging.warning('a\\x1b[2Jb')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "log")], capture_output=True, text=True, check=True
    )
    for text in (done.stderr, (tmp_path / "log").read_text()):
        assert "a\\u001b[2Jb" in text
        assert "\x1b" not in text
        assert text.startswith("20")
