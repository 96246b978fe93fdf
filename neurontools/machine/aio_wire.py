"""One connection to a daemon for asyncio: the same lines as `wire`, read without blocking.

A call that is cancelled harms nothing: what was received stays in the buffer, and an answer that nobody waits for any
more is passed over, because answers carry the number of their request.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Self

from neurontools import paths
from neurontools.machine.client_errors import silent
from neurontools.machine.protocol import LineBuffer, request_line
from neurontools.machine.wire import ANSWER_TIMEOUT_S, answers, dialling, greeting, message_of

if TYPE_CHECKING:
    import socket

_RECEIVE_BYTES = 1 << 18
_LONGEST_ANSWER_BYTES = 1 << 30
_BUSY_WAIT_S = 0.005


class AsyncWire:
    """A connection that speaks the protocol. Made by `open`; used by one task at a time.

    Raises:
        DaemonError: the daemon refuses, or does not answer in time (every method).
        ConnectionError: the daemon closed the connection (every method).
    """

    def __init__(self, machine: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._machine = machine
        self._reader = reader
        self._writer = writer
        self._buffer = LineBuffer(_LONGEST_ANSWER_BYTES)
        self._lines: deque[bytes | None] = deque()
        self._last_id = 0

    @classmethod
    async def open(cls, machine: str) -> Self:
        """Connect to the daemon of a machine and greet it.

        Raises:
            NoMachineError: no daemon listens there.
            DaemonError: it is another user's, refuses, or speaks another protocol version.
        """
        path = paths.socket_path(machine)
        with dialling(machine, path) as sock:
            sock.setblocking(False)
            await _connect(sock, path)
        try:
            reader, writer = await asyncio.open_unix_connection(sock=sock, limit=_RECEIVE_BYTES)
        except BaseException:
            sock.close()
            raise
        wire = cls(machine, reader, writer)
        try:
            await wire.call("hello", greeting(os.path.basename(sys.argv[0])))
        except BaseException:
            wire.close()
            raise
        return wire

    async def call(self, method: str, params: dict[str, Any]) -> Any:
        """Return a method's result, or raise its error."""
        self._last_id += 1
        request_id = self._last_id
        self._writer.write(request_line(request_id, method, params))
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                await self._writer.drain()
        except TimeoutError:
            raise silent(self._machine) from None
        while True:
            message = await self._message(ANSWER_TIMEOUT_S)
            if answers(message, request_id):
                return message["result"]

    async def push(self, within_s: float) -> tuple[str, Any]:
        """Return method and parameters of the next notification."""
        while "method" not in (message := await self._message(within_s)):
            continue
        return message["method"], message["params"]

    def close(self) -> None:
        """Close the connection at once; what was not sent is lost."""
        self._writer.transport.abort()

    async def _message(self, within_s: float) -> dict[str, Any]:
        while not self._lines:
            try:
                async with asyncio.timeout(within_s):
                    data = await self._reader.read(_RECEIVE_BYTES)
            except TimeoutError:
                raise silent(self._machine) from None
            if not data:
                raise ConnectionResetError("end of stream")
            self._lines.extend(self._buffer.feed(data))
        line = self._lines.popleft()
        if line is None:
            raise ConnectionResetError("not the protocol")
        return message_of(line)


async def _connect(sock: socket.socket, path: str) -> None:
    # A Unix socket whose listener is busy says so at once and is not connected later: ask again.
    give_up = time.monotonic() + ANSWER_TIMEOUT_S
    while True:
        try:
            sock.connect(path)
        except BlockingIOError:
            if time.monotonic() > give_up:
                raise
            await asyncio.sleep(_BUSY_WAIT_S)
        else:
            return
