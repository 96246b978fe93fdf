"""Storage of finished blocks of a snapshot history: two unnamed temporary files used in turn, or memory."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import IO


@dataclass(frozen=True, slots=True)
class Stored:
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
