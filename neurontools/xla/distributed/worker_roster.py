"""The workers of a run: their processes and hosts, and the time for which one of them waits for the others."""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import os
import secrets
import socket
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

from neurontools import env, paths
from neurontools.base.files import open_regular, remove_quietly, write_temporary
from neurontools.base.interrupts import is_of_handler
from neurontools.base.json_reader import load_json
from neurontools.base.procfs import read_boot_id, read_namespace, read_start_ticks
from neurontools.errors import NeuronToolsError
from neurontools.xla.distributed import workers
from neurontools.xla.distributed.workers import WorkerError

if TYPE_CHECKING:
    from datetime import timedelta

Ranks = tuple[int, ...]
LOOPBACK = "127.0.0.1"
PROOF_BYTES = 32
"""The size of a signature."""
_SECRET_BYTES = 32
_OTHERS = 0o077
_log = logging.getLogger("neurontools.xla")


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


class WorkerStore:
    """Entries that only workers of the job can write.

    Args:
        plain: torch's store.
        key: the key of the job.
    """

    def __init__(self, plain: Any, key: JobKey) -> None:
        self.plain = plain
        self._key = key

    def set(self, name: str, value: bytes) -> None:
        """Publish a value.

        Raises:
            ConnectionError: the process that holds the store has ended.
        """
        try:
            self.plain.set(name, self._key.sign(name.encode(), value) + value)
        except RuntimeError as error:
            raise _failure(error) from error

    def has(self, *names: str) -> bool:
        """Return whether all these entries are there.

        Raises:
            ConnectionError: the process that holds the store has ended.
        """
        try:
            return bool(self.plain.check(list(names)))
        except RuntimeError as error:
            raise _failure(error) from error

    def get(self, name: str) -> bytes | None:
        """Return a value, None before a worker has published it.

        Raises:
            ConnectionError: the process that holds the store has ended.
            WorkerError: no worker of this job has written the entry.
        """
        if not self.has(name):
            return None
        try:
            entry: bytes = self.plain.get(name)
        except RuntimeError as error:
            raise _failure(error) from error
        value = entry[PROOF_BYTES:]
        if not self._key.is_signature(entry[:PROOF_BYTES], name.encode(), value):
            raise WorkerError(
                f"the entry {name!r} of the workers' store is not from a worker of this job",
                f"another program writes into the store, or the workers have different secrets: set {env.JOB_SECRET} "
                "to the same one for all of them",
            )
        return value


def _failure(error: RuntimeError) -> ConnectionError:
    if is_of_handler(error):
        raise error
    return ConnectionError("the process that holds the workers' store has ended")


class JobKey:
    """Signs and checks messages with a secret; an empty secret stands for workers that do not know each other."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def sign(self, *parts: bytes) -> bytes:
        """Return the signature of a list of byte strings."""
        code = hmac.new(self._secret, digestmod=hashlib.sha256)
        for part in parts:
            code.update(len(part).to_bytes(8, "little") + part)
        return code.digest()

    def is_signature(self, signature: bytes, *parts: bytes) -> bool:
        """Return whether a worker with the same key signed these byte strings."""
        return hmac.compare_digest(signature, self.sign(*parts))


class JobNetwork:
    """Where the workers of a job reach each other, and their key.

    Args:
        store: torch's key-value store of the job.
        rank: this worker's rank.
        size: number of workers.
    """

    def __init__(self, store: Any, rank: int, size: int) -> None:
        plain = getattr(store, "_underlying_non_prefix_store", store)
        master = getattr(plain, "host", "") or os.environ.get("MASTER_ADDR") or LOOPBACK
        is_on_one_host = workers.local_world_size() == size or _is_loopback(master)
        self.address = LOOPBACK if is_on_one_host else _address_towards(master)
        """This computer's address on the interface that leads to the master."""
        secret = os.environ.get(env.JOB_SECRET, "").encode()
        if not secret and is_on_one_host:
            secret = _user_secret()
        elif not secret and rank == 0:
            _warn_of_strangers()
        # Jobs that run at the same time have stores of different ports: no entry of one is valid in another.
        port = str(getattr(plain, "port", "")).encode()
        self.key = JobKey(JobKey(secret).sign(port) if secret else b"")


def _is_loopback(host: str) -> bool:
    with suppress(ValueError):
        return ip_address(host).is_loopback
    return host == "localhost"


def _address_towards(host: str) -> str:
    """Return the address of this computer's interface from which packets to a host leave."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, 1, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)  # chooses the route and sends nothing
        return str(probe.getsockname()[0])


@cache
def _warn_of_strangers() -> None:
    _log.warning(
        "The workers are on several machines and %s is not set: their messages are not authenticated. "
        "Set it to the same secret on each machine",
        env.JOB_SECRET,
    )


def _user_secret() -> bytes:
    """Return this user's secret for jobs on one computer; the first worker that needs it creates the file.

    Raises:
        NeuronToolsError: the file or its directory is not private, or cannot be used.
    """
    path = f"{paths.ensure_private(paths.own_runtime_dir())}/{paths.JOB_SECRET}"
    try:
        if not os.path.lexists(path):
            _create_secret(path)
        with open(open_regular(path), "rb") as file:
            status = os.fstat(file.fileno())
            secret = file.read(_SECRET_BYTES + 1)
    except OSError as error:
        raise NeuronToolsError(
            f"cannot use the workers' secret {path}: {error.strerror}", "remove it"
        ) from error
    if status.st_uid != os.geteuid() or status.st_mode & _OTHERS or len(secret) != _SECRET_BYTES:
        raise NeuronToolsError(
            f"refusing the workers' secret {path}: not 32 bytes for this user alone", "remove it"
        )
    return secret


def _create_secret(path: str) -> None:
    temporary = write_temporary(os.path.dirname(path), secrets.token_bytes(_SECRET_BYTES), mode=0o600)
    try:
        with suppress(FileExistsError):  # another worker was faster
            os.link(temporary, path)
    finally:
        remove_quietly(temporary)
