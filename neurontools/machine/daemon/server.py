"""Connections of a Unix socket on an asyncio loop: accepting, splitting into lines, sending, dropping slow readers.

Raw non-blocking sockets with `add_reader` and `add_writer`, because an answer may carry a descriptor (SCM_RIGHTS).
"""

from __future__ import annotations

import logging
import os
import socket
from collections import deque
from typing import TYPE_CHECKING, Protocol

from neurontools.machine.processes import PeerProcess
from neurontools.machine.protocol import LineBuffer

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from neurontools.machine.processes import ProcessKey

log = logging.getLogger("neurond")

_RECEIVE_BYTES = 1 << 14
_INVALID_LINES_MAX = 100
_UNSENT_MAX_BYTES = 1 << 22
_UNFINISHED_MAX_BYTES = 1 << 24
_ACCEPT_AT_ONCE = 64
_PAUSE_WITHOUT_DESCRIPTORS_S = 1.0
_BACKLOG = 1024


class Handler(Protocol):
    """Handles connections."""

    def on_open(self, connection: Connection) -> None:
        """Add a new connection."""

    def on_line(self, connection: Connection, line: bytes | None) -> None:
        """Answer a line; None stands for a line that was too long."""

    def on_close(self, connection: Connection) -> None:
        """Forget a connection."""


class Connection:
    """One client. Its requests are answered one by one, in turn with those of the other clients."""

    def __init__(self, server: Server, sock: socket.socket) -> None:
        self.process = PeerProcess(sock)
        self.peer = self.process.peer
        self.key: ProcessKey | None = None
        """The process at the other end, None before its hello."""
        self.closed = False
        self._server = server
        self._loop = server.loop
        self._sock = sock
        self._fd = sock.fileno()
        self._lines = LineBuffer()
        self._waiting: deque[bytes | None] = deque()
        self._is_reading = True
        self._invalid_lines = 0
        self._unsent: deque[tuple[bytes, tuple[int, ...]]] = deque()
        self._unsent_bytes = 0
        self._ending = False
        self._loop.add_reader(self._fd, self._receive)

    def send(self, data: bytes, descriptors: tuple[int, ...] = ()) -> None:
        """Send data, descriptors with its first byte; what does not fit now is sent later.

        A client that leaves more than 4 MiB unread is dropped.
        """
        if self.closed:
            return
        if self._unsent_bytes > _UNSENT_MAX_BYTES:
            log.warning("dropping process %d: it does not read its messages", self.peer.pid)
            self.close()
            return
        sent = 0 if self._unsent else self._try(data, descriptors)
        if sent == len(data):
            return
        if not self._unsent:
            self._loop.add_writer(self._fd, self._flush)
        kept = () if sent else tuple(map(os.dup, descriptors))
        self._unsent.append((data[sent:], kept))
        self._unsent_bytes += len(data) - sent

    @property
    def unfinished_bytes(self) -> int:
        """Number of received bytes of an incomplete request."""
        return self._lines.unfinished_bytes

    def count_invalid_line(self) -> None:
        """Count a line that is not a request; a client that sends many of them is dropped."""
        self._invalid_lines += 1
        if self._invalid_lines == _INVALID_LINES_MAX:
            log.warning("dropping process %d: it sends invalid requests", self.peer.pid)
            self.end()

    def end(self) -> None:
        """Close the connection once everything is sent."""
        self._ending = True
        self._loop.remove_reader(self._fd)
        if not self._unsent:
            self.close()

    def close(self) -> None:
        """Close the connection."""
        if self.closed:
            return
        self.closed = True
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        for _, descriptors in self._unsent:
            for descriptor in descriptors:
                os.close(descriptor)
        self._unsent.clear()
        self._sock.close()
        self._server.forget(self)

    def _receive(self) -> None:
        try:
            data = self._sock.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.end()
            return
        self._waiting += self._lines.feed(data)
        self._server.limit_unfinished(self)
        self._answer()

    def _answer(self) -> None:
        if self._waiting and not (self.closed or self._ending):
            self._server.handler.on_line(self, self._waiting.popleft())
        if self.closed or self._ending:
            return
        if self._waiting:
            # Nothing more is received from a client whose requests wait.
            if self._is_reading:
                self._is_reading = False
                self._loop.remove_reader(self._fd)
            self._loop.call_soon(self._answer)
        elif not self._is_reading:
            self._is_reading = True
            self._loop.add_reader(self._fd, self._receive)

    def _flush(self) -> None:
        while self._unsent:
            data, descriptors = self._unsent[0]
            sent = self._try(data, descriptors)
            if not self._unsent:
                return
            self._unsent_bytes -= sent
            if sent:
                for descriptor in descriptors:
                    os.close(descriptor)
                self._unsent[0] = (data[sent:], ())
            if sent < len(data):
                return
            self._unsent.popleft()
        self._loop.remove_writer(self._fd)
        if self._ending:
            self.close()

    def _try(self, data: bytes, descriptors: tuple[int, ...]) -> int:
        try:
            if descriptors:
                return socket.send_fds(self._sock, [data], descriptors)
            return self._sock.send(data)
        except BlockingIOError:
            return 0
        except OSError:
            self.close()
            return len(data)


class UnfinishedRequests:
    """The incomplete requests of one user."""

    def __init__(self) -> None:
        self.total_bytes = 0
        self._bytes: dict[Connection, int] = {}

    def update(self, connection: Connection, unfinished_bytes: int) -> None:
        """Set the bytes of the request on a connection, 0 if there is none."""
        self.total_bytes += unfinished_bytes - self._bytes.pop(connection, 0)
        if unfinished_bytes:
            self._bytes[connection] = unfinished_bytes

    def longest(self) -> Connection:
        """Return the connection with the longest request."""
        return max(self._bytes, key=self._bytes.__getitem__)


class Server:
    """Listens on one path at a time and holds the connections."""

    def __init__(self, loop: AbstractEventLoop, handler: Handler) -> None:
        self.loop = loop
        self.handler = handler
        self.connections: set[Connection] = set()
        self._unfinished: dict[int, UnfinishedRequests] = {}
        self._listener: socket.socket | None = None

    def listen(self, address: str, mode: int) -> None:
        """Listen on a path; a former listener is closed, connections stay.

        Args:
            address: the path, not there yet.
            mode: permissions of the socket: who may write to it may connect.

        Raises:
            OSError: the path can't be bound.
        """
        self.stop_listening()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            listener.bind(address)
            os.chmod(address, mode)
            listener.listen(_BACKLOG)
        except OSError:
            listener.close()
            raise
        self._listener = listener
        self.loop.add_reader(listener.fileno(), self._accept, listener)

    def stop_listening(self) -> None:
        """Close the listener."""
        if self._listener is not None:
            self.loop.remove_reader(self._listener.fileno())
            self._listener.close()
            self._listener = None

    def close(self) -> None:
        """Close the listener and every connection."""
        self.stop_listening()
        for connection in list(self.connections):
            connection.close()

    def forget(self, connection: Connection) -> None:
        """Drop a closed connection."""
        self.connections.discard(connection)
        self._count_unfinished(connection, 0)
        self.handler.on_close(connection)

    def limit_unfinished(self, connection: Connection) -> None:
        """Drop the connection with the longest unfinished request of a user while they take too much memory."""
        unfinished = self._count_unfinished(connection, connection.unfinished_bytes)
        while unfinished.total_bytes > _UNFINISHED_MAX_BYTES:
            longest = unfinished.longest()
            log.warning("dropping process %d: too many unfinished requests of its user", longest.peer.pid)
            longest.close()

    def _count_unfinished(self, connection: Connection, unfinished_bytes: int) -> UnfinishedRequests:
        uid = connection.peer.uid
        unfinished = self._unfinished.setdefault(uid, UnfinishedRequests())
        unfinished.update(connection, unfinished_bytes)
        if not unfinished.total_bytes:
            del self._unfinished[uid]
        return unfinished

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_ACCEPT_AT_ONCE):
            try:
                sock, _address = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                log.warning("cannot accept a client: %s", error.strerror)
                self._pause(listener)
                return
            sock.setblocking(False)
            connection = Connection(self, sock)
            self.connections.add(connection)
            self.handler.on_open(connection)

    def _pause(self, listener: socket.socket) -> None:
        # Out of descriptors: the listener stays readable, so try again later instead of spinning.
        self.loop.remove_reader(listener.fileno())
        self.loop.call_later(_PAUSE_WITHOUT_DESCRIPTORS_S, self._resume, listener)

    def _resume(self, listener: socket.socket) -> None:
        if listener is self._listener:
            self.loop.add_reader(listener.fileno(), self._accept, listener)
