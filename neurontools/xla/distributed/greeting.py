"""Connections between workers over TCP: each shows the other that it has the job's key, and strangers are dropped.

The listening worker sends a challenge. The connecting one answers with its rank, a challenge of its own and a proof,
and gets a proof back. A proof is a signature of both challenges, both ranks and the direction, so none is of use
anywhere else.
"""

from __future__ import annotations

import errno
import logging
import secrets
import socket
import struct
import threading
import time
from contextlib import ExitStack, suppress
from functools import cache
from typing import TYPE_CHECKING

from neurontools.base.interrupts import is_of_handler
from neurontools.xla.distributed.collective_wait import ClosedConnectionError
from neurontools.xla.distributed.worker_roster import PROOF_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.xla.distributed.worker_roster import JobKey

_CHALLENGE_BYTES = 32
_ANSWER = struct.Struct(f"<q{_CHALLENGE_BYTES}s{PROOF_BYTES}s")  # rank, challenge, proof
_RANKS = struct.Struct("<qq")
_GREETING_S = 10.0
_MOST_UNKNOWN = 32
_PAUSE_S = 0.2
_LISTENER_CLOSED = (errno.EBADF, errno.EINVAL)
_log = logging.getLogger("neurontools.xla")


def connect(address: tuple[str, int], key: JobKey, rank: int, target: int) -> socket.socket:
    """Connect to a worker as the one with a rank.

    Raises:
        PermissionError: another program listens there.
        ConnectionError: the address is free, or the connection was closed.
        TimeoutError: the worker does not answer.
    """
    with ExitStack() as stack:
        connection = stack.enter_context(socket.create_connection(address, timeout=_GREETING_S))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _introduce(connection, key, rank, target)
        connection.settimeout(None)
        stack.pop_all()
    return connection


def _introduce(connection: socket.socket, key: JobKey, rank: int, target: int) -> None:
    deadline_s = time.monotonic() + _GREETING_S
    theirs, ours = (
        bytes(receive(connection, _CHALLENGE_BYTES, deadline_s)),
        secrets.token_bytes(_CHALLENGE_BYTES),
    )
    signed = (theirs, ours, _RANKS.pack(rank, target))
    connection.sendall(_ANSWER.pack(rank, ours, key.sign(b"connect", *signed)))
    if not key.is_signature(bytes(receive(connection, PROOF_BYTES, deadline_s)), b"accept", *signed):
        raise PermissionError("another program has its address")


def receive(connection: socket.socket, nbytes: int, deadline_s: float | None = None) -> bytearray:
    """Receive a number of bytes, until a time of the monotonic clock.

    Raises:
        ClosedConnectionError: the other side has closed the connection.
        TimeoutError: the time is over.
    """
    data = bytearray(nbytes)
    rest = memoryview(data)
    while rest:
        if deadline_s is not None:
            connection.settimeout(max(deadline_s - time.monotonic(), 1e-3))
        count = connection.recv_into(rest)
        if not count:
            raise ClosedConnectionError
        rest = rest[count:]
    return data


class WorkerListener:
    """Accepts connections of the other workers in a thread, and serves each in one.

    Of the connections whose worker is not known yet, only the newest are kept, each for a short time. So strangers take
    neither threads nor descriptors from the program; a worker connects again.

    Args:
        host: the address to listen at.
        key: the key of the job.
        rank: this worker's rank.
        size: number of workers.
        serve: called with the rank of a worker and its connection, in the thread of this connection.
    """

    def __init__(
        self, host: str, key: JobKey, rank: int, size: int, serve: Callable[[int, socket.socket], None]
    ) -> None:
        self._key = key
        self._rank = rank
        self._size = size
        self._serve = serve
        self._lock = threading.Lock()
        self._unknown: dict[socket.socket, None] = {}
        self._room = threading.Semaphore(_MOST_UNKNOWN + size)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family, backlog=socket.SOMAXCONN)
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        start_thread(self._accept)

    def _accept(self) -> None:
        with self._listener as listener:
            while True:
                connection = accept(listener)
                if connection is None:
                    continue
                if not self._room.acquire(blocking=False):
                    self._drop_oldest()
                    self._room.acquire()
                with self._lock:
                    self._unknown[connection] = None
                try:
                    start_thread(self._greet_and_serve, connection)
                except RuntimeError as error:  # the limit of threads
                    _warn(str(error))
                    self._end_greeting(connection, close=True)

    def _drop_oldest(self) -> None:
        """End the oldest unknown connection: its thread closes it."""
        with self._lock:
            oldest = next(iter(self._unknown), None)
            if oldest is not None:
                del self._unknown[oldest]
                with suppress(OSError):  # the stranger has left
                    oldest.shutdown(socket.SHUT_RDWR)

    def _greet_and_serve(self, connection: socket.socket) -> None:
        rank = None
        try:
            with suppress(OSError, struct.error):
                rank = self._greet(connection)
        finally:
            self._end_greeting(connection, close=rank is None)
        if rank is not None:
            with connection:
                self._serve(rank, connection)

    def _end_greeting(self, connection: socket.socket, *, close: bool) -> None:
        self._forget(connection)
        if close:
            connection.close()
        self._room.release()

    def _greet(self, connection: socket.socket) -> int:
        """Return the rank of the worker that connects."""
        deadline_s = time.monotonic() + _GREETING_S
        ours = secrets.token_bytes(_CHALLENGE_BYTES)
        connection.settimeout(_GREETING_S)
        connection.sendall(ours)
        rank, theirs, proof = _ANSWER.unpack(receive(connection, _ANSWER.size, deadline_s))
        signed = (ours, theirs, _RANKS.pack(rank, self._rank))
        if not (self._key.is_signature(proof, b"connect", *signed) and 0 <= rank < self._size):
            raise PermissionError(errno.EACCES, "no worker of this job")
        if not self._forget(connection):
            raise ClosedConnectionError
        connection.sendall(self._key.sign(b"accept", *signed))
        connection.settimeout(None)
        return int(rank)

    def _forget(self, connection: socket.socket) -> bool:
        """Return whether a connection was among the unknown ones; from now on nothing closes it."""
        with self._lock:
            return self._unknown.pop(connection, self) is None


def accept(listener: socket.socket) -> socket.socket | None:
    """Return the next connection of a listener; None after its timeout, or an error that has nothing to do with it."""
    try:
        connection, _ = listener.accept()
    except OSError as error:
        if error.errno in _LISTENER_CLOSED or is_of_handler(error):
            raise
        if isinstance(error, TimeoutError):
            return None
        _warn(error.strerror)
        time.sleep(_PAUSE_S)
        return None
    return connection


@cache
def _warn(reason: str) -> None:
    _log.warning("Cannot accept a connection of another worker, trying again: %s", reason)


def start_thread(run: object, *args: object) -> None:
    """Start a thread that does not keep the process alive."""
    threading.Thread(target=run, args=args, name="neurontools messages", daemon=True).start()  # type: ignore[arg-type]
