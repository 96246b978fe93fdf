"""Exchange of tensors between workers on one machine, through shared memory.

Every member of a group has two areas in one anonymous file. It writes to its own areas and reads those of the others.
It sends every member a message over a socket when an area is ready. The message names the collective, so that members
detect a mismatch. The two areas are used in turn: a member that has all messages of a step knows that the
areas of the step before are free.
"""

from __future__ import annotations

import atexit
import errno
import mmap
import os
import select
import socket
import struct
import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Protocol, TypeVar
from weakref import WeakSet

import torch

from neurontools.base.interrupts import is_of_handler
from neurontools.machine.processes import peer_of
from neurontools.runtime.host_activity import HostEvent, observers, report
from neurontools.xla.distributed.collective_wait import ClosedConnectionError
from neurontools.xla.distributed.greeting import accept
from neurontools.xla.distributed.reductions import SmallReduction, reduce_into

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

T = TypeVar("T", bytes, list[int])
_AREA_BYTES = 1 << 22
_TOTAL_BYTES = 1 << 26
_SMALL_BYTES = 1 << 21
_KEPT_REDUCTIONS = 100
_SLICE_S = 0.2
_SLICE = struct.pack("ll", 0, int(_SLICE_S * 1e6))
_NO_TIMEOUT = struct.pack("ll", 0, 0)
_MESSAGE_BYTES = 256
_exchanges: WeakSet[SharedExchange] = WeakSet()


class Waiting(Protocol):
    """The checks and errors of an exchange that waits for members."""

    def check(self, takes_part: Callable[[int], bool]) -> None:
        """Raise an error if a member has ended or the timeout is over; `takes_part` tells if a member has answered."""

    def failure(self, error: Exception, position: int) -> Exception:
        """Return the error for a broken connection to a member."""

    def mismatch(self, position: int, other: str) -> Exception:
        """Return the error for a member that runs another collective."""


def listen() -> socket.socket:
    """Return a socket with its own address, to which the members with higher positions connect."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind("")  # Linux chooses an abstract address
    listener.listen(socket.SOMAXCONN)
    return listener


def connect(
    listener: socket.socket, position: int, pids: Sequence[int], addresses: Sequence[bytes], waiting: Waiting
) -> SharedExchange:
    """Connect to the other members.

    Args:
        listener: this member's listening socket.
        position: this member's position.
        pids: process ids of all members; connections from other processes are not accepted.
        addresses: addresses of the listeners of all members.
        waiting: called while a member does not answer.
    """
    with ExitStack() as stack:
        connections: dict[int, socket.socket] = {}
        for other in range(position):
            connection = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            _connect_to(connection, addresses[other], pids[other], other, waiting)
            connections[other] = connection
        listener.settimeout(_SLICE_S)
        while len(connections) < len(pids) - 1:
            waiting.check(connections.__contains__)
            accepted = accept(listener)
            if accepted is None:
                continue
            peer = peer_of(accepted)
            if peer.uid == os.geteuid() and peer.pid in pids[position + 1 :]:
                connections[pids.index(peer.pid)] = stack.enter_context(accepted)
            else:  # anybody can connect to an abstract address
                accepted.close()
        for connection in connections.values():
            connection.setblocking(True)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _SLICE)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _NO_TIMEOUT)
        with _writable_tensors():
            exchange = SharedExchange(position, connections)
            exchange.share_memory(waiting)
        stack.pop_all()
    _exchanges.add(exchange)
    return exchange


def _connect_to(connection: socket.socket, address: bytes, pid: int, position: int, waiting: Waiting) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _SLICE)
    while True:
        try:
            connection.connect(address)
            break
        except OSError as error:
            if isinstance(error, BlockingIOError) and not is_of_handler(error):
                waiting.check(lambda other: other != position)  # strangers fill the queue of the listener
                continue
            raise waiting.failure(error, position) from None
    peer = peer_of(connection)
    if peer.uid != os.geteuid() or peer.pid != pid:
        raise waiting.failure(PermissionError("another process has its address"), position)


@atexit.register
def _keep_connections() -> None:
    """Let connections last as long as the process, so that the others take their end for the end of the worker."""
    for exchange in _exchanges:
        for connection in exchange.connections:
            with suppress(OSError):
                os.dup(connection.fileno())


class SharedExchange:
    """One member's side of an exchange. Tensors are of the same sizes on all members.

    Args:
        position: this member's position.
        connections: connections to the other members, by position.
    """

    def __init__(self, position: int, connections: Mapping[int, socket.socket]) -> None:
        self._position = position
        self._size = len(connections) + 1
        self._connections = dict(sorted(connections.items()))
        self._step = 0
        self._turn = 0
        self._area_bytes = min(_AREA_BYTES, _TOTAL_BYTES // (2 * self._size) & -4096)
        self._areas: dict[torch.dtype, tuple[tuple[torch.Tensor, ...], ...]] = {}
        small_bytes = min(self._area_bytes, _SMALL_BYTES // self._size & -64)
        self._result = torch.empty(small_bytes, dtype=torch.uint8)
        self._small: dict[tuple[object, ...], SmallReduction | None] = {}

    @property
    def connections(self) -> Iterable[socket.socket]:
        """The connections to the other members."""
        return self._connections.values()

    def share_memory(self, waiting: Waiting) -> None:
        """Map the areas: the first member creates them and passes them to the others."""
        nbytes = 2 * self._size * self._area_bytes
        if self._position == 0:
            descriptor = os.memfd_create("neurontools-workers", os.MFD_CLOEXEC)
            os.ftruncate(descriptor, nbytes)
            for connection in self._connections.values():
                socket.send_fds(connection, [b"areas"], [descriptor])
        else:
            descriptor = self._receive_descriptor(waiting)
        try:
            memory = torch.frombuffer(mmap.mmap(descriptor, nbytes), dtype=torch.uint8)
        finally:
            os.close(descriptor)
        self._areas[torch.uint8] = tuple(
            tuple(half.unbind()) for half in memory.view(2, self._size, self._area_bytes).unbind()
        )

    def all_reduce(
        self, tensors: Sequence[torch.Tensor], reduce_type: str, scale: float, waiting: Waiting
    ) -> None:
        """Reduce tensors of one data type in place, in the order of the members, and multiply them by `scale`."""
        small = self._find_small(tensors, reduce_type)
        if small is None:
            flat = [tensor.contiguous().view(-1) for tensor in tensors]
            self._reduce_in_pieces(flat, reduce_type, scale, waiting)
            write_back(flat, tensors)
            return
        self._turn ^= 1
        small.write(self._turn, tensors)
        self._meet(small.what, waiting)
        small.finish(self._turn, tensors, scale)

    def _find_small(self, tensors: Sequence[torch.Tensor], reduce_type: str) -> SmallReduction | None:
        """Return the reduction of small tensors, None for large ones."""
        dtype = tensors[0].dtype
        key = (reduce_type, dtype, *[tensor.size() for tensor in tensors])
        if key not in self._small:
            if len(self._small) >= _KEPT_REDUCTIONS:
                self._small.clear()
            nbytes = sum(tensor.nbytes for tensor in tensors)
            fits = 0 < nbytes <= self._result.nbytes
            with _writable_tensors():
                self._small[key] = (
                    SmallReduction(reduce_type, tensors, self._areas_of(dtype), self._position, self._result)
                    if fits
                    else None
                )
        return self._small[key]

    def _reduce_in_pieces(
        self, tensors: Sequence[torch.Tensor], reduce_type: str, scale: float, waiting: Waiting
    ) -> None:
        """Reduce flat tensors; each member reduces a part of each piece."""
        dtype = tensors[0].dtype
        for piece in _pieces(tensors, self._area_bytes // dtype.itemsize):
            sizes = [part.numel() for part in piece]
            count = sum(sizes)
            what = f"all_reduce {reduce_type} of {count} {dtype}"
            areas = self._next_areas(dtype)
            _join(piece, areas[self._position][:count])
            self._meet(what, waiting)
            own = slice(count * self._position // self._size, count * (self._position + 1) // self._size)
            reduce_into(areas[0][own], reduce_type, [area[own] for area in areas], scale)
            self._meet(what, waiting)
            _copy(piece, areas[0][:count].split(sizes))

    def reduce_scatter(
        self, output: torch.Tensor, rows: torch.Tensor, reduce_type: str, scale: float, waiting: Waiting
    ) -> None:
        """Reduce a matrix with one row per member, in the order of the members; each member gets its row."""
        for columns, matrices in self._rows(f"reduce_scatter {reduce_type}", rows, waiting):
            reduce_into(output[columns], reduce_type, [matrix[self._position] for matrix in matrices], scale)

    def all_to_all(self, output: torch.Tensor, rows: torch.Tensor, waiting: Waiting) -> None:
        """Send each member its row of a matrix; the rows of `output` are the received ones."""
        for columns, matrices in self._rows("all_to_all", rows, waiting):
            for row, matrix in zip(output, matrices, strict=True):
                row[columns].copy_(matrix[self._position])

    def all_gather(self, output: torch.Tensor, tensor: torch.Tensor, waiting: Waiting) -> None:
        """Copy the tensors of all members into the rows of a matrix."""
        limit = self._area_bytes // tensor.element_size()
        for start in range(0, tensor.numel(), limit):
            part = tensor[start : start + limit]
            areas = self._next_areas(tensor.dtype)
            areas[self._position][: part.numel()].copy_(part)
            self._meet(f"all_gather of {part.numel()} {part.dtype}", waiting)
            for row, area in zip(output, areas, strict=True):
                row[start : start + part.numel()].copy_(area[: part.numel()])

    def broadcast(self, tensors: Sequence[torch.Tensor], root: int, waiting: Waiting) -> None:
        """Copy tensors of one data type from the member at a position to all others."""
        dtype = tensors[0].dtype
        for piece in _pieces(tensors, self._area_bytes // dtype.itemsize):
            sizes = [part.numel() for part in piece]
            count = sum(sizes)
            area = self._next_areas(dtype)[root][:count]
            if root == self._position:
                _join(piece, area)
            self._meet(f"broadcast of {count} {dtype} from {root}", waiting)
            if root != self._position:
                _copy(piece, area.split(sizes))

    def barrier(self, waiting: Waiting) -> None:
        """Wait for all members."""
        self._meet("barrier", waiting)

    def _rows(
        self, what: str, rows: torch.Tensor, waiting: Waiting
    ) -> Iterator[tuple[slice, list[torch.Tensor]]]:
        """Write a matrix a few columns at a time; yield these columns and the matrices of all members, cut to them."""
        height, width = rows.shape
        limit = self._area_bytes // rows.element_size() // height
        for start in range(0, width, limit):
            part = rows[:, start : start + limit]
            areas = self._next_areas(rows.dtype)
            matrices = [area[: part.numel()].view(part.shape) for area in areas]
            matrices[self._position].copy_(part)
            self._meet(f"{what} of {part.numel()} {part.dtype}", waiting)
            yield slice(start, start + part.size(1)), matrices

    def _next_areas(self, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
        self._turn ^= 1
        return self._areas_of(dtype)[self._turn]

    def _areas_of(self, dtype: torch.dtype) -> tuple[tuple[torch.Tensor, ...], ...]:
        found = self._areas.get(dtype)
        if found is None:
            halves = self._areas[torch.uint8]
            with _writable_tensors():
                found = tuple(tuple(area.view(dtype) for area in half) for half in halves)
            self._areas[dtype] = found
        return found

    def _meet(self, what: str, waiting: Waiting) -> None:
        """Tell all members that this one has reached this step, and wait for them."""
        self._step += 1
        message = f"{self._step} {what}".encode()
        for position, connection in self._connections.items():
            try:
                connection.send(message)
            except OSError as error:
                raise waiting.failure(error, position) from None
        start_ns = time.monotonic_ns()
        for position, connection in self._connections.items():
            received = self._receive(position, connection.recv, waiting)
            if received != message:
                raise waiting.mismatch(position, received.decode().partition(" ")[2])
        if observers:
            report(HostEvent.PEER_WAIT, start_ns, time.monotonic_ns(), name=what)

    def _receive(self, position: int, receive: Callable[[int], T], waiting: Waiting) -> T:
        while True:
            try:
                received = receive(_MESSAGE_BYTES)
            except BlockingIOError as error:
                if is_of_handler(error):
                    raise
                waiting.check(lambda other: other < position or self._has_answered(other))
                continue
            except ConnectionError as error:
                raise waiting.failure(error, position) from None
            if received:
                return received
            raise waiting.failure(ClosedConnectionError(), position)

    def _receive_descriptor(self, waiting: Waiting) -> int:
        connection = self._connections[0]

        def receive(nbytes: int) -> list[int]:
            message, descriptors, _, _ = socket.recv_fds(connection, nbytes, 1)
            if message and not descriptors:  # the kernel drops it at the limit of this process
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), "memory shared by the workers")
            return descriptors

        return self._receive(0, receive, waiting)[0]

    def _has_answered(self, position: int) -> bool:
        connection = self._connections.get(position)
        return connection is not None and bool(select.select([connection], [], [], 0)[0])


def _writable_tensors() -> AbstractContextManager[None]:
    """Return a context in which tensors are made: those made in the inference mode cannot be written outside of it."""
    context: AbstractContextManager[None] = torch.inference_mode(mode=False)
    return context


def _pieces(tensors: Sequence[torch.Tensor], limit: int) -> Iterator[list[torch.Tensor]]:
    """Divide flat tensors into lists of at most `limit` elements, in order."""
    piece: list[torch.Tensor] = []
    room = limit
    for tensor in tensors:
        rest = tensor
        while rest.numel() > room:
            if room:
                piece.append(rest[:room])
                rest = rest[room:]
            yield piece
            piece, room = [], limit
        if rest.numel():
            piece.append(rest)
            room -= rest.numel()
    if piece:
        yield piece


def _join(parts: list[torch.Tensor], area: torch.Tensor) -> None:
    if len(parts) == 1:
        area.copy_(parts[0])
    else:
        torch.cat(parts, out=area)


def _copy(targets: list[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    if len(targets) == 1:
        targets[0].copy_(sources[0])
    else:
        torch._foreach_copy_(targets, sources)


def write_back(flat: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> None:
    """Copy contents back into the tensors of which `flat` holds copies."""
    for part, tensor in zip(flat, tensors, strict=True):
        if part.data_ptr() != tensor.data_ptr():
            tensor.copy_(part.view(tensor.shape))
