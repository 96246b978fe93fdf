"""A machine, a client that injects, and jobs that are hit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from neurontools.machine.client import Client
from tests.machine.conftest import end_daemon
from tests.runtime.conftest import Job, new_job, start_machine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["end_daemon", "new_job", "start_machine"]

EXECUTE = "runtime.execute(m, lambda: 'done')"


@pytest.fixture
def client(start_machine: Callable[..., object]) -> Iterator[Client]:
    """The client of the default machine of this test, a trn1.32xlarge."""
    start_machine("trn1.32xlarge")
    with Client.connect() as connected:
        yield connected


@pytest.fixture
def victim(client: Client, new_job: Callable[..., Job]) -> Callable[..., Job]:
    """Start a job with a model on its first core; without a wish it has core 6, the first one of device 3."""

    def start(**environ: str) -> Job:
        job = new_job(**{"NEURON_RT_VISIBLE_CORES": "6", **environ})
        job.open()
        job.ask(job.LOAD)
        return job

    return start
