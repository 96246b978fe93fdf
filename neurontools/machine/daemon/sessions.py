"""The process at the other end of each connection, and the form of a method's answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neurontools.machine import codec, processes
from neurontools.machine.processes import ProcessKey
from neurontools.machine.protocol import ErrorCode, RpcError

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.machine.daemon.server import Connection
    from neurontools.machine.protocol import Request

    Handlers = dict[type[Request], Callable[[Connection, Any], "Reply"]]

Reply = tuple[str, tuple[int, ...]]
"""A result as JSON text, and descriptors to send along, which stay the sender's."""

_HIDDEN = -1  # stands for the start time of a process that /proc does not show


class Sessions:
    """Connections, the processes that greeted on them, and which connection speaks for a registered process."""

    def __init__(self) -> None:
        self._greeted: dict[Connection, ProcessKey | None] = {}
        self.owners: dict[ProcessKey, Connection] = {}

    def __len__(self) -> int:
        return len(self._greeted)

    def open(self, connection: Connection) -> None:
        """Take a connection in."""
        self._greeted[connection] = None

    def close(self, connection: Connection) -> tuple[ProcessKey, ...]:
        """Forget a connection; return the registered processes that it spoke for."""
        self._greeted.pop(connection, None)
        unattended = tuple(key for key, owner in self.owners.items() if owner is connection)
        for key in unattended:
            del self.owners[key]
        return unattended

    def greet(self, connection: Connection) -> ProcessKey:
        """Find out who is at the other end.

        Raises:
            RpcError: the process is gone.
        """
        pid = connection.peer.pid
        try:
            key = processes.key_of(pid)
        except ProcessLookupError:
            if not processes.is_hidden(pid):
                raise RpcError(
                    ErrorCode.PEER_REFUSED, f"process {pid} that made this connection is gone"
                ) from None
            key = ProcessKey(pid, _HIDDEN)
        self._greeted[connection] = key
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
        if key is not None and key.start_ticks == _HIDDEN:
            raise RpcError(
                ErrorCode.PEER_REFUSED,
                f"/proc hides process {key.pid} from neurond (hidepid), which could not tell when it is gone; "
                "it may read but not claim cores",
                "run neurond as root, or as a member of the group that /proc's option gid= names",
            )
        if key is None or not processes.is_alive(key):
            raise RpcError(
                ErrorCode.PEER_REFUSED,
                f"the process that made this connection ({connection.peer.pid}) is gone; a forked child is not it",
            )
        return key


def reply(result: object, descriptors: tuple[int, ...] = ()) -> Reply:
    """Return a result as JSON text, with descriptors to send along, which stay the sender's."""
    return codec.encode(result), descriptors
