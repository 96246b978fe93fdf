"""Ranks and world size, from the variables that torchrun sets.

Only one process is simulated so far: collective communication between several processes is refused.
"""

from __future__ import annotations

import os

from neurontools.errors import NeuronToolsError


class SeveralProcessesError(NeuronToolsError):
    """The run has several processes and asks for collective communication."""


def world_size() -> int:
    """Return the number of processes of the run."""
    return _number("WORLD_SIZE", 1)


def rank() -> int:
    """Return this process's rank in the run."""
    return _number("RANK", 0)


def local_rank() -> int:
    """Return this process's rank on its machine."""
    return _number("LOCAL_RANK", 0)


def local_world_size() -> int:
    """Return the number of processes on this machine."""
    return _number("LOCAL_WORLD_SIZE", 1)


def require_single(what: str) -> None:
    """Refuse an operation that needs other processes.

    Raises:
        SeveralProcessesError: the run has more than one process.
    """
    if world_size() > 1:
        raise SeveralProcessesError(
            f"{what} over {world_size()} processes is not simulated yet",
            "run with one process (nproc_per_node=1)",
        )


def _number(variable: str, fallback: int) -> int:
    value = os.environ.get(variable, "")
    return int(value) if value.isdecimal() else fallback
