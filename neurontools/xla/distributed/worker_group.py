"""Collectives of a worker with its group: through shared memory on one machine, over gloo between machines.

Both connect at their first use, among the members only. Waits are divided into short ones, so Ctrl-C ends them. The
error names a member that has ended within a second, and a member that does not take part after the timeout.
"""

# ruff: noqa: PLW0603
# One communicator per process.

from __future__ import annotations

import atexit
import itertools
import os
import threading
import time
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from neurontools.base.interrupts import is_of_handler
from neurontools.collectives.operations import format_groups, parse_groups
from neurontools.xla.distributed import shared_exchange, workers
from neurontools.xla.distributed.collective_wait import CollectiveWait
from neurontools.xla.distributed.messages import MessageExchange
from neurontools.xla.distributed.reductions import scale_
from neurontools.xla.distributed.worker_roster import Ranks, WorkerRoster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from neurontools.xla.distributed.shared_exchange import SharedExchange

_SLICE_S = 0.2
_ANNOUNCE_S = 1.0
_POLL_S = 0.005
_GRACE_S = 60.0
REDUCTIONS = {
    "sum": dist.ReduceOp.SUM,
    "mul": dist.ReduceOp.PRODUCT,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "and": dist.ReduceOp.BAND,
    "or": dist.ReduceOp.BOR,
}
OF_HOST = "host "
"""In front of replica groups, those that exchange host tensors outside of graphs: in an order of their own."""
_FINISH_S = 10.0
_numbers = itertools.count()
_current: Communicator | None = None
_of_thread = threading.local()


class WorkerGroup:
    """The workers of one group. Positions count within `ranks`; tensors are on the host and dense.

    Args:
        roster: the workers of the run.
        ranks: the members, this worker among them.
        mark: distinguishes groups of the same ranks.
    """

    def __init__(self, roster: WorkerRoster, ranks: Ranks, mark: str = "") -> None:
        self.ranks = ranks
        self.size = len(ranks)
        self.position = ranks.index(roster.rank)
        self.timeout = roster.timeout
        """How long its collectives wait for a member."""
        self._roster = roster
        self._name = f"group/{mark}" + "-".join(map(str, ranks))
        self._sequence = 0
        self._gloo: Any = None
        self._shared: SharedExchange | None = None
        self._connected = False

    def all_reduce(self, tensors: Sequence[torch.Tensor], reduce_type: str, scale: float = 1.0) -> None:
        """Reduce tensors of one data type in place, and multiply them by `scale`."""
        shared = self._exchange()
        if shared is not None:
            shared.all_reduce(tensors, reduce_type, scale, self._wait("all_reduce"))
            return
        parts = [tensor.contiguous().view(-1) for tensor in tensors]
        flat = parts[0] if len(parts) == 1 else torch.cat(parts)
        options = dist.AllreduceOptions()
        options.reduceOp = REDUCTIONS[reduce_type]
        self._run("all_reduce", lambda gloo: gloo.allreduce([flat], options))
        scale_(flat, scale)
        _divide(flat, parts)
        shared_exchange.write_back(parts, tensors)

    def reduce_scatter(self, rows: torch.Tensor, reduce_type: str, scale: float = 1.0) -> torch.Tensor:
        """Reduce a matrix with one row per member, and return the row of this member."""
        shared = self._exchange()
        if shared is None:
            reduced = rows.clone()
            self.all_reduce([reduced.view(-1)], reduce_type, scale)
            return reduced[self.position].clone()
        output = torch.empty_like(rows[self.position])
        shared.reduce_scatter(output, rows, reduce_type, scale, self._wait("reduce_scatter"))
        return output

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a matrix with the flat tensors of all members as rows."""
        gathered = torch.empty((self.size, tensor.numel()), dtype=tensor.dtype)
        shared = self._exchange()
        if shared is not None:
            shared.all_gather(gathered, tensor, self._wait("all_gather"))
        elif self.size == 1:
            gathered[0] = tensor
        else:
            self._run("all_gather", lambda gloo: gloo.allgather([list(gathered.unbind())], [tensor]))
        return gathered

    def broadcast(self, tensors: Sequence[torch.Tensor], root: int) -> None:
        """Copy flat tensors of one data type from the member at a position to all others."""
        shared = self._exchange()
        if shared is not None:
            shared.broadcast(tensors, root, self._wait("broadcast"))
            return
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = root, 0
        flat = tensors[0] if len(tensors) == 1 else torch.cat(list(tensors))
        self._run("broadcast", lambda gloo: gloo.broadcast([flat], options))
        _divide(flat, tensors)

    def all_to_all(self, rows: torch.Tensor) -> torch.Tensor:
        """Send each member its row of a matrix; return the matrix of the rows received."""
        received = torch.empty_like(rows)
        shared = self._exchange()
        if shared is not None:
            shared.all_to_all(received, rows, self._wait("all_to_all"))
        elif self.size == 1:
            received.copy_(rows)
        else:
            self._run("all_to_all", lambda gloo: gloo.alltoall_base(received, rows, [], []))
        return received

    def barrier(self) -> None:
        """Wait for all members."""
        shared = self._exchange()
        if shared is not None:
            shared.barrier(self._wait("barrier"))
        else:
            self.all_reduce([torch.zeros(1)], "sum")

    def gather_bytes(self, payload: bytes) -> list[bytes]:
        """Return the payloads of all members, in their order."""
        sizes = [int(size) for size in self.all_gather(torch.tensor([len(payload)]))]
        own = torch.zeros(max(*sizes, 1), dtype=torch.uint8)
        if payload:
            own[: len(payload)] = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
        gathered = self.all_gather(own)
        return [part[:size].numpy().tobytes() for part, size in zip(gathered, sizes, strict=True)]

    def _wait(self, what: str) -> CollectiveWait:
        return CollectiveWait(self._roster, self.ranks, what, self.timeout)

    def _exchange(self) -> SharedExchange | None:
        """Return the exchange through shared memory; None between machines, and in a group of one."""
        if not self._connected:
            if self.size > 1:
                self._shared = self._connect_shared()
            self._connected = True
        return self._shared

    def _connect_shared(self) -> SharedExchange | None:
        with shared_exchange.listen() as listener:
            addresses = self._join("members", listener.getsockname())
            members = self._roster.on_one_machine(self.ranks)
            if not members:
                return None
            pids = [member.pid for member in members]
            waiting = self._wait("first collective")
            return shared_exchange.connect(listener, self.position, pids, addresses, waiting)

    def _over_gloo(self) -> Any:
        if self._gloo is None:
            self._gloo = self._connect_gloo()
        return self._gloo

    def _connect_gloo(self) -> Any:
        self._join("gloo", b"1")
        options = dist.ProcessGroupGloo._Options()  # noqa: SLF001
        if os.environ.get("GLOO_SOCKET_IFNAME"):
            device = dist.ProcessGroupGloo.create_default_device()
        else:  # no resolvable host name is needed
            device = dist.ProcessGroupGloo.create_device(hostname=self._roster.network.address)
        options._devices = [device]  # noqa: SLF001
        options._timeout = self.timeout + timedelta(seconds=_GRACE_S)  # noqa: SLF001
        # Gloo waits in its store for the others, and while a store waits no other thread can use it: the messages could
        # not find the workers to which it sends.
        store = dist.PrefixStore(self._name, self._roster.store.plain.clone())
        return dist.ProcessGroupGloo(store, self.position, self.size, options)

    def _join(self, way: str, own: bytes) -> list[bytes]:
        """Publish the address of this worker, wait for all others and return what they published."""
        store = self._roster.store
        keys = [f"{self._name}/{way}/{rank}" for rank in self.ranks]
        waiting = self._wait("first collective")
        try:
            store.set(keys[self.position], own)
            while not store.has(*keys):
                time.sleep(_POLL_S)
                waiting.check(lambda position: store.has(keys[position]))
            return [store.get(key) or b"" for key in keys]
        except ConnectionError as error:
            raise waiting.failure(error) from None

    def _run(self, what: str, start: Callable[[Any], Any]) -> None:
        """Start an operation of gloo and wait for it; a group of one has none."""
        if self.size == 1:
            return
        gloo = self._over_gloo()
        self._sequence += 1
        waiting = self._wait(what)
        try:
            work = start(gloo)
        except RuntimeError as error:
            raise waiting.failure(error) from None
        keys = [f"{self._name}/waits/{self._sequence}/{rank}" for rank in self.ranks]
        store = self._roster.store
        announced = False
        while True:
            try:
                work.wait(timedelta(seconds=_SLICE_S))
            except RuntimeError as error:
                if is_of_handler(error):
                    raise
                if work.is_completed():
                    raise waiting.failure(error) from None
            else:
                return
            try:
                if not announced and waiting.elapsed_s() > _ANNOUNCE_S:
                    announced = True
                    store.set(keys[self.position], b"1")
                waiting.check(lambda position: store.has(keys[position]))
            except ConnectionError as error:
                raise waiting.failure(error) from None


def _divide(flat: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
    """Copy the contents of a joined tensor back into its parts."""
    if flat is tensors[0]:
        return
    for tensor, part in zip(tensors, flat.split([part.numel() for part in tensors]), strict=True):
        tensor.copy_(part)


def current() -> Communicator:
    """Return the communicator of this thread, else of this process; the first call connects to the other workers.

    Raises:
        WorkerError: the environment does not say where the other workers are.
    """
    global _current
    substituted: Communicator | None = getattr(_of_thread, "communicator", None)
    if substituted is not None:
        return substituted
    if _current is None:
        _current = _from_environment()
    return _current


def replace(communicator: Communicator | None) -> None:
    """Use another communicator from now on."""
    global _current
    _current = communicator


@contextmanager
def substitute(communicator: Communicator) -> Iterator[None]:
    """Use another communicator in this thread."""
    before = getattr(_of_thread, "communicator", None)
    _of_thread.communicator = communicator
    try:
        yield
    finally:
        _of_thread.communicator = before


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
        """Return the group of these ranks, which include this worker; a `mark`, such as `OF_HOST`, has an order of its own."""
        with self._lock:
            found = self._groups.get((ranks, mark))
            if found is None:
                found = self._groups[ranks, mark] = self._make_group(ranks, mark)
            return found

    def _make_group(self, ranks: Ranks, mark: str) -> WorkerGroup:
        return WorkerGroup(self, ranks, mark)

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
