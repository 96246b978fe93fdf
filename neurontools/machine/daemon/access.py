"""Who may ask a daemon for what."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from neurontools.machine.protocol import ErrorCode, RpcError

if TYPE_CHECKING:
    from neurontools.machine.processes import Peer

_ROOT = 0
# What changes the machine for everybody on it.
_OWNERS_METHODS = frozenset(
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


class Access:
    """The rules of one machine.

    A private machine is its owner's alone. A shared one is for whoever can connect, which the modes of its directory
    and socket leave to the group and to root; what changes it for all is for its owner and root.

    Args:
        machine: its name.
        group: the number of the group that it is shared with, None for a private machine.
    """

    def __init__(self, machine: str, group: int | None) -> None:
        self._machine = machine
        self._group = group

    def why_not(self, peer: Peer) -> str:
        """Return why a process may ask for nothing at all, or ""."""
        if self._group is None and peer.uid != os.getuid():
            return f"uid {peer.uid} may not use a machine of uid {os.getuid()}"
        if peer.pid == 0:
            return "the client runs in another pid namespace, so its process can't be told from others"
        return ""

    def check(self, peer: Peer, method: str) -> None:
        """Refuse a method that is not for this process's user.

        Raises:
            RpcError: it is only for the machine's owner and root.
        """
        if method in _OWNERS_METHODS and peer.uid not in {os.getuid(), _ROOT}:
            raise RpcError(
                ErrorCode.PEER_REFUSED,
                f"uid {peer.uid} may not {method} machine {self._machine!r}: only its owner, uid {os.getuid()}, "
                "and root may",
                "ask its owner",
            )
