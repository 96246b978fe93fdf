"""The history of a machine: every snapshot since the start, as far back as space allows, a few kilobytes each.

Snapshots are stored in blocks: the first of a block as a whole, the others as changes, all compressed. The current
block is in memory, finished blocks are in two unnamed temporary files that replace each other, so memory and disk stay
bounded however long it runs; without a writable file they stay in memory. Threads may share a history.
"""

from __future__ import annotations

import threading
import zlib
from array import array
from bisect import bisect_right
from collections import deque
from typing import IO, TYPE_CHECKING

from msgspec import Struct

from neurontools.machine.changes import Changes, apply_changes, compute_changes
from neurontools.machine.codec import decode, encode
from neurontools.machine.host import HostSample
from neurontools.machine.snapshot import Snapshot

if TYPE_CHECKING:
    from collections.abc import Sequence


_LEVEL = 1
BLOCK_SIZE = 60
DISK_BYTES = 256 << 20
MEMORY_BYTES = 4 << 20
# A snapshot of 512 busy cores takes 130 KiB and four milliseconds to unpack from the one before.
RUN = 8


class TimedSnapshot(Struct, frozen=True):
    """A snapshot of a machine, with the CPU times of the host; `cpu` is None if the machine is not on this host."""

    snapshot: Snapshot
    cpu: HostSample | None = None


class SnapshotHistory:
    """Snapshots in order of time.

    Args:
        shortest_ns: minimum time between two snapshots; earlier ones are dropped; 0 keeps all.
        disk_bytes: limit for finished blocks in temporary files.
        memory_bytes: limit for finished blocks in memory, when no file can be written.
        block_size: snapshots in a block.
    """

    def __init__(
        self,
        shortest_ns: int = 0,
        *,
        disk_bytes: int = DISK_BYTES,
        memory_bytes: int = MEMORY_BYTES,
        block_size: int = BLOCK_SIZE,
    ) -> None:
        self._shortest_ns = shortest_ns
        self._block_size = block_size
        self._lock = threading.Lock()
        self._store = SnapshotStore(disk_bytes, memory_bytes)
        self._blocks: deque[_Block] = deque()
        self._first = 0  # number of the oldest snapshot still kept, counted from the start
        self._last: TimedSnapshot | None = None
        self._last_ns = 0
        self._reading: tuple[_Block | None, BlockReader] = (None, BlockReader())

    def __len__(self) -> int:
        """Return the number of snapshots."""
        with self._lock:
            return sum(len(block.times) for block in self._blocks)

    @property
    def first(self) -> int:
        """The number of the oldest snapshot still kept; the first ever was 0."""
        with self._lock:
            return self._first

    @property
    def end(self) -> int:
        """The number after that of the newest snapshot."""
        with self._lock:
            return self._first + sum(len(block.times) for block in self._blocks)

    @property
    def nbytes(self) -> int:
        """Bytes used in memory and on disk."""
        with self._lock:
            return self._store.nbytes + sum(block.nbytes for block in self._blocks)

    def add(self, timed: TimedSnapshot) -> bool:
        """Add the newest snapshot; return False if it comes too soon after the previous one."""
        taken_ns = timed.snapshot.taken_ns
        with self._lock:
            if self._last is not None and 0 <= taken_ns - self._last_ns < self._shortest_ns:
                return False
            block = self._blocks[-1] if self._blocks else None
            if block is None or self._last is None or len(block.times) >= self._block_size:
                if block is not None:
                    self._finish(block)
                block = _Block()
                self._blocks.append(block)
                piece = pack(timed, None)
            else:
                piece = pack(timed, self._last)
            block.add(taken_ns, piece)
            self._last, self._last_ns = timed, taken_ns
            return True

    def snapshot(self, number: int) -> TimedSnapshot:
        """Return a snapshot by its number.

        Raises:
            IndexError: it is not kept (any more).
        """
        with self._lock:
            block, place = self._find(number)
            return self._unpacked(block, place)

    def time_ns(self, number: int) -> int:
        """Return when a snapshot was taken, on its own clock.

        Raises:
            IndexError: it is not kept (any more).
        """
        with self._lock:
            block, place = self._find(number)
            return block.times[place]

    def at(self, time_ns: int) -> int:
        """Return the number of the last snapshot not after a time; the oldest if all are after it."""
        with self._lock:
            number = self._first
            found = number
            for block in self._blocks:
                if block.times and block.times[0] <= time_ns:
                    found = number + bisect_right(block.times, time_ns) - 1
                number += len(block.times)
            return found

    def forget_shown(self) -> None:
        """Free the memory used for reading old snapshots."""
        with self._lock:
            self._reading = (None, BlockReader())

    def close(self) -> None:
        """Delete the files."""
        with self._lock:
            self._store.close()
            self._blocks.clear()
            self._reading = (None, BlockReader())

    def _find(self, number: int) -> tuple[_Block, int]:
        """Return the block of a snapshot and its place there."""
        place = number - self._first
        if place >= 0:
            for block in self._blocks:
                if place < len(block.times):
                    return block, place
                place -= len(block.times)
        raise IndexError(number)

    def _finish(self, block: _Block) -> None:
        block.stored = self._store.put(block.pieces)
        block.pieces = []
        while len(self._blocks) > 1 and not self._store.has(self._blocks[0].stored):
            self._first += len(self._blocks.popleft().times)

    def _unpacked(self, block: _Block, place: int) -> TimedSnapshot:
        known, reading = self._reading
        if known is not block:
            reading = BlockReader()
            self._reading = (block, reading)
        return reading.get(place) or reading.unpack(place, block.pieces or self._store.get(block.stored))


class _Block:
    """Consecutive snapshots: their times, and their bytes until the store has them."""

    __slots__ = ("nbytes", "pieces", "stored", "times")

    def __init__(self) -> None:
        self.times: array[int] = array("q")
        self.pieces: list[bytes] = []
        self.stored: Stored | None = None
        self.nbytes = 0

    def add(self, taken_ns: int, piece: bytes) -> None:
        """Add a snapshot."""
        self.times.append(taken_ns)
        self.pieces.append(piece)


class BlockReader:
    """Unpacked snapshots of a block: every eighth as a starting point, and those around the last one read."""

    def __init__(self) -> None:
        self._kept: dict[int, TimedSnapshot] = {}

    def __len__(self) -> int:
        """Return the number of kept snapshots."""
        return len(self._kept)

    def get(self, place: int) -> TimedSnapshot | None:
        """Return a snapshot by its place in the block, None if it is not kept."""
        return self._kept.get(place)

    def unpack(self, place: int, pieces: Sequence[bytes]) -> TimedSnapshot:
        """Return a snapshot and keep it.

        Args:
            place: position in the block.
            pieces: the whole block, as `pack` made it.
        """
        begin = max((kept for kept in self._kept if kept <= place), default=-1)
        timed = self._kept.get(begin)
        self._kept = {at: kept for at, kept in self._kept.items() if _is_kept(at, place)}
        for at in range(begin + 1, place + 1):
            timed = unpack(pieces[at], timed)
            if _is_kept(at, place):
                self._kept[at] = timed
        assert timed is not None
        return timed


def _is_kept(at: int, shown: int) -> bool:
    return at % RUN == 0 or at // RUN == shown // RUN


def pack(timed: TimedSnapshot, before: TimedSnapshot | None) -> bytes:
    """Return a snapshot as compressed bytes.

    Args:
        timed: the snapshot.
        before: the previous one, of which only changes are written; None writes the whole snapshot.
    """
    value = timed.snapshot if before is None else compute_changes(before.snapshot, timed.snapshot)
    return zlib.compress(encode((value, timed.cpu)).encode(), _LEVEL)


def unpack(data: bytes, before: TimedSnapshot | None) -> TimedSnapshot:
    """Return the snapshot from `pack`; `before` is as it was there."""
    text = zlib.decompress(data)
    if before is None:
        return TimedSnapshot(*decode(text, tuple[Snapshot, HostSample | None]))
    later, cpu = decode(text, tuple[Changes, HostSample | None])
    return TimedSnapshot(apply_changes(before.snapshot, later), cpu)


class Stored(Struct, frozen=True):
    """The position of a block: generation of the store, offset, and the lengths of its pieces."""

    generation: int
    offset: int
    lengths: array[int]


class SnapshotStore:
    """Two generations of finished blocks; when the newer is full, the older is dropped.

    Args:
        disk_bytes: limit in temporary files.
        memory_bytes: limit in memory, if no file can be written.
    """

    def __init__(self, disk_bytes: int, memory_bytes: int) -> None:
        self._disk_bytes = disk_bytes
        self._memory_bytes = memory_bytes
        self._generations: dict[int, _Generation] = {}
        self._newest = 0

    @property
    def nbytes(self) -> int:
        """Bytes used."""
        return sum(generation.size for generation in self._generations.values())

    def put(self, pieces: list[bytes]) -> Stored:
        """Keep a block."""
        newest = self._generations.get(self._newest)
        if newest is None or newest.size >= self._half(newest):
            self._newest += 1
            newest = self._generations[self._newest] = _Generation()
            dropped = self._generations.pop(self._newest - 2, None)
            if dropped is not None:
                dropped.close()
        offset = newest.put(b"".join(pieces))
        return Stored(self._newest, offset, array("I", [len(piece) for piece in pieces]))

    def get(self, stored: Stored | None) -> list[bytes]:
        """Return the pieces of a block.

        Raises:
            IndexError: it was dropped.
        """
        if stored is None or not self.has(stored):
            raise IndexError("no longer in the history")
        data = self._generations[stored.generation].get(stored.offset, sum(stored.lengths))
        pieces, offset = [], 0
        for length in stored.lengths:
            pieces.append(data[offset : offset + length])
            offset += length
        return pieces

    def has(self, stored: Stored | None) -> bool:
        """Return whether a block is still kept."""
        return stored is None or stored.generation in self._generations

    def close(self) -> None:
        """Drop everything."""
        for generation in self._generations.values():
            generation.close()
        self._generations.clear()

    def _half(self, generation: _Generation) -> int:
        return (self._disk_bytes if generation.file is not None else self._memory_bytes) // 2


class _Generation:
    """A file, or memory instead."""

    def __init__(self) -> None:
        self.file: IO[bytes] | None = None
        self.memory = bytearray()
        self.size = 0
        import tempfile  # not needed before a tape has filled a block

        try:
            self.file = tempfile.TemporaryFile(prefix="neuron-top-")  # noqa: SIM115  lives longer than a block
        except OSError:
            self.file = None

    def put(self, data: bytes) -> int:
        """Append data and return its offset."""
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
        """Free the space."""
        if self.file is not None:
            self.file.close()
            self.file = None
        self.memory.clear()

    def _leave_file(self, size: int) -> None:
        # The disk is full: keep its contents in memory from now on.
        assert self.file is not None
        try:
            self.file.seek(0)
            self.memory = bytearray(self.file.read(size))
        except OSError:
            self.memory = bytearray(size)
        self.file.close()
        self.file = None
