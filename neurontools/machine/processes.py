"""Who a process is: peer credentials, start time, boot, pid namespace, and a descriptor that tells its death."""

from __future__ import annotations

import os
import select
import struct
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket

_UCRED = struct.Struct("3i")
_DEAD_STATES = frozenset({b"Z", b"X", b"x"})
_STATE_FIELD = 0
_START_FIELD = 19
_STACK_FIELD = 25


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


def peer_of(connection: socket.socket) -> Peer:
    """Return who made a connection (SO_PEERCRED)."""
    from socket import SO_PEERCRED, SOL_SOCKET  # neuron-cache comes here for start times and needs no sockets

    pid, uid, _ = _UCRED.unpack(connection.getsockopt(SOL_SOCKET, SO_PEERCRED, _UCRED.size))
    return Peer(pid, uid)


def start_ticks(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; None when it is gone or a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    if len(fields) <= _START_FIELD or fields[_STATE_FIELD] in _DEAD_STATES:
        return None
    return int(fields[_START_FIELD])


def ticks_now() -> int:
    """Return this moment as the start time of a process that starts now, in clock ticks since boot."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK") // 1_000_000_000


def stack_of(pid: int) -> int:
    """Return where the stack of a process begins, which is elsewhere when it executes another program.

    0 where /proc does not tell: of a process that is gone, of another user, or amid that very change.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return 0
    return int(fields[_STACK_FIELD]) if len(fields) > _STACK_FIELD else 0


def is_alive(key: ProcessKey) -> bool:
    """Return whether exactly this process still lives."""
    return start_ticks(key.pid) == key.start_ticks


def is_hidden(pid: int) -> bool:
    """Return whether a process lives but /proc does not show it to this user (its option hidepid)."""
    if os.access(f"/proc/{pid}/stat", os.R_OK):
        return False
    try:
        os.close(os.pidfd_open(pid))
    except OSError:
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
    ticks = start_ticks(pid)
    if ticks is None:
        raise ProcessLookupError(pid)
    return ProcessKey(pid, ticks)


def open_pidfd(key: ProcessKey) -> int:
    """Return a descriptor that becomes readable when the process is gone.

    Raises:
        ProcessLookupError: the process is gone, or its pid belongs to another one now.
    """
    descriptor = os.pidfd_open(key.pid)
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


def boot_id() -> str:
    """Return the id of this boot of the host, "" where /proc does not tell."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def in_our_pid_namespace(pid: int) -> bool:
    """Return whether a process sees the same pids as this one; True where the kernel does not tell.

    The link that says so can't be read of another user's process; its status, which lists a pid for each namespace
    from ours on down, can.
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
