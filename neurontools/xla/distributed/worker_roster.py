"""The workers of a run: their processes and hosts, and the time for which one of them waits for the others."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from neurontools import env
from neurontools.base.json_reader import load_json
from neurontools.base.procfs import read_boot_id, read_namespace, read_start_ticks
from neurontools.xla.distributed.job_key import JobNetwork
from neurontools.xla.distributed.worker_store import WorkerStore

if TYPE_CHECKING:
    from datetime import timedelta

Ranks = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WorkerProcess:
    """A worker as the others know it.

    Args:
        rank: its rank in the run.
        pid: its process id.
        start_ticks: the start time of its process, in clock ticks.
        place: identifies the host and the pid namespace.
        node: identifies the network namespace and the simulated machine, too.
        host: name of the host.
    """

    rank: int
    pid: int
    start_ticks: int
    place: str
    node: str
    host: str

    def is_visible(self) -> bool:
        """Return whether this process can see if that one has ended."""
        return self.place == _place()

    def has_ended(self) -> bool:
        """Return whether the process has ended; False if it is not visible from this process."""
        return self.is_visible() and read_start_ticks(self.pid) != self.start_ticks

    def __str__(self) -> str:
        return f"rank {self.rank} (pid {self.pid} on {self.host})"


class WorkerRoster:
    """The workers of a run, as one of them knows them.

    Args:
        store: torch's key-value store, in which the workers find each other; None for a run of one.
        rank: this worker's rank.
        size: number of workers.
        timeout: time for which a collective waits for the others.
    """

    store: WorkerStore
    network: JobNetwork

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        self.rank = rank
        self.size = size
        self.timeout = timeout
        self._peers: dict[int, WorkerProcess] = {}
        if store is not None:
            self.network = JobNetwork(store, rank, size)
            self.store = WorkerStore(store, self.network.key)
            place = _place()
            node = f"{place} {read_namespace('net')} {env.machine()}"
            own = [os.getpid(), read_start_ticks(os.getpid()) or 0, place, node, os.uname().nodename]
            self.store.set(f"worker/{rank}", json.dumps(own).encode())

    def peer(self, rank: int) -> WorkerProcess | None:
        """Return the process of a worker, None before it has connected."""
        found = self._peers.get(rank)
        if found is None:
            record = self.store.get(f"worker/{rank}")
            if record is None:
                return None
            found = self._peers[rank] = WorkerProcess(rank, *load_json(record))
        return found

    def on_one_machine(self, ranks: Ranks) -> tuple[WorkerProcess, ...]:
        """Return the workers with these ranks, which must have connected; empty if they are on several machines."""
        peers = tuple(peer for peer in map(self.peer, ranks) if peer is not None)
        return peers if len({peer.node for peer in peers}) == 1 else ()


@cache
def _place() -> str:
    boot_id, pid_namespace = read_boot_id(), read_namespace("pid")
    return f"{boot_id} {pid_namespace}" if boot_id and pid_namespace else f"pid {os.getpid()}"
