"""Who holds a lock, and whether that process still lives."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from enum import StrEnum

from neurontools.machine.processes import boot_id, start_ticks

HEARTBEAT_S = 30.0
STALE_S = 300.0


class Liveness(StrEnum):
    """What is known of a lock's owner. UNKNOWN is a lock that names none: the real wrapper's zero-byte file."""

    ALIVE = "alive"
    DEAD = "dead"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Owner:
    """A process that holds a lock. `token` tells two locks of one process apart."""

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


def this_process() -> Owner:
    """Return an owner record for the calling process, with a fresh token."""
    return Owner(
        boot_id=boot_id(),
        pid_namespace=_pid_namespace(),
        pid=os.getpid(),
        start_ticks=start_ticks(os.getpid()) or 0,
        host=os.uname().nodename,
        started_unix_s=round(time.time(), 3),
        token=os.urandom(8).hex(),
    )


def owner_from_bytes(data: bytes) -> Owner | None:
    """Return the owner that a lock file names, or None for a foreign or damaged one."""
    try:
        stored = json.loads(data)
        return Owner(
            boot_id=str(stored["boot_id"]),
            pid_namespace=str(stored["pid_namespace"]),
            pid=int(stored["pid"]),
            start_ticks=int(stored["start_ticks"]),
            host=str(stored["host"]),
            started_unix_s=float(stored["started_unix_s"]),
            token=str(stored["token"]),
        )
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError):
        return None


def liveness(owner: Owner | None, heartbeat_age_s: float) -> Liveness:
    """Return whether a lock's owner lives.

    The process table decides only where boot and pid namespace are ours; elsewhere the heartbeat does.
    """
    if owner is None:
        return Liveness.UNKNOWN
    if (owner.boot_id, owner.pid_namespace) == (boot_id(), _pid_namespace()):
        return Liveness.ALIVE if start_ticks(owner.pid) == owner.start_ticks else Liveness.DEAD
    return Liveness.DEAD if heartbeat_age_s > STALE_S else Liveness.ALIVE


def _pid_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""
