"""One worker's view of a run: the other workers, the connections to them, and their groups."""

# ruff: noqa: PLW0603
# One communicator per process.

from __future__ import annotations

import atexit
import itertools
import os
import threading
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from neurontools.collectives.groups import format_groups, parse_groups
from neurontools.xla.distributed import workers
from neurontools.xla.distributed.messages import MessageExchange
from neurontools.xla.distributed.worker_group import WorkerGroup
from neurontools.xla.distributed.worker_roster import Ranks, WorkerRoster

OF_HOST = "host "
"""In front of replica groups, those that exchange host tensors outside of graphs: in an order of their own."""

_FINISH_S = 10.0
_numbers = itertools.count()
_current: Communicator | None = None


def current() -> Communicator:
    """Return the communicator of this process; the first call connects to the other workers.

    Raises:
        WorkerError: the environment does not say where the other workers are.
    """
    global _current
    if _current is None:
        _current = _from_environment()
    return _current


def replace(communicator: Communicator | None) -> None:
    """Use another communicator from now on."""
    global _current
    _current = communicator


def default_timeout() -> timedelta:
    """Return the timeout of collectives: NEURON_RT_EXEC_TIMEOUT in seconds, else torch's default."""
    text = os.environ.get("NEURON_RT_EXEC_TIMEOUT", "").strip()
    found: timedelta = dist.default_pg_timeout
    return timedelta(seconds=int(text)) if text.isdecimal() and int(text) else found


def _from_environment() -> Communicator:
    size = workers.world_size()
    if size == 1:
        return Communicator(None, 0, 1, default_timeout())
    missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
    if missing:
        raise workers.WorkerError(
            f"WORLD_SIZE is {size} but {', '.join(missing)} is not set",
            "start the workers with torchrun or torch_xla.launch",
        )
    store, rank, size = next(iter(dist.rendezvous("env://", timeout=default_timeout())))
    return Communicator(dist.PrefixStore("neurontools", store), rank, size, default_timeout())


class Communicator(WorkerRoster):
    """Connections of one worker to the others.

    Args:
        store: torch's key-value store, in which the workers find each other; None for a run of one.
        rank: this worker's rank.
        size: number of workers.
        timeout: time for which a collective waits for the others.

    `world` holds all ranks, `world_groups` the same ranks as replica groups, `messages` what goes from one worker to another.
    """

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        if store is not None:  # neither a second process group nor a restart finds the addresses of the first
            store = dist.PrefixStore(f"run {workers.restart_count(size)} {next(_numbers)}", store)
        super().__init__(store, rank, size, timeout)
        self.world: Ranks = tuple(range(size))
        self.world_groups = format_groups([self.world])
        self._groups: dict[tuple[Ranks, str], WorkerGroup] = {}
        self._groups_of_text: dict[str, WorkerGroup] = {}
        self._lock = threading.RLock()
        self.messages = MessageExchange(self)
        if store is not None:
            atexit.register(self.finish)

    def finish(self) -> None:
        """Wait a short time until everything this worker sends has arrived: its connections end with the process."""
        self.messages.finish(_FINISH_S)

    def group(self, ranks: Ranks, mark: str = "") -> WorkerGroup:
        """Return the group of these ranks, which include this worker; `mark` is empty or `OF_HOST`."""
        with self._lock:
            found = self._groups.get((ranks, mark))
            if found is None:
                found = self._groups[ranks, mark] = WorkerGroup(self, ranks, mark)
            return found

    def set_timeout(self, ranks: Ranks, timeout: timedelta) -> None:
        """Set how long the collectives of these ranks wait; process groups of the same ranks share it."""
        for mark in ("", OF_HOST):
            self.group(ranks, mark).timeout = timeout

    def group_in(self, groups: str) -> WorkerGroup:
        """Return the replica group that contains this worker.

        Raises:
            ValueError: none contains it.
        """
        found = self._groups_of_text.get(groups)
        if found is not None:
            return found
        mark = OF_HOST if groups.startswith(OF_HOST) else ""
        for ranks in parse_groups(groups.removeprefix(mark)):
            if self.rank in ranks:
                return self._groups_of_text.setdefault(groups, self.group(ranks, mark))
        raise ValueError(f"rank {self.rank} is in none of the replica groups {groups}")
