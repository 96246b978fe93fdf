"""Which processes are parts of one job: those of one user whose commands differ in numbers alone (ranks, ports)."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from neurontools.machine.snapshot import ProcessState

_NUMBER = re.compile(r"\d+")

Job = tuple[int, str]


def job_of(process: ProcessState) -> Job:
    """Return what the processes of a job have in common; told by user and command, as no source knows jobs."""
    return process.uid, _without_numbers(process.command)


@lru_cache(maxsize=4096)
def _without_numbers(command: str) -> str:
    return _NUMBER.sub("#", command)
