"""Messages from one worker to another: a send does not wait, and what arrives is kept until it is received.

A worker that sends or receives listens at an address of its own, which is in the workers' store. Threads send and read,
so a message may be late by any time, and its sender may end before it is received.
"""

from __future__ import annotations

import json
import os
import struct
import threading
import time
from collections import Counter, defaultdict, deque
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING

import torch

from neurontools.base.json_reader import load_json
from neurontools.xla.distributed import greeting
from neurontools.xla.distributed.collective_wait import CollectiveWait
from neurontools.xla.distributed.greeting import WorkerListener, receive, start_thread

if TYPE_CHECKING:
    import socket
    from datetime import timedelta

    from neurontools.xla.distributed.worker_roster import WorkerRoster

_HEADER = struct.Struct("<qq")  # tag and number of bytes
_MOST_BYTES = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
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
        self._listener: WorkerListener | None = None

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
        if self._listener is not None:
            return
        roster = self._roster
        network = roster.network
        self._listener = WorkerListener(network.address, network.key, roster.rank, roster.size, self._read)
        roster.store.set(_address_key(roster.rank), json.dumps(self._listener.address).encode())

    def _read(self, source: int, connection: socket.socket) -> None:
        try:
            while True:
                # Until here the sender may still give up this connection for another one.
                tag, nbytes = _HEADER.unpack(receive(connection, _HEADER.size))
                with self._changed:
                    self._senders[source] = None
                data = _receive_data(connection, nbytes)
                with self._changed:
                    self._arrived[source, tag].append(data)
                    self._changed.notify_all()
        except (OSError, ValueError) as error:
            with self._changed:
                if source in self._senders:
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
        start_thread(self._run)

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
        roster, key, pause_s = self._roster, _address_key(self._target), _POLL_S
        while (address := roster.store.get(key)) is None:
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _SLOWEST_POLL_S)
            waiting.check_ended()
        host, port = load_json(address)
        waiting = waiting.again()
        while True:
            try:
                return greeting.connect((host, port), roster.network.key, roster.rank, self._target)
            except ConnectionRefusedError:
                raise
            except (ConnectionError, TimeoutError):  # among too many connections of strangers
                time.sleep(_SLOWEST_POLL_S)
            waiting.check(lambda _: False)


def _address_key(rank: int) -> str:
    return f"messages/{rank}"


def _receive_data(connection: socket.socket, nbytes: int) -> bytearray:
    if 0 <= nbytes <= _MOST_BYTES:
        try:
            return receive(connection, nbytes)
        except MemoryError:
            pass
    raise ValueError(f"it announced a message of {nbytes} bytes, for which there is no memory")
