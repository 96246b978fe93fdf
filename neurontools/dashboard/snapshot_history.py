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
from contextlib import suppress
from io import SEEK_END, BytesIO
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
        block.store(self._store)
        while len(self._blocks) > 1 and self._blocks[0].is_lost:
            self._first += len(self._blocks.popleft().times)

    def _unpacked(self, block: _Block, place: int) -> TimedSnapshot:
        known, reading = self._reading
        if known is not block:
            reading = BlockReader()
            self._reading = (block, reading)
        return reading.get(place) or reading.unpack(place, block.read())


class _Block:
    """Consecutive snapshots: their times, and their bytes until they are in a file."""

    __slots__ = ("_file", "_lengths", "_offset", "_pieces", "times")

    def __init__(self) -> None:
        self.times: array[int] = array("q")
        self._pieces: list[bytes] = []
        self._lengths: array[int] = array("I")
        self._file: IO[bytes] | None = None
        self._offset = 0

    @property
    def nbytes(self) -> int:
        """Bytes outside of files."""
        return sum(map(len, self._pieces))

    @property
    def is_lost(self) -> bool:
        """Whether its file was dropped."""
        return self._file is not None and self._file.closed

    def add(self, taken_ns: int, piece: bytes) -> None:
        """Add a snapshot."""
        self.times.append(taken_ns)
        self._pieces.append(piece)

    def store(self, store: SnapshotStore) -> None:
        """Move the bytes to a file."""
        self._lengths = array("I", map(len, self._pieces))
        self._file, self._offset = store.put(b"".join(self._pieces))
        self._pieces = []

    def read(self) -> list[bytes]:
        """Return the bytes of each snapshot.

        Raises:
            IndexError: its file was dropped.
        """
        if self._file is None:
            return self._pieces
        if self._file.closed:
            raise IndexError("no longer in the history")
        self._file.seek(self._offset)
        return [self._file.read(length) for length in self._lengths]


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


class SnapshotStore:
    """The bytes of finished blocks in two files; when the newer is full, the older is dropped.

    Args:
        disk_bytes: limit in temporary files.
        memory_bytes: limit in memory, if no file can be written.
    """

    def __init__(self, disk_bytes: int, memory_bytes: int) -> None:
        self._disk_bytes = disk_bytes
        self._memory_bytes = memory_bytes
        self._files: list[IO[bytes]] = []

    @property
    def nbytes(self) -> int:
        """Bytes used."""
        return sum(_size(file) for file in self._files)

    def put(self, data: bytes) -> tuple[IO[bytes], int]:
        """Keep a block; return its file and offset."""
        if not self._files or _size(self._files[-1]) >= self._limit(self._files[-1]):
            self._add(_temporary_file())
        file = self._files[-1]
        offset = _size(file)
        try:
            file.write(data)
            file.flush()
        except OSError:  # the disk is full
            file = self._add(BytesIO())
            offset = file.write(data) - len(data)
        return file, offset

    def close(self) -> None:
        """Drop everything."""
        self._drop_all_but(0)

    def _add(self, file: IO[bytes]) -> IO[bytes]:
        self._files.append(file)
        self._drop_all_but(2)
        return file

    def _drop_all_but(self, newest: int) -> None:
        while len(self._files) > newest:
            with suppress(OSError):  # of bytes that a full disk did not take
                self._files.pop(0).close()

    def _limit(self, file: IO[bytes]) -> int:
        return (self._memory_bytes if isinstance(file, BytesIO) else self._disk_bytes) // 2


def _size(file: IO[bytes]) -> int:
    return file.seek(0, SEEK_END)


def _temporary_file() -> IO[bytes]:
    import tempfile  # not needed before a history has filled a block

    try:
        return tempfile.TemporaryFile(prefix="neuron-top-")
    except OSError:
        return BytesIO()
