"""A tape of a machine: every moment since the start, as far back as its room reaches, in a few kilobytes a moment.

Moments lie in blocks: the first one of a block whole, the others as changes, all compressed. The block under way is in
memory, finished ones are in two unnamed temporary files that replace each other, so that memory and disk are bounded
however long it runs; where no file can be written, in memory. Threads may share a tape.
"""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_right
from collections import deque
from typing import TYPE_CHECKING

from neurontools.dashboard.moment import packed
from neurontools.dashboard.tape_reading import BlockReading
from neurontools.dashboard.tape_store import TapeStore

if TYPE_CHECKING:
    from neurontools.dashboard.moment import Moment
    from neurontools.dashboard.tape_store import Stored

BLOCK_MOMENTS = 60
DISK_BYTES = 256 << 20
MEMORY_BYTES = 4 << 20


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
        self._store = TapeStore(disk_bytes, memory_bytes)
        self._blocks: deque[_Block] = deque()
        self._first = 0  # number of the first moment that is still there, counted since the start
        self._last: Moment | None = None
        self._last_ns = 0
        self._reading: tuple[_Block | None, BlockReading] = (None, BlockReading())

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
                piece = packed(moment, None)
            else:
                piece = packed(moment, self._last)
            block.add(taken_ns, piece)
            self._last, self._last_ns = moment, taken_ns
            return True

    def moment(self, number: int) -> Moment:
        """Return a moment.

        Raises:
            IndexError: it is not there (any more).
        """
        with self._lock:
            block, place = self._find(number)
            return self._unpacked(block, place)

    def time_ns(self, number: int) -> int:
        """Return when a moment was, on the clock of its snapshot.

        Raises:
            IndexError: it is not there (any more).
        """
        with self._lock:
            block, place = self._find(number)
            return block.times[place]

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
            self._reading = (None, BlockReading())

    def close(self) -> None:
        """Give back the files."""
        with self._lock:
            self._store.close()
            self._blocks.clear()
            self._reading = (None, BlockReading())

    def _find(self, number: int) -> tuple[_Block, int]:
        """Return a moment's block and its place there."""
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

    def _unpacked(self, block: _Block, place: int) -> Moment:
        known, reading = self._reading
        if known is not block:
            reading = BlockReading()
            self._reading = (block, reading)
        return reading.moment(place) or reading.unpack(place, block.pieces or self._store.get(block.stored))


class _Block:
    """Some moments: their times, and their pieces until the store has them."""

    __slots__ = ("nbytes", "pieces", "stored", "times")

    def __init__(self) -> None:
        self.times: array[int] = array("q")
        self.pieces: list[bytes] = []
        self.stored: Stored | None = None
        self.nbytes = 0

    def add(self, taken_ns: int, piece: bytes) -> None:
        """Take in a moment."""
        self.times.append(taken_ns)
        self.pieces.append(piece)
