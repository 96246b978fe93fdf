"""A machine for the tests of the Python interface."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from neurontools import machine
from neurontools.machine.processes import wait_for_end

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def running() -> Iterator[machine.Machine]:
    """The machine "api", a trn1.32xlarge, in autostart's reach."""
    with machine.start("trn1.32xlarge", name="api", private=True) as started:
        yield started


@pytest.fixture
def end_daemon(monkeypatch) -> Callable[[str], None]:
    """End a machine's daemon as `kill -9` does; the next call may start another."""
    monkeypatch.setenv("NEURONTOOLS_AUTOSTART", "1")

    def end(name: str) -> None:
        pid = next(info.pid for info in machine.list_machines() if info.machine == name)
        os.kill(pid, signal.SIGKILL)
        wait_for_end(pid, 600)

    return end
