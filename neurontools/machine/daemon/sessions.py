"""Connections: the peers and their rights, the form of an answer, and the watchers of snapshots."""

from __future__ import annotations

import asyncio
import os
import resource
from collections import Counter
from typing import TYPE_CHECKING, Any

from neurontools.machine import codec
from neurontools.machine.changes import compute_changes
from neurontools.machine.processes import HIDDEN
from neurontools.machine.protocol import CHANGES, SNAPSHOT, ErrorCode, RpcError, push_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.machine.daemon.server import Connection
    from neurontools.machine.processes import Peer, ProcessKey
    from neurontools.machine.protocol import Request
    from neurontools.machine.snapshot import Snapshot

    Handlers = dict[type[Request], Callable[[Connection, Any], "Reply"]]

Reply = tuple[str, tuple[int, ...]]
"""A result as JSON text, and descriptors to send along, which stay the sender's."""

_ROOT = 0
_DESCRIPTORS_PER_CLIENT = 3  # connection, page, pidfd
_USERS = 4  # that have room for all their clients at the same time
# These change the machine for all users of it.
_OWNER_METHODS = {
    "clear_faults": "remove faults from",
    "count_hardware": "count memory errors of",
    "inject_fault": "inject faults into",
    "register_synthetic": "run scenarios on",
    "reserve_synthetic": "run scenarios on",
    "reset_device": "reset devices of",
    "reset_hardware": "reset the error counters of",
    "stop": "stop",
    "unregister_synthetic": "run scenarios on",
}


class Authorization:
    """The rules of one machine.

    Only its owner may use a private machine. Whether a process can connect to a shared one is up to the modes of its
    directory and socket, which admit the group and root; methods that change it for all are for its owner and root.

    Args:
        machine: its name.
        group: the number of the group that it is shared with, None for a private machine.
    """

    def __init__(self, machine: str, group: int | None) -> None:
        self._machine = machine
        self._group = group

    def refusal_reason(self, peer: Peer) -> str:
        """Return why a process may not call any method, "" if it may."""
        if self._group is None and peer.uid != os.getuid():
            return f"uid {peer.uid} may not use a machine of uid {os.getuid()}"
        if peer.pid == 0:
            return "the client runs in another pid namespace, where its process cannot be identified"
        return ""

    def check(self, peer: Peer, method: str) -> None:
        """Refuse a method that is not for this process's user.

        Raises:
            RpcError: it is only for the machine's owner and root.
        """
        if method in _OWNER_METHODS and not may_administer(peer):
            raise RpcError(
                ErrorCode.PEER_REFUSED,
                f"uid {peer.uid} may not {_OWNER_METHODS[method]} machine {self._machine!r}: "
                f"only its owner, uid {os.getuid()}, and root may",
                "ask its owner",
            )


def may_administer(peer: Peer) -> bool:
    """Return whether a process belongs to the machine's owner or root."""
    return peer.uid in {os.getuid(), _ROOT}


class Sessions:
    """Connections, the processes that greeted on them, and which connection speaks for a registered process."""

    def __init__(self) -> None:
        self._greeted: dict[Connection, ProcessKey | None] = {}
        self._users: Counter[int] = Counter()
        self.owners: dict[ProcessKey, Connection] = {}

    def __len__(self) -> int:
        return len(self._greeted)

    def open(self, connection: Connection) -> None:
        """Add a connection."""
        self._greeted[connection] = None
        self._users[connection.peer.uid] += 1

    def close(self, connection: Connection) -> tuple[ProcessKey, ...]:
        """Forget a connection; return the registered processes that it spoke for."""
        if connection in self._greeted:
            del self._greeted[connection]
            self._users[connection.peer.uid] -= 1
        left = tuple(key for key, owner in self.owners.items() if owner is connection)
        for key in left:
            del self.owners[key]
        return left

    def excess(self, peer: Peer) -> str:
        """Return why a user has too many connections, or "". Owner and root may use all descriptors of the daemon."""
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = descriptors // (_DESCRIPTORS_PER_CLIENT * _USERS)
        if may_administer(peer) or self._users[peer.uid] <= most:
            return ""
        return f"uid {peer.uid} has {most} connections to this machine, the most for one user"

    def greet(self, connection: Connection) -> ProcessKey:
        """Identify the process at the other end.

        Raises:
            ProcessLookupError: the process is gone.
        """
        self._greeted[connection] = key = connection.process.key()
        return key

    def has_greeted(self, connection: Connection) -> bool:
        """Return whether a connection has sent hello."""
        return self._greeted[connection] is not None

    def own_key(self, connection: Connection) -> ProcessKey:
        """Return the process that may claim things through a connection.

        Raises:
            RpcError: it is gone, or can't be watched.
        """
        key = self._greeted[connection]
        if key is not None and key.start_ticks == HIDDEN:
            raise RpcError(
                ErrorCode.PEER_REFUSED,
                f"/proc hides process {key.pid} from neurond (hidepid), so its exit cannot be detected; "
                "it may read but not claim cores",
                "run neurond as root, or as a member of the group that /proc's option gid= names",
            )
        if key is None or not connection.process.is_alive():
            raise RpcError(
                ErrorCode.PEER_REFUSED,
                f"the process that made this connection ({connection.peer.pid}) is gone; a forked child is not it",
            )
        return key


def reply(result: object, descriptors: tuple[int, ...] = ()) -> Reply:
    """Return a result as JSON text, with descriptors to send along, which stay the sender's."""
    return codec.encode(result), descriptors


class Watching:
    """The watchers and their periods. Without watchers there is no timer.

    Args:
        snapshot: returns the machine as a value.
        encoded_snapshot: returns it as JSON text.
    """

    def __init__(self, snapshot: Callable[[], Snapshot], encoded_snapshot: Callable[[], str]) -> None:
        self._snapshot = snapshot
        self._encoded_snapshot = encoded_snapshot
        self._whole: dict[float, set[Connection]] = {}
        # With what was pushed last: a connection gets everything in order or is dropped.
        self._changes: dict[float, dict[Connection, Snapshot | None]] = {}
        self._periods: dict[Connection, float] = {}
        self._timers: dict[float, asyncio.TimerHandle] = {}

    def add(self, connection: Connection, period_s: float, *, changes: bool = False) -> None:
        """Push a snapshot to a connection every `period_s` seconds; a former period is forgotten.

        Args:
            connection: whose.
            period_s: seconds between two.
            changes: push only the first one whole, then what changed.
        """
        self.remove(connection)
        self._periods[connection] = period_s
        if changes:
            self._changes.setdefault(period_s, {})[connection] = None
        else:
            self._whole.setdefault(period_s, set()).add(connection)
        if period_s not in self._timers:
            self._schedule(period_s)

    def remove(self, connection: Connection) -> None:
        """Stop pushing to a connection."""
        period_s = self._periods.pop(connection, None)
        if period_s is None:
            return
        whole, bases = self._whole.get(period_s, set()), self._changes.get(period_s, {})
        whole.discard(connection)
        bases.pop(connection, None)
        if not whole and not bases:
            self._whole.pop(period_s, None)
            self._changes.pop(period_s, None)
            self._timers.pop(period_s).cancel()

    def push_first(self, connection: Connection) -> None:
        """Push a snapshot now: a new watcher need not wait."""
        if connection not in self._periods:
            return  # it was dropped meanwhile
        bases = self._changes.get(self._periods[connection], {})
        if connection in bases:
            bases[connection] = snapshot = self._snapshot()
            connection.send(push_line(SNAPSHOT, codec.encode(snapshot)))
        else:
            connection.send(self._whole_line())

    def _schedule(self, period_s: float) -> None:
        self._timers[period_s] = asyncio.get_running_loop().call_later(period_s, self._tick, period_s)

    def _tick(self, period_s: float) -> None:
        whole, bases = self._whole.get(period_s), self._changes.get(period_s)
        self._schedule(period_s)
        if whole:
            line = self._whole_line()
            for connection in list(whole):
                connection.send(line)
        if bases:
            self._push_changes(bases)

    def _push_changes(self, bases: dict[Connection, Snapshot | None]) -> None:
        snapshot = self._snapshot()
        lines: dict[int, bytes] = {}
        for connection, base in list(bases.items()):
            if base is None:
                continue
            line = lines.get(id(base))
            if line is None:
                line = lines[id(base)] = push_line(CHANGES, codec.encode(compute_changes(base, snapshot)))
            bases[connection] = snapshot
            connection.send(line)

    def _whole_line(self) -> bytes:
        return push_line(SNAPSHOT, self._encoded_snapshot())
