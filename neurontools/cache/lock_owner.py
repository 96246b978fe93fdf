"""The process that holds a lock or waits for one, and whether it is alive."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Self

from neurontools.base.files import read_start
from neurontools.base.json_reader import load_json, to_float
from neurontools.base.procfs import read_boot_id, read_namespace, read_start_ticks
from neurontools.cache.layouts import WAITER_PREFIX, open_entry

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType


HEARTBEAT_S = 30.0
STALE_S = 300.0
_MAX_BYTES = 4096


class Liveness(StrEnum):
    """Whether a lock's owner lives; UNKNOWN for an unnamed lock, the real wrapper's zero-byte file."""

    ALIVE = "alive"
    DEAD = "dead"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class LockOwner:
    """A process that holds a lock. `token` distinguishes the locks of one process."""

    boot_id: str
    pid_namespace: str
    pid: int
    start_ticks: int
    host: str
    started_unix_s: float
    token: str

    def to_bytes(self) -> bytes:
        """Return the lock file's content."""
        return json.dumps(asdict(self)).encode() + b"\n"


def new_lock_owner() -> LockOwner:
    """Return an owner record for the calling process, with a fresh token."""
    return LockOwner(
        boot_id=read_boot_id(),
        pid_namespace=read_namespace("pid"),
        pid=os.getpid(),
        start_ticks=read_start_ticks(os.getpid()) or 0,
        host=os.uname().nodename,
        started_unix_s=round(time.time(), 3),
        token=os.urandom(8).hex(),
    )


def parse_lock_owner(data: bytes) -> LockOwner | None:
    """Return the owner in a lock file; None if unnamed or damaged."""
    try:
        stored = load_json(data)
        return LockOwner(
            boot_id=str(stored["boot_id"]),
            pid_namespace=str(stored["pid_namespace"]),
            pid=int(stored["pid"]),
            start_ticks=int(stored["start_ticks"]),
            host=str(stored["host"]),
            started_unix_s=to_float(stored["started_unix_s"]),
            token=str(stored["token"]),
        )
    except (KeyError, TypeError, ValueError):
        return None


def owner_liveness(owner: LockOwner | None, heartbeat_age_s: float) -> Liveness:
    """Return whether a lock's owner lives.

    The process table decides if boot and pid namespace are those of this process, otherwise the heartbeat does.
    """
    if owner is None:
        return Liveness.UNKNOWN
    if (owner.boot_id, owner.pid_namespace) == (read_boot_id(), read_namespace("pid")):
        return Liveness.ALIVE if read_start_ticks(owner.pid) == owner.start_ticks else Liveness.DEAD
    return Liveness.DEAD if heartbeat_age_s > STALE_S else Liveness.ALIVE


class Waiter:
    """A file that marks this process as waiting; removed at the end of the `with` block."""

    def __init__(self, entry: str) -> None:
        self._entry = entry
        self._name = ""

    def announce(self) -> None:
        """Write the file; errors are ignored."""
        if self._name:
            return
        owner = new_lock_owner()
        self._name = f"{WAITER_PREFIX}{owner.pid}-{owner.token}"
        with suppress(OSError), open_entry(self._entry) as directory:
            directory.create(self._name, owner.to_bytes())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._name:
            with suppress(OSError), open_entry(self._entry) as directory:
                directory.remove_quietly(self._name)


def list_waiters(entry: str) -> tuple[LockOwner, ...]:
    """Return the living processes that wait for an entry; processes of other hosts count as alive."""
    owners = [owner for _, owner, is_dead in _waiters(entry) if not is_dead]
    return tuple(sorted(owners, key=lambda owner: (owner.host, owner.pid)))


def dead_waiter_files(entry: str) -> tuple[str, ...]:
    """Return the names of files of processes that were killed while waiting."""
    return tuple(name for name, _, is_dead in _waiters(entry) if is_dead)


def _waiters(entry: str) -> Iterator[tuple[str, LockOwner, bool]]:
    """Yield file, owner and whether it is dead of each process that waits."""
    with suppress(OSError):
        for name in os.listdir(entry):
            if name.startswith(WAITER_PREFIX):
                owner = parse_lock_owner(read_start(f"{entry}/{name}", _MAX_BYTES))
                if owner is not None:
                    yield name, owner, owner_liveness(owner, 0.0) is Liveness.DEAD
