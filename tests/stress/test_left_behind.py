"""What a process leaves behind without ending: another program, an answer that never came, files that found no room."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from neurontools import paths
from neurontools.errors import NoMachineError
from neurontools.machine import connection, journal
from neurontools.machine.client import Client
from neurontools.machine.events import Process
from neurontools.machine.journal import RecordWriter
from neurontools.machine.processes import ProcessKey
from neurontools.machine.protocol import BrokenConnectionError

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.machine.machine_config import DaemonInfo

    Lifetime = Callable[[], dict[str, int]]
    Kill = Callable[[], None]
    Wait = Callable[[Callable[[], bool]], None]

EXEC = "import os; os.execv('/bin/sleep', ['sleep', '1000'])"


def owners() -> list[int]:
    with Client.connect() as client:
        return [process.pid for process in client.snapshot().processes]


def test_a_program_that_becomes_another_one_holds_nothing(
    job: Any, lifetime: Lifetime, wait_until: Wait
) -> None:
    assert owners() == [job.pid]
    job.send(EXEC)
    wait_until(lambda: owners() == [])
    assert job.process.poll() is None, "it lives on as another program"
    assert lifetime()["executions"] == 5


def test_a_program_that_becomes_another_one_without_a_daemon_holds_nothing(
    job: Any, kill_daemon: Kill, lifetime: Lifetime, wait_until: Wait
) -> None:
    kill_daemon()
    job.send(EXEC)
    wait_until(lambda: Path(f"/proc/{job.pid}/comm").read_text(encoding="utf-8") == "sleep\n")
    assert lifetime()["executions"] == 5
    assert owners() == []


def test_a_program_that_becomes_another_one_after_an_adoption_holds_nothing(
    job: Any, kill_daemon: Kill, lifetime: Lifetime, wait_until: Wait
) -> None:
    kill_daemon()
    lifetime()
    assert owners() == [job.pid]
    job.send(EXEC)
    wait_until(lambda: owners() == [])


def test_a_program_that_closes_its_connection_keeps_its_cores(job: Any, wait_until: Wait) -> None:
    def clients() -> int:
        with Client.connect() as client:
            return int(client.call("describe")["client_count"])

    assert clients() == 2
    job.do("client.close()")
    wait_until(lambda: clients() == 1)
    assert owners() == [job.pid]


class CutConnection:
    """Lets one call of a method reach the daemon and loses the answer, and the way back to a daemon too."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
        self.method: str | None = method
        real = connection.SyncConnection.call

        def call(
            self_: connection.SyncConnection, name: str, params: dict[str, Any], result_type: Any
        ) -> Any:
            answer = real(self_, name, params, result_type)
            if name == self.method:
                self.method = None
                raise BrokenConnectionError("cut")
            return answer

        monkeypatch.setattr(connection.SyncConnection, "call", call)

    def start_again(self) -> None:
        raise NoMachineError("gone")


def test_a_reservation_without_an_answer_is_corrected_by_the_next(
    daemon: DaemonInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut = CutConnection(monkeypatch, "reserve")
    with Client.connect(start_again=cut.start_again) as client:
        os.close(client.register(cores=(0,)).page_fd)
        with pytest.raises(NoMachineError):
            client.reserve(0, 1000)
        assert client.snapshot().devices[0].memory_used_bytes == 1000
        client.reserve(0, 10)
        assert client.snapshot().devices[0].memory_used_bytes == 10
        cut.method = "reserve"
        with pytest.raises(NoMachineError):
            client.reserve(0, 0)
        client.reserve(0, 0)
        assert client.snapshot().devices[0].memory_used_bytes == 0
        client.unregister()


def test_a_registration_without_an_answer_is_taken_back(
    daemon: DaemonInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut = CutConnection(monkeypatch, "register")
    with Client.connect(start_again=cut.start_again) as client:
        with pytest.raises(NoMachineError):
            client.register(cores=(0,))
        assert client.snapshot().processes == (), "who believes to hold nothing holds nothing"
        os.close(client.register(cores=(0,)).page_fd)
        assert owners() == [os.getpid()]
        client.unregister()


def test_a_record_that_found_no_room_is_written_later(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "RETRY_S", 0.01)
    process = Process(ProcessKey(7, 8), 0, "", "", "", True, (0,), 0)
    pages = home / "pages"

    async def save() -> None:
        found = RecordWriter(str(pages), "boot", asyncio.get_running_loop())
        found.save(process)
        pages.mkdir()
        while not os.listdir(pages):  # noqa: ASYNC110  a file has no event
            await asyncio.sleep(0.01)
        found.close()

    asyncio.run(save())
    assert os.listdir(pages) == ["7-8.json"]


def test_temporary_files_of_killed_processes_are_deleted(
    daemon: DaemonInfo, kill_daemon: Kill, lifetime: Lifetime
) -> None:
    kill_daemon()
    state, folder = Path(paths.state_dir(), "default"), Path(paths.machine_dir("default"))
    left = [state / ".tmp-4999999-0-ab", folder / ".tmp-4999999-1-cd"]
    running = state / f".tmp-{os.getpid()}-0-ef"
    for path in (*left, running):
        path.write_text("{", encoding="utf-8")
    lifetime()
    assert [path.exists() for path in (*left, running)] == [False, False, True]
