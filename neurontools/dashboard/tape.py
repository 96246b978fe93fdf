"""A tape of a machine: every moment since the start, as far back as its room reaches, in a few kilobytes a moment.

Moments lie in blocks: the first one of a block whole, the others as changes, all compressed. The block under way is in
memory, finished ones are in two unnamed temporary files that replace each other, so that memory and disk are bounded
however long it runs; where no file can be written, in memory. Threads may share a tape.
"""

from __future__ import annotations

import json
import threading
import zlib
from array import array
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

from neurontools.machine.changes import changed, changes
from neurontools.machine.host import CpuTimes, HostSample
from neurontools.machine.snapshot import encode, snapshot_from_json

if TYPE_CHECKING:
    from neurontools.machine.snapshot import Snapshot

BLOCK_MOMENTS = 60
DISK_BYTES = 256 << 20
MEMORY_BYTES = 4 << 20
_LEVEL = 1


@dataclass(frozen=True, slots=True)
class Moment:
    """The machine and the host at one moment; `cpu` is None where the machine is not on this host."""

    snapshot: Snapshot
    cpu: HostSample | None = None


class Tape:
    """Moments in the order of time.

    Args:
        shortest_ns: a moment that comes sooner after the one before is left out; 0 keeps all.
        disk_bytes: what finished blocks may take in temporary files.
        memory_bytes: what they may take in memory where no file can be written.
        block_moments: moments in a block.
    """

    def __init__(
        self,
        shortest_ns: int = 0,
        *,
        disk_bytes: int = DISK_BYTES,
        memory_bytes: int = MEMORY_BYTES,
        block_moments: int = BLOCK_MOMENTS,
    ) -> None:
        self._shortest_ns = shortest_ns
        self._block_moments = block_moments
        self._lock = threading.Lock()
        self._store = _Store(disk_bytes, memory_bytes)
        self._blocks: deque[_Block] = deque()
        self._first = 0  # number of the first moment that is still there, counted since the start
        self._last: Moment | None = None
        self._last_ns = 0
        self._shown: tuple[_Block | None, list[Moment]] = (None, [])

    def __len__(self) -> int:
        """Return how many moments there are."""
        with self._lock:
            return sum(len(block.times) for block in self._blocks)

    @property
    def first(self) -> int:
        """The number of the oldest moment that is still there; the first ever was 0."""
        with self._lock:
            return self._first

    @property
    def end(self) -> int:
        """The number after that of the newest moment."""
        with self._lock:
            return self._first + sum(len(block.times) for block in self._blocks)

    @property
    def nbytes(self) -> int:
        """What the moments take in memory and on disk."""
        with self._lock:
            return self._store.nbytes + sum(block.nbytes for block in self._blocks)

    def add(self, moment: Moment) -> bool:
        """Take in the newest moment; return False for one that comes too soon after the one before."""
        taken_ns = moment.snapshot.taken_ns
        with self._lock:
            if self._last is not None and 0 <= taken_ns - self._last_ns < self._shortest_ns:
                return False
            block = self._blocks[-1] if self._blocks else None
            if block is None or self._last is None or len(block.times) >= self._block_moments:
                if block is not None:
                    self._finish(block)
                block = _Block()
                self._blocks.append(block)
                piece: list[Any] = [moment.snapshot]
            else:
                piece = changes(self._last.snapshot, moment.snapshot)
            text = encode([piece, _cpu_value(moment.cpu)])
            block.add(taken_ns, zlib.compress(text.encode(), _LEVEL))
            self._last, self._last_ns = moment, taken_ns
            return True

    def moment(self, number: int) -> Moment:
        """Return a moment.

        Raises:
            IndexError: it is not there (any more).
        """
        with self._lock:
            left = number - self._first
            if left < 0:
                raise IndexError(number)
            for block in self._blocks:
                if left < len(block.times):
                    return self._moments(block, left)[left]
                left -= len(block.times)
            raise IndexError(number)

    def time_ns(self, number: int) -> int:
        """Return when a moment was, on the clock of its snapshot.

        Raises:
            IndexError: it is not there (any more).
        """
        with self._lock:
            left = number - self._first
            if left < 0:
                raise IndexError(number)
            for block in self._blocks:
                if left < len(block.times):
                    return block.times[left]
                left -= len(block.times)
            raise IndexError(number)

    def at(self, time_ns: int) -> int:
        """Return the number of the last moment that is not after a time; the first one if all are after it."""
        with self._lock:
            number = self._first
            found = number
            for block in self._blocks:
                if block.times and block.times[0] <= time_ns:
                    found = number + bisect_right(block.times, time_ns) - 1
                number += len(block.times)
            return found

    def forget_shown(self) -> None:
        """Give back the memory that looking at old moments took."""
        with self._lock:
            self._shown = (None, [])

    def close(self) -> None:
        """Give back the files."""
        with self._lock:
            self._store.close()
            self._blocks.clear()
            self._shown = (None, [])

    def _finish(self, block: _Block) -> None:
        block.stored = self._store.put(block.pieces)
        block.pieces = []
        while len(self._blocks) > 1 and not self._store.has(self._blocks[0].stored):
            self._first += len(self._blocks.popleft().times)

    def _moments(self, block: _Block, wanted: int) -> list[Moment]:
        known, moments = self._shown
        if known is not block:
            moments = []
        if len(moments) <= wanted:
            pieces = block.pieces or self._store.get(block.stored)
            for piece in pieces[len(moments) : wanted + 1]:
                value, cpu = json.loads(zlib.decompress(piece))
                before = moments[-1].snapshot if moments else None
                snapshot = snapshot_from_json(value[0]) if before is None else changed(before, value)
                moments.append(Moment(snapshot, _cpu(cpu)))
        self._shown = (block, moments)
        return moments


@dataclass(frozen=True, slots=True)
class _Stored:
    """Where a block lies: in which generation of the store, where, and how long its pieces are."""

    generation: int
    offset: int
    lengths: array[int]


class _Block:
    """Some moments: their times, and their pieces until the store has them."""

    __slots__ = ("nbytes", "pieces", "stored", "times")

    def __init__(self) -> None:
        self.times: array[int] = array("q")
        self.pieces: list[bytes] = []
        self.stored: _Stored | None = None
        self.nbytes = 0

    def add(self, taken_ns: int, piece: bytes) -> None:
        """Take in a moment."""
        self.times.append(taken_ns)
        self.pieces.append(piece)


class _Generation:
    """A file, or memory in place of one."""

    def __init__(self) -> None:
        self.file: IO[bytes] | None = None
        self.memory = bytearray()
        self.size = 0
        import tempfile

        try:
            self.file = tempfile.TemporaryFile(prefix="neuron-top-")  # noqa: SIM115  lives longer than a block
        except OSError:
            self.file = None

    def put(self, data: bytes) -> int:
        """Append and return where."""
        offset = self.size
        if self.file is not None:
            try:
                self.file.seek(offset)
                self.file.write(data)
                self.file.flush()
            except OSError:
                self._leave_file(offset)
        if self.file is None:
            self.memory += data
        self.size += len(data)
        return offset

    def get(self, offset: int, size: int) -> bytes:
        """Return a part."""
        if self.file is None:
            return bytes(self.memory[offset : offset + size])
        self.file.seek(offset)
        return self.file.read(size)

    def close(self) -> None:
        """Give the room back."""
        if self.file is not None:
            self.file.close()
            self.file = None
        self.memory.clear()

    def _leave_file(self, size: int) -> None:
        # The disk is full: what is there already is kept in memory from now on.
        assert self.file is not None
        try:
            self.file.seek(0)
            self.memory = bytearray(self.file.read(size))
        except OSError:
            self.memory = bytearray(size)
        self.file.close()
        self.file = None


class _Store:
    """Two generations of finished blocks; when the newer one is full the older one is dropped."""

    def __init__(self, disk_bytes: int, memory_bytes: int) -> None:
        self._disk_bytes = disk_bytes
        self._memory_bytes = memory_bytes
        self._generations: dict[int, _Generation] = {}
        self._newest = 0

    @property
    def nbytes(self) -> int:
        """What is taken."""
        return sum(generation.size for generation in self._generations.values())

    def put(self, pieces: list[bytes]) -> _Stored:
        """Keep a block."""
        newest = self._generations.get(self._newest)
        if newest is None or newest.size >= self._half(newest):
            self._newest += 1
            newest = self._generations[self._newest] = _Generation()
            dropped = self._generations.pop(self._newest - 2, None)
            if dropped is not None:
                dropped.close()
        offset = newest.put(b"".join(pieces))
        return _Stored(self._newest, offset, array("I", [len(piece) for piece in pieces]))

    def get(self, stored: _Stored | None) -> list[bytes]:
        """Return the pieces of a block.

        Raises:
            IndexError: it was dropped.
        """
        if stored is None or not self.has(stored):
            raise IndexError("not on the tape any more")
        data = self._generations[stored.generation].get(stored.offset, sum(stored.lengths))
        pieces, offset = [], 0
        for length in stored.lengths:
            pieces.append(data[offset : offset + length])
            offset += length
        return pieces

    def has(self, stored: _Stored | None) -> bool:
        """Return whether a block is still there."""
        return stored is None or stored.generation in self._generations

    def close(self) -> None:
        """Drop everything."""
        for generation in self._generations.values():
            generation.close()
        self._generations.clear()

    def _half(self, generation: _Generation) -> int:
        return (self._disk_bytes if generation.file is not None else self._memory_bytes) // 2


def _cpu_value(cpu: HostSample | None) -> list[Any] | None:
    if cpu is None:
        return None
    processes = [[*key, times.user_s, times.system_s] for key, times in cpu.processes]
    return [cpu.capacity_s, cpu.host.user_s, cpu.host.system_s, processes]


def _cpu(value: list[Any] | None) -> HostSample | None:
    if value is None:
        return None
    capacity_s, user_s, system_s, processes = value
    return HostSample(
        capacity_s,
        CpuTimes(user_s, system_s),
        tuple(((pid, ticks), CpuTimes(user, system)) for pid, ticks, user, system in processes),
    )
