"""Large Chrome trace files in parts, each read by a process of its own."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from contextlib import ExitStack
from itertools import zip_longest
from typing import TYPE_CHECKING, Self

import msgspec
import numpy as np

from neurontools.base.files import open_input
from neurontools.profiler.exchange.chrome_columns import ChromeNotes, ChromePart, read_part
from neurontools.profiler.exchange.chrome_text import find_border, is_packed

if TYPE_CHECKING:
    from types import TracebackType

_SMALLEST_PART = 64 << 20
_LEAD = 64 << 20  # read while another process starts
_MOST_PARTS = 8
_COLUMNS = (np.dtype(np.int64), np.dtype(np.int64), np.dtype(np.uint32))


def read_parts(path: str) -> list[ChromePart]:
    """Read a Chrome trace file, with several processes if it is large.

    Raises:
        ProfileError: the file cannot be read, or is not a Chrome trace.
    """
    borders = _find_borders(path)
    with ExitStack() as stack:
        others = [
            stack.enter_context(_Reader(path, first, last))
            for first, last in zip_longest(borders, borders[1:])
        ]
        parts = [read_part(path, 0, borders[0] if borders else None)]
        for other in others:
            if parts[-1].notes.is_last:
                break
            parts.append(other.result())
    if len(parts) > 1 and any(part.notes.damaged for part in parts):
        return [read_part(path)]  # what damage costs depends on where a reader begins
    return parts


def _find_borders(path: str) -> list[int]:
    """Return where the parts after the first one begin; none if one process reads everything."""
    try:
        with open_input(path) as file:
            size = 0 if is_packed(file) else os.fstat(file.fileno()).st_size
        size -= _LEAD
        count = min(len(os.sched_getaffinity(0)), _MOST_PARTS, size // _SMALLEST_PART)
        found = (find_border(path, _LEAD + size * number // count) for number in range(1, count))
        return sorted({border for border in found if border is not None})
    except OSError:
        return []


class _Reader:
    """Another process that reads a part, and ends with the context."""

    def __init__(self, path: str, first: int, last: int | None) -> None:
        self._part = path, first, last
        self._columns = os.memfd_create("columns")
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        path, *ends = self._part
        command = [sys.executable, "-P", "-m", __name__, str(self._columns), path, *map(str, ends)]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                pass_fds=[self._columns],
            )
        except OSError:
            self._process = None
        return self

    def result(self) -> ChromePart:
        """Return the part; this process reads it if the other one cannot."""
        notes = self._process.communicate()[0] if self._process else b""
        if self._process is None or self._process.returncode != 0:
            return read_part(*self._part)
        found = msgspec.json.decode(notes, type=ChromeNotes)
        count = sum(events for _, _, events in found.rows)
        at = 0
        columns = []
        if count:
            memory = mmap.mmap(self._columns, 0, prot=mmap.PROT_READ)
        for column in _COLUMNS:
            columns.append(np.frombuffer(memory, column, count, at) if count else np.zeros(0, column))
            at += count * column.itemsize
        start, duration, kind = columns
        return ChromePart(start, duration, kind, found)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._columns)
        if self._process is not None:
            self._process.kill()
            with self._process:
                pass


def _main(columns: str, path: str, first: str, last: str) -> None:
    part = read_part(path, int(first), None if last == "None" else int(last))
    with open(int(columns), "wb") as file:
        for column in (part.start, part.duration, part.kind):
            column.tofile(file)
    sys.stdout.buffer.write(msgspec.json.encode(part.notes))


if __name__ == "__main__":
    _main(*sys.argv[1:])
