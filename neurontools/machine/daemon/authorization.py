"""Authorization: which users may call which methods of a daemon."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from neurontools.machine.protocol import ErrorCode, RpcError

if TYPE_CHECKING:
    from neurontools.machine.processes import Peer

_ROOT = 0
# These change the machine for all users of it.
_OWNER_METHODS = frozenset(
    {
        "clear_faults",
        "count_hardware",
        "inject_fault",
        "reset_device",
        "reset_hardware",
        "stop",
        "register_synthetic",
        "unregister_synthetic",
        "reserve_synthetic",
    }
)


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
        """Return why a process may call no method at all, or ""."""
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
                f"uid {peer.uid} may not {method} machine {self._machine!r}: only its owner, uid {os.getuid()}, "
                "and root may",
                "ask its owner",
            )


def may_administer(peer: Peer) -> bool:
    """Return whether a process belongs to the machine's owner or root."""
    return peer.uid in {os.getuid(), _ROOT}
