"""Protocol buffer messages of many events at once: columns of bytes with a length each, joined row by row.

A column is a matrix of bytes, one row an event, and how many bytes of each row count. Encoding a million events this way
takes a tenth of the time of one event after another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.profiler.trace.intervals import Int64s

Bytes: TypeAlias = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class ByteColumn:
    """Bytes by event: the first `length` of each row."""

    data: Bytes
    length: Int64s

    def take(self, numbers: Int64s) -> ByteColumn:
        """Return rows by number."""
        return ByteColumn(self.data[numbers], self.length[numbers])


def constant(content: bytes, count: int) -> ByteColumn:
    """Return the same bytes for all events."""
    row = np.frombuffer(content, dtype=np.uint8)
    return ByteColumn(np.broadcast_to(row, (count, len(row))), np.broadcast_to(np.int64(len(row)), (count,)))


def texts(contents: Sequence[bytes]) -> ByteColumn:
    """Return a row for each text."""
    length: Int64s = np.array([len(content) for content in contents], dtype=np.int64)
    width = int(length.max(initial=0))
    joined = b"".join(content.ljust(width, b"\0") for content in contents)
    return ByteColumn(np.frombuffer(joined, dtype=np.uint8).reshape(len(contents), width), length)


def varints(values: Int64s) -> ByteColumn:
    """Return non-negative numbers as base-128 varints."""
    length: Int64s = np.ones(len(values), dtype=np.int64)
    largest = int(values.max(initial=0))
    width = max(1, -(-largest.bit_length() // 7))
    data: Bytes = np.empty((len(values), width), dtype=np.uint8)
    rest = values
    for place in range(width):
        low = rest & 0x7F
        rest = rest >> 7
        more = rest > 0
        length += more
        data[:, place] = low | (more.astype(np.int64) << 7)
    return ByteColumn(data, length)


def message(*columns: ByteColumn) -> tuple[ByteColumn, ...]:
    """Return columns behind their common length: the content of a length-delimited field."""
    return varints(sum((column.length for column in columns), start=np.zeros(1, dtype=np.int64))), *columns


def join(*columns: ByteColumn) -> bytes:
    """Return the bytes of all events, one event after another."""
    data = np.concatenate([column.data for column in columns], axis=1)
    chosen = np.concatenate(
        [np.arange(column.data.shape[1]) < column.length[:, None] for column in columns], axis=1
    )
    joined: bytes = data[chosen].tobytes()
    return joined
