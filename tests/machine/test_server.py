"""What each client gets of the daemon's time and memory."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import TYPE_CHECKING, Any

from neurontools.machine.daemon import server
from neurontools.machine.daemon.server import Connection, Server
from neurontools.machine.daemon.sessions import Watching

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest

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
