"""Identity of processes: peer credentials, start time, boot, pid namespace, and a descriptor that shows the exit."""

from __future__ import annotations

import errno
import os
import select
import struct
import time
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from neurontools.base.procfs import read_start_ticks, read_stat, read_uid

if TYPE_CHECKING:
    import socket

_UCRED = struct.Struct("3i")
_SO_PEERPIDFD = 77  # Linux 6.5, include/uapi/asm-generic/socket.h
HIDDEN = -1
"""The start time of a process that /proc does not show."""


@dataclass(frozen=True, slots=True, order=True)
class ProcessKey:
    """One process of this boot: a pid alone may be used again, with its start time it is unique."""

    pid: int
    start_ticks: int


@dataclass(frozen=True, slots=True)
class Peer:
    """The process that connected a Unix socket, as the kernel says; pid 0 is outside of our pid namespace."""

    pid: int
    uid: int

    @property
    def may_administer(self) -> bool:
        """Whether it belongs to the owner of this process (the daemon) or to root."""
        return self.uid in {os.getuid(), 0}


def peer_of(connection: socket.socket) -> Peer:
    """Return who made a connection (SO_PEERCRED)."""
    from socket import SO_PEERCRED, SOL_SOCKET  # neuron-cache comes here for start times and needs no sockets

    pid, uid, _ = _UCRED.unpack(connection.getsockopt(SOL_SOCKET, SO_PEERCRED, _UCRED.size))
    return Peer(pid, uid)


@cache
def has_peer_pidfd() -> bool:
    """Return whether the kernel gives a pidfd of the process at the other end of a connection."""
    import socket

    left, right = socket.socketpair()
    with left, right:
        try:
            os.close(_peer_pidfd(left))
        except OSError as error:
            return error.errno != errno.ENOPROTOOPT
    return True


def _peer_pidfd(connection: socket.socket) -> int:
    from socket import SOL_SOCKET

    return connection.getsockopt(SOL_SOCKET, _SO_PEERPIDFD)


class PeerProcess:
    """The process that made a connection. A later process with its pid, of any user, is not taken for it.

    The kernel's pidfd of the peer tells them apart (SO_PEERPIDFD, Linux 6.5), else start time and user when this
    object is made, right after the connection is accepted.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.peer = peer_of(connection)
        self._connection = connection
        self._first = None if has_peer_pidfd() else self._identify()

    def key(self) -> ProcessKey:
        """Return the process's key, with `HIDDEN` for its start time where /proc does not show it.

        Raises:
            ProcessLookupError: the process has exited.
        """
        ticks = read_start_ticks(self.peer.pid)
        if not self.is_alive():
            raise ProcessLookupError(self.peer.pid)
        return ProcessKey(self.peer.pid, HIDDEN if ticks is None else ticks)

    def is_alive(self) -> bool:
        """Return whether the process has not exited."""
        if not has_peer_pidfd():
            return self._first is not None and self._first == self._identify()
        try:
            descriptor = _peer_pidfd(self._connection)
        except OSError:
            return False
        try:
            return not is_readable(descriptor, 0)
        finally:
            os.close(descriptor)

    def _identify(self) -> ProcessKey | None:
        pid = self.peer.pid
        ticks, uid = read_start_ticks(pid), read_uid(pid)
        if ticks is None:
            return ProcessKey(pid, HIDDEN) if is_hidden(pid) else None
        return ProcessKey(pid, ticks) if uid == self.peer.uid else None


def ticks_now() -> int:
    """Return the current time in clock ticks since boot, the unit of start times."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK") // 1_000_000_000


def stack_start(pid: int) -> int:
    """Return the address of a process's stack, which changes when it executes another program.

    0 where /proc does not show it: the process has exited, is another user's, or executes just now.
    """
    stat = read_stat(pid)
    return 0 if stat is None else stat.stack_start


def is_alive(key: ProcessKey) -> bool:
    """Return whether exactly this process still lives."""
    return read_start_ticks(key.pid) == key.start_ticks


def is_hidden(pid: int) -> bool:
    """Return whether a process lives but /proc does not show it to this user (its option hidepid)."""
    if os.access(f"/proc/{pid}/stat", os.R_OK):
        return False
    try:
        os.close(os.pidfd_open(pid))
    except (OSError, OverflowError):  # the pid may be of a damaged file
        return False
    return True


def this_process() -> ProcessKey:
    """Return the key of the calling process."""
    return key_of(os.getpid())


def key_of(pid: int) -> ProcessKey:
    """Return the key of a living process.

    Raises:
        ProcessLookupError: there is no such process.
    """
    ticks = read_start_ticks(pid)
    if ticks is None:
        raise ProcessLookupError(pid)
    return ProcessKey(pid, ticks)


def open_pidfd(key: ProcessKey) -> int:
    """Return a descriptor that becomes readable when the process is gone.

    Raises:
        ProcessLookupError: the process is gone, or its pid belongs to another one now.
    """
    try:
        descriptor = os.pidfd_open(key.pid)
    except OverflowError:  # no process has such a number
        raise ProcessLookupError(key.pid) from None
    if is_alive(key):
        return descriptor
    os.close(descriptor)
    raise ProcessLookupError(key.pid)


def wait_for_end(pid: int, within_s: float) -> None:
    """Wait until a process is gone, or the time is over."""
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return
    try:
        is_readable(descriptor, within_s)
    finally:
        os.close(descriptor)


def is_readable(descriptor: int, within_s: float) -> bool:
    """Wait until a descriptor is readable; return whether it became so in time."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(within_s * 1000))


def in_our_pid_namespace(pid: int) -> bool:
    """Return whether a process sees the same pids as this one; True where the kernel does not tell.

    The link to the namespace of another user's process cannot be read, but its status can: it lists a pid for each
    namespace from ours down.
    """
    try:
        return os.readlink(f"/proc/{pid}/ns/pid") == os.readlink("/proc/self/ns/pid")
    except PermissionError:
        return _namespace_depth(pid) <= _namespace_depth(os.getpid())
    except OSError:
        return True


def _namespace_depth(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            lines = file.read().splitlines()
    except OSError:
        return 0
    return next((len(line.split()) for line in lines if line.startswith(b"NSpid:")), 0)
