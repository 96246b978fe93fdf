"""Two machines, here two network namespaces: messages between their workers with a secret and without one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from neurontools import env

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(
        os.geteuid() != 0 or shutil.which("ip") is None,
        reason="network namespaces need root and the program ip of iproute2",
    ),
]
PROGRAM = Path(__file__).parent / "worker_network.py"
ADDRESSES = ("10.77.0.1", "10.77.0.2")


@contextmanager
def two_networks() -> Iterator[list[str]]:
    """Two namespaces that a cable joins."""
    names = [f"neurontools-{os.getpid()}-{number}" for number in range(2)]

    def ip(*arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True, capture_output=True)

    made = []
    try:
        for name in names:
            try:
                ip("netns", "add", name)
            except subprocess.CalledProcessError as error:
                pytest.skip(f"cannot make a network namespace: {error.stderr.decode().strip()}")
            made.append(name)
        ip(*("link", "add", "v0", "netns", names[0], "type", "veth", "peer", "name", "v0", "netns", names[1]))
        for name, address in zip(names, ADDRESSES, strict=True):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", "v0")
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", "v0", "up")
        yield names
    finally:
        for name in made:
            ip("netns", "del", name)


@pytest.mark.slow
@pytest.mark.parametrize("secret", ["", "a secret of both"], ids=["without a secret", "with a secret"])
def test_workers_on_two_machines_know_each_other_by_the_secret(home: Path, secret: str) -> None:
    environ = {**os.environ, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", env.JOB_SECRET: secret}
    environ |= {"MASTER_ADDR": ADDRESSES[0], "MASTER_PORT": "29500"}
    with two_networks() as names:
        workers = [
            subprocess.Popen(
                ["ip", "netns", "exec", name, sys.executable, str(PROGRAM), str(home / f"rank{rank}.json")],
                env={**environ, "RANK": str(rank)},
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank, name in enumerate(names)
        ]
        errors = [worker.communicate(timeout=600)[1] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], errors
    for rank in range(2):
        seen = json.loads((home / f"rank{rank}.json").read_text())
        assert seen == {"received": 2 - rank, "total": 3, "host": ADDRESSES[1 - rank], "heard": not secret}
    said = [error.count("their messages are not authenticated") for error in errors]
    assert said == [0 if secret else 1, 0]
