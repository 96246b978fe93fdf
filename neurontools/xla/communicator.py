"""Exchange between the workers of a run, over gloo: what the collectives of a graph do when it is executed.

Every group of ranks has gloo connections of its own, made at its first use by its members alone. A wait is divided
into short ones: Ctrl-C ends it, a member that has ended is named within seconds, and a member that does not take
part when the timeout is over.
"""

# ruff: noqa: PLW0603
# One communicator per process.

from __future__ import annotations

import atexit
import json
import os
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from neurontools.base.json_reader import load_json
from neurontools.base.procfs import read_boot_id, read_pid_namespace, read_start_ticks
from neurontools.collectives.groups import parse_groups
from neurontools.runtime.status import NrtError, NrtStatus
from neurontools.xla import workers

if TYPE_CHECKING:
    from collections.abc import Callable

Ranks = tuple[int, ...]

_SLICE_S = 0.2
_ANNOUNCE_S = 1.0
_POLL_S = 0.005
_GRACE_S = 60.0
_FINISH_S = 10.0
_LOOPBACK = "127.0.0.1"
_current: Communicator | None = None


def current() -> Communicator:
    """Return the communicator of this process; connects to the other workers at its first use.

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
    """Return how long a collective waits: NEURON_RT_EXEC_TIMEOUT in seconds, else torch's default."""
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


@dataclass(frozen=True, slots=True)
class WorkerProcess:
    """A worker as the others know it. `place` distinguishes hosts and pid namespaces."""

    rank: int
    pid: int
    start_ticks: int
    place: str
    host: str

    def has_ended(self) -> bool:
        """Return whether the process is gone; False where it cannot be seen from here."""
        return self.place == _place() and read_start_ticks(self.pid) != self.start_ticks

    def __str__(self) -> str:
        return f"rank {self.rank} (pid {self.pid} on {self.host})"


class Communicator:
    """Connections of one worker to the others.

    Args:
        store: where the workers find each other; None for a run of one.
        rank: this worker's.
        size: number of workers.
        timeout: how long a collective waits for the others.
    """

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        self.store = store
        self.rank = rank
        self.size = size
        self.timeout = timeout
        self._groups: dict[Ranks, WorkerGroup] = {}
        self._lock = threading.RLock()
        if store is not None:
            host = os.uname().nodename
            own = [os.getpid(), read_start_ticks(os.getpid()) or 0, _place(), host]
            store.set(f"worker/{rank}", json.dumps(own))
            atexit.register(self.finish)

    def finish(self) -> None:
        """Wait for a short time until what this worker sends has arrived: its connections end with the process."""
        for group in self._groups.values():
            group.finish(_FINISH_S)

    @property
    def world(self) -> Ranks:
        """All ranks."""
        return tuple(range(self.size))

    def group(self, ranks: Ranks) -> WorkerGroup:
        """Return the group of these ranks; this worker is one of them."""
        with self._lock:
            found = self._groups.get(ranks)
            if found is None:
                found = self._groups[ranks] = WorkerGroup(self, ranks)
            return found

    def group_in(self, groups: str) -> WorkerGroup:
        """Return the replica group that has this worker.

        Raises:
            ValueError: none has it.
        """
        for ranks in parse_groups(groups):
            if self.rank in ranks:
                return self.group(ranks)
        raise ValueError(f"rank {self.rank} is in none of the replica groups {groups}")

    def peer(self, rank: int) -> WorkerProcess | None:
        """Return what is known of a worker, None before it has connected."""
        key = f"worker/{rank}"
        if not self.store.check([key]):
            return None
        pid, start_ticks, place, host = load_json(self.store.get(key))
        return WorkerProcess(rank, pid, start_ticks, place, host)


class WorkerGroup:
    """The workers of one group, as this one reaches them. Positions count within `ranks`."""

    def __init__(self, communicator: Communicator, ranks: Ranks) -> None:
        self.ranks = ranks
        self.size = len(ranks)
        self.position = ranks.index(communicator.rank)
        self._communicator = communicator
        self._name = "group/" + "-".join(map(str, ranks))
        self._sequence = 0
        self._sending: list[tuple[Any, torch.Tensor]] = []
        self._gloo = self._connect() if self.size > 1 else None

    def all_reduce(self, tensor: torch.Tensor, operation: Any) -> None:
        """Reduce a dense tensor in place by a `ReduceOp`."""
        options = dist.AllreduceOptions()
        options.reduceOp = operation
        self._run("all_reduce", lambda gloo: gloo.allreduce([tensor], options))

    def all_gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Return the tensors of all members, in their order."""
        gathered = [torch.empty_like(tensor) for _ in self.ranks]
        if self._gloo is None:
            gathered[0].copy_(tensor)
        self._run("all_gather", lambda gloo: gloo.allgather([gathered], [tensor]))
        return gathered

    def broadcast(self, tensor: torch.Tensor, root: int) -> None:
        """Copy a tensor from the member at a position to all others."""
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = root, 0
        self._run("broadcast", lambda gloo: gloo.broadcast([tensor], options))

    def all_to_all(self, output: torch.Tensor, tensor: torch.Tensor) -> None:
        """Send the i-th equal part of a flat tensor to the i-th member, and get its part for this one."""
        if self._gloo is None:
            output.copy_(tensor)
        self._run("all_to_all", lambda gloo: gloo.alltoall_base(output, tensor, [], []))

    def send(self, tensor: torch.Tensor, target: int, tag: int) -> None:
        """Start to send a copy of a tensor to the member at a position; does not wait for it."""
        self._sending = [(work, kept) for work, kept in self._sending if not work.is_completed()]
        kept = tensor.clone()
        assert self._gloo is not None
        self._sending.append((self._gloo.send([kept], target, tag), kept))

    def receive(self, tensor: torch.Tensor, source: int, tag: int) -> None:
        """Wait for a tensor from the member at a position."""
        self._run(f"recv from rank {self.ranks[source]}", lambda gloo: gloo.recv([tensor], source, tag))

    def flush(self) -> None:
        """Wait until everything that this worker sends has arrived."""
        while self._sending:
            work = self._sending[0][0]
            self._run("send", lambda _: work)  # noqa: B023
            del self._sending[0]

    def finish(self, timeout_s: float) -> None:
        """Wait until everything that this worker sends has arrived, or the time is over."""
        for work, _ in self._sending:
            with suppress(RuntimeError):
                work.wait(timedelta(seconds=timeout_s))
        self._sending = []

    def barrier(self) -> None:
        """Wait for all members."""
        self.flush()
        self.all_reduce(torch.zeros(1), dist.ReduceOp.SUM)

    def gather_bytes(self, payload: bytes) -> list[bytes]:
        """Return the bytes of all members, in their order."""
        sizes = [int(size) for size in self.all_gather(torch.tensor([len(payload)]))]
        own = torch.zeros(max(*sizes, 1), dtype=torch.uint8)
        if payload:
            own[: len(payload)] = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
        gathered = self.all_gather(own)
        return [part[:size].numpy().tobytes() for part, size in zip(gathered, sizes, strict=True)]

    def _connect(self) -> Any:
        store = dist.PrefixStore(self._name, self._communicator.store)
        store.set(f"joined/{self._communicator.rank}", b"1")
        waiting = _Wait(self, f"first collective of ranks {_listed(self.ranks)}")
        while not store.check([f"joined/{rank}" for rank in self.ranks]):
            time.sleep(_POLL_S)
            waiting.check(lambda rank: bool(store.check([f"joined/{rank}"])))
        options = dist.ProcessGroupGloo._Options()  # noqa: SLF001
        # Workers of one machine need no host name that resolves.
        if workers.local_world_size() == self._communicator.size:
            options._devices = [dist.ProcessGroupGloo.create_device(hostname=_LOOPBACK)]  # noqa: SLF001
        else:
            options._devices = [dist.ProcessGroupGloo.create_default_device()]  # noqa: SLF001
        options._timeout = self._communicator.timeout + timedelta(seconds=_GRACE_S)  # noqa: SLF001
        return dist.ProcessGroupGloo(store, self.position, self.size, options)

    def _run(self, what: str, start: Callable[[Any], Any]) -> None:
        if self._gloo is None:
            return
        self._sequence += 1
        waiting = _Wait(self, f"{what} of ranks {_listed(self.ranks)}")
        try:
            work = start(self._gloo)
        except RuntimeError as error:
            raise waiting.failure(error) from error
        key = f"{self._name}/waits/{self._sequence}"
        store = self._communicator.store
        announced = False
        while True:
            try:
                work.wait(timedelta(seconds=_SLICE_S))
            except RuntimeError as error:
                if work.is_completed():
                    raise waiting.failure(error) from error
            else:
                return
            if not announced and waiting.elapsed_s() > _ANNOUNCE_S:
                announced = True
                store.set(f"{key}/{self._communicator.rank}", b"1")
            waiting.check(lambda rank: bool(store.check([f"{key}/{rank}"])))


class _Wait:
    """One wait for the members of a group; makes the error that names who is missing."""

    def __init__(self, group: WorkerGroup, what: str) -> None:
        self._communicator = group._communicator  # noqa: SLF001
        self._others = tuple(rank for rank in group.ranks if rank != self._communicator.rank)
        self._what = what
        self._start_s = time.monotonic()
        self._looked_s = self._start_s
        self._missing: list[WorkerProcess] = []

    def elapsed_s(self) -> float:
        """Return how long it has lasted."""
        return time.monotonic() - self._start_s

    def check(self, takes_part: Callable[[int], bool]) -> None:
        """Check that the others live and that time is left; `takes_part` tells which ranks wait too.

        Raises:
            NrtError: NRT_EXEC_HW_ERR_COLLECTIVES when a worker has ended, NRT_TIMEOUT when the time is over.
        """
        now_s = time.monotonic()
        if now_s - self._looked_s > _SLICE_S:
            self._looked_s = now_s
            ended = self._ended()
            if ended and ended == self._missing:  # what a worker sent before its end may still arrive
                raise self._lost(ended)
            self._missing = ended
        limit_s = self._communicator.timeout.total_seconds()
        if self.elapsed_s() > limit_s:
            absent = [rank for rank in self._others if not takes_part(rank)]
            names = ", ".join(map(self._name, absent or self._others))
            raise NrtError(
                "nrt_execute",
                NrtStatus.NRT_TIMEOUT,
                "see where it is with `py-spy dump --pid PID`, or raise the timeout of init_process_group",
                detail=f"{self._what}: no answer in {limit_s:g} s from {names}",
            )

    def failure(self, error: Exception) -> NrtError:
        """Return the error for a connection that broke: names workers that have ended."""
        deadline_s = time.monotonic() + _ANNOUNCE_S
        while time.monotonic() < deadline_s:
            ended = self._ended()
            if ended:
                return self._lost(ended)
            time.sleep(_POLL_S * 4)
        text = str(error).splitlines()[0]
        return NrtError(
            "nrt_execute",
            NrtStatus.NRT_EXEC_HW_ERR_COLLECTIVES,
            "see the first error among the output of the other workers",
            detail=f"{self._what}: {text}",
        )

    def _ended(self) -> list[WorkerProcess]:
        try:
            peers = [self._communicator.peer(rank) for rank in self._others]
        except RuntimeError:  # the store has ended with its process
            return []
        return [peer for peer in peers if peer is not None and peer.has_ended()]

    def _lost(self, ended: list[WorkerProcess]) -> NrtError:
        verb = "has" if len(ended) == 1 else "have"
        return NrtError(
            "nrt_execute",
            NrtStatus.NRT_EXEC_HW_ERR_COLLECTIVES,
            "see the output of that worker",
            detail=f"{self._what}: {', '.join(map(str, ended))} {verb} ended",
        )

    def _name(self, rank: int) -> str:
        return str(self._communicator.peer(rank) or f"rank {rank}")


@cache
def _place() -> str:
    boot_id, pid_namespace = read_boot_id(), read_pid_namespace()
    return f"{boot_id} {pid_namespace}" if boot_id and pid_namespace else f"pid {os.getpid()}"


def _listed(ranks: Ranks) -> str:
    if len(ranks) > 2 and ranks == tuple(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]}-{ranks[-1]}"
    return ",".join(map(str, ranks))
