"""Messages from one worker to another: a send does not wait, and what arrives is kept until it is received.

A worker that sends or receives listens at an address of its own. The address is in the workers' store, with a secret
that only workers of the run can read. Threads send and read, so a message may be late by any time, and its sender may
end before it is received.
"""

from __future__ import annotations

import json
import secrets
import socket
import struct
import threading
import time
from collections import Counter, defaultdict, deque
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING

import torch

from neurontools.base.json_reader import load_json
from neurontools.xla.distributed import workers
from neurontools.xla.distributed.collective_wait import CollectiveWait

if TYPE_CHECKING:
    from datetime import timedelta

    from neurontools.xla.distributed.worker_roster import WorkerRoster

LOOPBACK = "127.0.0.1"
_GREETING = struct.Struct("<q16s")  # rank and secret
_HEADER = struct.Struct("<qq")  # tag and number of bytes
_SECRET_BYTES = 16
_SLICE_S = 0.2
_POLL_S = 0.005
_SLOWEST_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class MessageRequest:
    """A tensor that a worker wants to receive.

    Args:
        source: rank of the sender.
        tag: the sender's tag.
        number: the place among the requests for this sender and tag, counted from 1.
        waiting: the wait for it, which began with the request.
    """

    source: int
    tag: int
    number: int
    waiting: CollectiveWait


class MessageExchange:
    """What one worker sends to others and has received from them. Tensors are flat bytes on the host."""

    def __init__(self, roster: WorkerRoster) -> None:
        self._roster = roster
        self._changed = threading.Condition()
        self._arrived: dict[tuple[int, int], deque[bytearray]] = defaultdict(deque)
        self._requested: Counter[tuple[int, int]] = Counter()
        self._timeouts: dict[tuple[int, int], deque[timedelta]] = defaultdict(deque)  # of the requests
        self._ended: Counter[tuple[int, int]] = Counter()  # requests that were received or have failed
        self._senders: dict[int, Exception | None] = {}
        self._outboxes: dict[int, _Outbox] = {}
        self._secret = b""

    def send(self, tensor: torch.Tensor, target: int, tag: int) -> None:
        """Send a copy of a tensor to the worker with a rank; does not wait.

        Raises:
            NrtError: an earlier tensor did not arrive.
        """
        self._open()
        outbox = self._outboxes.get(target)
        if outbox is None:
            outbox = self._outboxes[target] = _Outbox(self._roster, target)
        outbox.send(tensor.clone(), tag)

    def request(self, source: int, tag: int, timeout: timedelta) -> MessageRequest:
        """Return the request for the next tensor of a sender and tag that no earlier request is for.

        Args:
            source: rank of the sender.
            tag: the sender's tag.
            timeout: how long to wait for it: `has_arrived` since this call, `receive` since its own.
        """
        self._requested[source, tag] += 1
        self._timeouts[source, tag].append(timeout)
        return MessageRequest(source, tag, self._requested[source, tag], self._wait_for(source, timeout))

    def has_arrived(self, request: MessageRequest) -> bool:
        """Return whether a requested tensor can be received without waiting, or was received.

        Raises:
            NrtError: its sender has ended, or has not sent it in time.
        """
        self._open()
        place = request.source, request.tag
        with self._changed:
            if self._ended[place] + len(self._arrived[place]) >= request.number:
                return True
        self._check(request.source, request.waiting)
        return False

    def receive(self, tensor: torch.Tensor, source: int, tag: int, timeout: timedelta | None = None) -> None:
        """Wait for a tensor from the worker with a rank; without a timeout, for that of its request or of the run.

        Raises:
            NrtError: that worker has ended, does not send in time, or sends a tensor of another size.
        """
        self._open()
        requested = self._timeouts[source, tag]
        if timeout is None and requested:
            timeout = requested.popleft()
        waiting = self._wait_for(source, timeout)
        try:
            data = self._take(source, tag, waiting)
        finally:
            self._ended[source, tag] += 1
        if len(data) != tensor.numel():
            raise waiting.mismatch(
                self._position(source), f"a send of {len(data)} bytes, not of {tensor.numel()}"
            )
        if data:
            tensor.copy_(torch.frombuffer(data, dtype=torch.uint8))

    def _take(self, source: int, tag: int, waiting: CollectiveWait) -> bytearray:
        messages = self._arrived[source, tag]
        while True:
            with self._changed:
                self._changed.wait_for(lambda: messages or self._senders.get(source), _SLICE_S)
                if messages:
                    return messages.popleft()
            self._check(source, waiting)

    def _wait_for(self, source: int, timeout: timedelta | None) -> CollectiveWait:
        ranks = (min(source, self._roster.rank), max(source, self._roster.rank))
        return CollectiveWait(self._roster, ranks, f"recv from rank {source}", timeout)

    def _position(self, source: int) -> int:
        return int(source > self._roster.rank)

    def _check(self, source: int, waiting: CollectiveWait) -> None:
        """Check that a sender may still send, and that time is left."""
        with self._changed:
            error = self._senders.get(source)
            is_connected = source in self._senders
        if error is not None:
            raise waiting.failure(error, self._position(source))
        if is_connected:  # what it sent before its end still arrives
            waiting.check_time(lambda _: False)
        else:
            waiting.check(lambda _: False)

    def finish(self, timeout_s: float) -> None:
        """Wait until everything is sent, a send has failed, or the time is over."""
        deadline_s = time.monotonic() + timeout_s
        for outbox in tuple(self._outboxes.values()):
            while not outbox.is_done() and time.monotonic() < deadline_s:
                time.sleep(_POLL_S)

    def _open(self) -> None:
        """Listen, and let the other workers know where."""
        if self._secret:
            return
        self._secret = secrets.token_bytes(_SECRET_BYTES)
        listener = socket.create_server((_own_host(self._roster.size), 0), backlog=self._roster.size)
        host, port, *_ = listener.getsockname()
        _start(self._accept, listener)
        own = json.dumps([host, port, self._secret.hex()])
        self._roster.store.set(_address_key(self._roster.rank), own)

    def _accept(self, listener: socket.socket) -> None:
        with listener:
            while True:
                connection, _ = listener.accept()
                _start(self._read, connection)

    def _read(self, connection: socket.socket) -> None:
        source = -1
        try:
            with connection:
                source, secret = _GREETING.unpack(_receive_bytes(connection, _GREETING.size))
                if not secrets.compare_digest(secret, self._secret):
                    return
                with self._changed:
                    self._senders[source] = None
                while True:
                    tag, nbytes = _HEADER.unpack(_receive_bytes(connection, _HEADER.size))
                    data = _receive_bytes(connection, nbytes)
                    with self._changed:
                        self._arrived[source, tag].append(data)
                        self._changed.notify_all()
        except OSError as error:
            with self._changed:
                self._senders[source] = error
                self._changed.notify_all()


class _Outbox:
    """Sends tensors to one worker, in the order of the calls."""

    def __init__(self, roster: WorkerRoster, target: int) -> None:
        self._roster = roster
        self._target = target
        self._queue: SimpleQueue[tuple[torch.Tensor, int]] = SimpleQueue()
        self._lock = threading.Lock()
        self._unsent = 0
        self._error: Exception | None = None
        _start(self._run)

    def send(self, tensor: torch.Tensor, tag: int) -> None:
        if self._error is not None:
            raise self._error
        with self._lock:
            self._unsent += 1
        self._queue.put((tensor, tag))

    def is_done(self) -> bool:
        with self._lock:
            return self._error is not None or not self._unsent

    def _run(self) -> None:
        ranks = (min(self._target, self._roster.rank), max(self._target, self._roster.rank))
        waiting = CollectiveWait(self._roster, ranks, f"send to rank {self._target}")
        try:
            with self._connect(waiting) as connection:
                while True:
                    tensor, tag = self._queue.get()
                    connection.sendall(_HEADER.pack(tag, tensor.numel()))
                    connection.sendall(memoryview(tensor.numpy()))
                    with self._lock:
                        self._unsent -= 1
        except OSError as error:
            self._error = waiting.failure(error, ranks.index(self._target))
        except Exception as error:  # noqa: BLE001  raised by the next send
            self._error = error

    def _connect(self, waiting: CollectiveWait) -> socket.socket:
        key, pause_s = _address_key(self._target), _POLL_S
        while not self._roster.store.check([key]):
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _SLOWEST_POLL_S)
            waiting.check_ended()
        host, port, secret = load_json(self._roster.store.get(key))
        connection = socket.create_connection((host, port))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(_GREETING.pack(self._roster.rank, bytes.fromhex(secret)))
        return connection


def _own_host(size: int) -> str:
    """Return the address at which the other workers reach this one."""
    if workers.local_world_size() != size:
        with suppress(OSError):
            return socket.gethostbyname(socket.gethostname())
    return LOOPBACK


def _address_key(rank: int) -> str:
    return f"messages/{rank}"


def _receive_bytes(connection: socket.socket, nbytes: int) -> bytearray:
    data = bytearray(nbytes)
    rest = memoryview(data)
    while rest:
        count = connection.recv_into(rest)
        if not count:
            raise ConnectionError("it has closed its connection")
        rest = rest[count:]
    return data


def _start(run: object, *args: object) -> None:
    threading.Thread(target=run, args=args, name="neurontools messages", daemon=True).start()  # type: ignore[arg-type]
