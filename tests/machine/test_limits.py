"""What happens when the host runs out of something: descriptors, disk."""

from __future__ import annotations

import resource
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from neurontools.machine import launch
from neurontools.machine.client import Client

if TYPE_CHECKING:
    from collections.abc import Callable
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
