"""What happens when the host runs out of something: descriptors, disk.

The files behind the telemetry pages of other users: watched while they are in use, cut when they have grown.
"""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from neurontools.machine import launch
from neurontools.machine.client import Client
from neurontools.machine.daemon.exit_watcher import PERIOD_S, PageLimits
from neurontools.machine.processes import ProcessKey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

START = "from neurontools.machine import launch; launch.start(launch.StartOptions('default'))"

FULL_DISK = """
import os, shutil, sys
from pathlib import Path
from neurontools import paths
from neurontools.machine import launch
from neurontools.machine.client import Client
from neurontools.machine.pages.page import PageWriter, is_private

info = launch.start(launch.StartOptions("default"))
filler = Path(paths.runtime_dir(), "filler")
filler.mkdir()
try:
    for number in range(1000):
        (filler / str(number)).write_bytes(bytes(int(sys.argv[1])))
except OSError:
    pass
client = Client.connect()
for _ in range(2):
    registration = client.register(count=2)
    writer = PageWriter(registration.page_fd)
    writer.begin(0)
    writer.end(0, 0, 1000)
    writer.close()
    (process,) = client.snapshot().processes
    pages = os.listdir(paths.pages_dir("default"))
    shown = [use.executions for use in process.cores]
    print(is_private(registration.page_fd), shown, process.stale, len(pages))
    os.close(registration.page_fd)
    client.unregister()
    shutil.rmtree(filler, ignore_errors=True)
print(Path(info.log).read_text().count("private page"))
launch.stop()
"""


@pytest.fixture
def few_descriptors() -> None:
    """A daemon that may have 40 descriptors."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    command = ["prlimit", f"--nofile=40:{min(hard, 40)}", sys.executable, "-c", START]
    subprocess.run(command, check=True)


@pytest.mark.usefixtures("few_descriptors")
def test_a_daemon_without_descriptors_serves_again_when_clients_leave(
    wait_until: Callable[..., None],
) -> None:
    (info,) = launch.list_machines()
    crowd = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(60)]
    for sock in crowd:
        sock.connect(info.socket)
    with open(info.log, encoding="utf-8") as log:
        wait_until(lambda: "Too many open files" in log.read())
    for sock in crowd:
        sock.close()
    with Client.connect() as client:
        assert client.register(count=1).cores == (0,)


@pytest.mark.skipif(
    subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False).returncode != 0,
    reason="the kernel refuses new mount namespaces here",
)
@pytest.mark.parametrize(("size", "file_bytes"), [("size=128k", 4096), ("size=1m,nr_inodes=32", 0)])
def test_on_a_full_disk_a_process_gets_a_private_page(home: Path, size: str, file_bytes: int) -> None:
    (home / "run").mkdir(mode=0o700)
    script = f'mount -t tmpfs -o {size},mode=700 tmpfs {home}/run && exec "$@"'
    command = ["unshare", "-rm", "sh", "-c", script, "sh", sys.executable, "-c", FULL_DISK, str(file_bytes)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    full, with_room, warnings = done.stdout.splitlines()
    assert full == "True [1, 0] False 0"
    assert with_room == "False [1, 0] False 2"
    assert warnings == "1"


OTHER = os.getuid() + 1
KEY = ProcessKey(1234, 5678)
PAGE_BYTES = 4096


class Loop:
    """Keeps what is to be called later, and calls it when a test says so."""

    def __init__(self) -> None:
        self.waiting: list[tuple[float, Callable[[], None]]] = []

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Handle:
        self.waiting.append((delay_s, callback))
        return Handle()

    def run(self) -> None:
        waiting, self.waiting = self.waiting, []
        for _, callback in waiting:
            callback()


class Handle:
    def cancel(self) -> None: ...


class Watch:
    """Limits with one page of a process of another user."""

    def __init__(self, path: Path) -> None:
        self.loop = Loop()
        self.grown: list[ProcessKey] = []
        self.registered = {KEY}
        self.limits = PageLimits(self.loop, self.registered.__contains__, self.grown.append)  # type: ignore[arg-type]
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT)
        os.ftruncate(self.fd, PAGE_BYTES)


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[Watch]:
    made = Watch(tmp_path / "page")
    yield made
    made.limits.close()
    os.close(made.fd)


def test_a_page_that_has_grown_is_cut_and_its_user_gets_no_other(watch: Watch) -> None:
    watch.limits.add(KEY, OTHER, watch.fd)
    watch.loop.run()
    assert (watch.grown, watch.limits.refusal_reason(OTHER)) == ([], "")
    os.pwrite(watch.fd, b"x", PAGE_BYTES)
    watch.loop.run()
    assert watch.grown == [KEY]
    assert os.fstat(watch.fd).st_size == PAGE_BYTES
    assert watch.limits.refusal_reason(OTHER) == f"uid {OTHER} wrote beyond a telemetry page"
    assert watch.limits.refusal_reason(OTHER + 1) == ""


def test_pages_are_looked_at_together_each_second_while_there_are_any(watch: Watch) -> None:
    for _ in range(2):
        watch.limits.add(KEY, OTHER, watch.fd)
    for _ in range(2):
        assert [delay_s for delay_s, _ in watch.loop.waiting] == [PERIOD_S]
        watch.loop.run()
    watch.registered.clear()
    watch.limits.close()
    watch.loop.run()
    assert watch.loop.waiting == []


def test_an_own_page_and_one_without_a_name_are_not_watched(watch: Watch, tmp_path: Path) -> None:
    watch.limits.add(KEY, os.getuid(), watch.fd)
    os.unlink(tmp_path / "page")
    watch.limits.add(KEY, OTHER, watch.fd)
    assert watch.loop.waiting == []
