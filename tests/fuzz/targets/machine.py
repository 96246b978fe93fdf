"""neurond: requests, records, journals, telemetry pages; and what clients read of a daemon."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.fuzz.mutation import Format
from tests.fuzz.target import Target, logged_errors_raised, run

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.machine.daemon.rpc import RpcHandler

PID, TICKS = b"4194000", b"4194000123"
"""Stand for this process in inputs, which must not depend on its number."""

_FORMS = (b"", b"-j", b"-a", b"-t", b"-w\0-j")


class FakeConnection:
    """This process as a client, without the server's queues."""

    def __init__(self, accepted: socket.socket) -> None:
        from neurontools.machine.processes import PeerProcess

        self.process = PeerProcess(accepted)
        self.peer = self.process.peer
        self.closed = False
        self.sent: list[bytes] = []

    def count_invalid_line(self) -> None:
        """Keep the client, whatever it sends."""

    def send(self, data: bytes, descriptors: tuple[int, ...] = ()) -> None:
        self.sent.append(data)

    def end(self) -> None:
        self.closed = True

    def close(self) -> None:
        self.closed = True


def served(use: Callable[[RpcHandler, FakeConnection], None]) -> None:
    """Start a daemon in this process on the files that are there, use it and end it.

    Raises:
        Exception: whatever the daemon or a method raised, logged or not.
    """
    from neurontools.machine.daemon.daemon import Daemon
    from neurontools.machine.machine_config import StartOptions

    async def serve() -> None:
        daemon = Daemon(StartOptions(machine="fuzz", instance_type="trn1.32xlarge"), lambda _: started())

        def started() -> None:
            handler: Any = daemon._server.handler
            accepted, client = socket.socketpair()
            with accepted, client:
                connection = FakeConnection(accepted)
                handler.on_open(connection)
                try:
                    use(handler, connection)
                finally:
                    handler.on_close(connection)
                    daemon._end.set()

        await daemon.run()

    logging.getLogger("neurond").setLevel(logging.ERROR)
    with logged_errors_raised("neurond"), logged_errors_raised("asyncio"):
        asyncio.run(serve())


def request(number: int, method: str, **params: Any) -> bytes:
    """Return the line of a request."""
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}).encode() + b"\n"


HELLO = request(0, "hello", protocol=1, client="fuzz", owner=True)


def render_all(handler: RpcHandler, connection: FakeConnection) -> None:
    """Show the machine in every form of neuron-ls."""
    for words in _FORMS:
        handler.on_line(connection, b"RENDER neuron-ls\0" + b"2.32" + (b"\0" + words if words else b""))
        assert connection.sent[-1].startswith(b"0 "), connection.sent[-1][:200]


def _request_seeds() -> list[bytes]:
    wish = {"tag": "a", "command": "b", "cores": [4], "runtime_version": "2.30", "uses_device": True}
    lines = (
        request(1, "register", cores=[0, 1], tag="job", command="train", runtime_version="2.30"),
        request(2, "reserve", core=0, total_bytes=1 << 20),
        request(3, "register_synthetic", processes=[wish, {"count": 2}], known=[]),
        request(4, "reserve_synthetic", changes=[{"pid": 4194305, "core": 4, "nbytes": 10}]),
        request(5, "unregister_synthetic", pids=[4194305]),
        request(6, "inject_fault", kind="oom", core=1, count=2, after_executions=1, duration_s=1.5),
        request(7, "inject_fault", kind="ecc", device=3, amount=4, every_s=2.0, ecc="sram_uncorrected"),
        request(8, "take_fault", core=1, action="execute", collective=False, nbytes=5),
        request(9, "holds_fault", fault=1, core=1),
        request(10, "release_fault", core=1),
        request(11, "count_hardware", device=2, counter="mem_ecc_corrected", amount=3),
        request(12, "reset_hardware", device=2),
        request(13, "reset_device", device=1, force=True),
        request(14, "list_faults") + request(15, "clear_faults", ids=[1]),
        request(16, "snapshot") + request(17, "watch", period_s=1.0, changes=True) + request(18, "describe"),
        request(19, "profile", pid=4194305, directory="/tmp/x") + request(20, "profile_directory"),
        request(21, "end_profile", pid=4194305, directory="/tmp/x"),
        request(22, "unregister"),
    )
    whole = HELLO + b"".join(lines)
    return [whole, *(HELLO + lines[0] + line for line in lines)]


def _check_requests(data: bytes) -> None:
    def use(handler: RpcHandler, connection: FakeConnection) -> None:
        for line in data.split(b"\n"):
            if line:
                handler.on_line(connection, line)  # type: ignore[arg-type]
        handler.on_line(connection, HELLO)  # type: ignore[arg-type]
        handler.on_line(connection, request(99, "snapshot"))  # type: ignore[arg-type]
        render_all(handler, connection)

    _empty_directories()
    served(use)


def _check_render(data: bytes) -> None:
    def use(handler: RpcHandler, connection: FakeConnection) -> None:
        handler.on_line(connection, b"RENDER " + data.replace(b"\n", b""))  # type: ignore[arg-type]
        assert not connection.sent[-1].startswith(b"4 "), connection.sent[-1][:200]

    served(use)


def _render_seeds() -> list[bytes]:
    lines = (
        "",
        "-j",
        "-t",
        "--show-all-procs",
        "-w",
        "--help",
        "--filter\0owner=me tag~train",
        "--sort\0-mem",
        "--top\0-w",
    )
    filters = ("pid=12 core>3", "mem>10GiB", "uid=0 or name~x", "util>=50%", "not (tag=a)", "device=0,2-3")
    words = [*lines, *(f"--filter\0{text}" for text in filters)]
    return [f"neuron-ls\0{release}\0{text}".encode() for text in words for release in ("2.32", "2.28")]


def _empty_directories() -> None:
    from neurontools.machine.directory import MachineDirectory

    directory = MachineDirectory("fuzz")
    directory.make()
    for place in (directory.pages, directory.state):
        for name in os.listdir(place):
            os.unlink(f"{place}/{name}")


def _own(data: bytes) -> bytes:
    from neurontools.machine.processes import this_process

    key = this_process()
    return data.replace(TICKS, str(key.start_ticks).encode()).replace(PID, str(key.pid).encode())


def _neutral(data: bytes) -> bytes:
    from neurontools.machine.processes import this_process

    key = this_process()
    return data.replace(str(key.start_ticks).encode(), TICKS).replace(str(key.pid).encode(), PID)


def _files_of_a_run(name: str) -> list[bytes]:
    """Return the files of some name that a daemon with processes, faults and errors leaves when it is killed."""
    from neurontools.machine.directory import MachineDirectory

    found: list[bytes] = []

    def use(handler: RpcHandler, connection: FakeConnection) -> None:
        for line in _request_seeds()[0].split(b"\n")[:7]:
            handler.on_line(connection, line)  # type: ignore[arg-type]
        handler.on_line(connection, _request_seeds()[11].split(b"\n")[2])  # type: ignore[arg-type]
        handler._service._on_change(True)
        directory = MachineDirectory("fuzz")
        for place in (directory.pages, directory.state, directory.path):
            found.extend(_neutral(path.read_bytes()) for path in Path(place).glob(name))

    _empty_directories()
    served(use)
    return found


def _check_record(data: bytes) -> None:
    from neurontools.machine.directory import MachineDirectory
    from neurontools.machine.processes import this_process

    _empty_directories()
    key = this_process()
    pages = MachineDirectory("fuzz").pages
    Path(f"{pages}/{key.pid}-{key.start_ticks}.json").write_bytes(_own(data))
    served(render_all)


def _check_journal(data: bytes) -> None:
    from neurontools.machine.directory import MachineDirectory

    _empty_directories()
    Path(MachineDirectory("fuzz").journal).write_bytes(_own(data))
    served(render_all)


def _check_daemon_info(data: bytes) -> None:
    from neurontools import paths
    from neurontools.commands import neurond

    directory = Path(paths.machine_dir("other"))
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    (directory / "neurond.json").write_bytes(_own(data))
    try:
        run(neurond.main, "list")
        run(neurond.main, "list", "--json", is_json=True)
        run(neurond.main, "status", "--machine", "other")
    finally:
        shutil.rmtree(directory)


def _page_seeds() -> list[bytes]:
    from tests.machine.pages.conftest import busy_page

    return [busy_page(Path())]


def _check_page(data: bytes) -> None:
    from neurontools.machine.pages.page import PageReader

    path = Path("fuzz.page")
    path.write_bytes(data)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        PageReader(descriptor).read(2**62)
    finally:
        os.close(descriptor)


def _answer_seeds() -> list[bytes]:
    sent: list[bytes] = []

    def use(handler: RpcHandler, connection: FakeConnection) -> None:
        for line in _request_seeds()[0].split(b"\n")[:9]:
            if line:
                handler.on_line(connection, line)  # type: ignore[arg-type]
        connection.sent.clear()
        handler.on_line(connection, request(1, "snapshot"))  # type: ignore[arg-type]
        sent.extend(connection.sent)

    _empty_directories()
    served(use)
    return [_neutral(b"".join(sent))]


def _check_answer(data: bytes) -> None:
    from neurontools.machine.listing import text
    from neurontools.machine.protocol import AnswerError, ClientSession
    from neurontools.machine.snapshot import Snapshot

    session = ClientSession()
    session.request("snapshot", {})
    try:
        session.feed(data or b"\n")
        answer = session.next_answer()
        snapshot = None if answer is None else answer.result(Snapshot)
    except (ConnectionError, AnswerError):
        return
    if snapshot is not None:
        for words in ([], ["-j"], ["-t"]):
            text.render(snapshot, words, "2.32", asker=(1, 0, "neuron-ls"))


def _change_seeds() -> list[bytes]:
    sent: list[bytes] = []

    def use(handler: RpcHandler, connection: FakeConnection) -> None:
        first, second, *others = _request_seeds()[0].split(b"\n")[:9]
        for line in (first, second, request(90, "watch", period_s=1.0, changes=True), *others):
            handler.on_line(connection, line)  # type: ignore[arg-type]
        handler._watching._tick(1.0)
        sent.extend(line for line in connection.sent if b'"params"' in line)

    _empty_directories()
    served(use)
    return [_neutral(b"".join(sent))]


def _check_changes(data: bytes) -> None:
    from neurontools.machine.changes import apply_notification
    from neurontools.machine.protocol import ClientSession

    session, snapshot = ClientSession(), None
    try:
        session.feed(data or b"\n")
        while (notification := session.next_notification()) is not None:
            snapshot = apply_notification(snapshot, notification)
    except ConnectionError:
        return


TARGETS = (
    Target("machine/requests", Format.JSON_LINES, _request_seeds, _check_requests, share=0.5),
    Target(
        "machine/render",
        Format.TEXT,
        _render_seeds,
        _check_render,
        words=("--filter", "\0", "and", "or", "not", "~"),
        share=0.5,
    ),
    Target("machine/record", Format.JSON, lambda: _files_of_a_run("*.json")[:1], _check_record, share=0.5),
    Target(
        "machine/journal", Format.JSON, lambda: _files_of_a_run("journal.json"), _check_journal, share=0.5
    ),
    Target(
        "machine/daemon-info",
        Format.JSON,
        lambda: _files_of_a_run("neurond.json"),
        _check_daemon_info,
        share=0.5,
    ),
    Target("machine/page", Format.BINARY, _page_seeds, _check_page),
    Target("machine/answer", Format.JSON_LINES, _answer_seeds, _check_answer),
    Target("machine/changes", Format.JSON_LINES, _change_seeds, _check_changes),
)
