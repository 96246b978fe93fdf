"""The part of a telemetry page that changes with every execution: one section per core, written without a lock.

A core has one writer at a time: the thread that executes on it (the runtime admits one execution at a time to a core). An
exception that a signal handler raises in the middle of a change leaves an odd sequence number; the next change
repairs the section from the counters in Python.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING
from zlib import crc32

from neurontools.machine.pages.layout import (
    CORE_BYTES,
    CORE_HOT,
    CORE_LATENCY_WORD,
    CORE_STATUS_WORD,
    CORE_WORDS,
    LATENCY_BUCKETS,
    MASK,
    STATUS_NUMBERS,
    STATUS_SLOTS,
)

if TYPE_CHECKING:
    import mmap

_STATUS_INDEX = {number: index for index, number in enumerate(STATUS_NUMBERS)}
_FAILURE_INDEX = _STATUS_INDEX[1]
_LAST_BUCKET = LATENCY_BUCKETS - 1


_SECTION = Struct(f"<{CORE_WORDS - 1}Q")


@dataclass(frozen=True, slots=True)
class CoreCounters:
    """All counters of a core, for a writer that executes nothing itself.

    `executing_since_ns` 0 stands for an idle core; a future time for a core that executes from then on.
    `failures` are pairs of NRT status number and count, which `executions` includes; `latency_counts` has
    `LATENCY_BUCKETS` numbers.
    """

    executing_since_ns: int
    model_slot: int
    busy_ns: int
    executions: int
    flops: int
    gpsimd_ns: int
    failures: tuple[tuple[int, int], ...]
    latency_counts: tuple[int, ...]


class CoreWriter:
    """Counters of one core and their copy in the page."""

    __slots__ = (
        "_busy_ns",
        "_content",
        "_executions",
        "_flops",
        "_gpsimd_ns",
        "_hot",
        "_latency",
        "_map",
        "_sequence",
        "_sequence_word",
        "_status",
        "_word",
        "_words",
    )

    def __init__(self, page: mmap.mmap, words: memoryview, offset: int, sequence_word: int) -> None:
        self._map = page
        self._words = words
        self._hot = offset + 8
        self._content = words.cast("B")[offset + 8 : offset + CORE_BYTES]
        self._word = offset // 8
        self._sequence_word = sequence_word
        stored = tuple(words[self._word : self._word + CORE_WORDS])
        self._sequence = words[sequence_word]
        self._busy_ns, self._executions, self._flops, self._gpsimd_ns = stored[3:7]
        self._status = list(stored[CORE_STATUS_WORD:CORE_LATENCY_WORD])
        self._latency = list(stored[CORE_LATENCY_WORD:])
        self._repair()

    def begin(self, model_slot: int) -> int:
        """Mark the core as executing; return the current time."""
        if self._sequence & 1:
            self._repair()
        sequence = self._sequence
        words = self._words
        since_ns = time.monotonic_ns()
        model = model_slot + 1
        self._sequence = words[self._sequence_word] = sequence + 1
        CORE_HOT.pack_into(
            self._map,
            self._hot,
            since_ns,
            model,
            self._busy_ns,
            self._executions,
            self._flops,
            self._gpsimd_ns,
        )
        words[self._word] = crc32(self._content, sequence + 2)
        self._sequence = words[self._sequence_word] = sequence + 2
        return since_ns

    def end(self, status: int, wall_ns: int, flops: int, gpsimd_ns: int) -> None:
        """Mark the core as idle and count the execution."""
        sequence = self._sequence | 1
        words = self._words
        self._sequence = words[self._sequence_word] = sequence
        index = _STATUS_INDEX.get(status, _FAILURE_INDEX)
        bucket = (wall_ns * wall_ns // 1_000_000).bit_length() - 1
        if bucket < 0:
            bucket = 0
        elif bucket > _LAST_BUCKET:
            bucket = _LAST_BUCKET
        self._busy_ns += wall_ns
        self._executions += 1
        self._flops = (self._flops + flops) & MASK
        self._gpsimd_ns += gpsimd_ns
        self._status[index] = words[self._word + CORE_STATUS_WORD + index] = self._status[index] + 1
        self._latency[bucket] = words[self._word + CORE_LATENCY_WORD + bucket] = self._latency[bucket] + 1
        CORE_HOT.pack_into(
            self._map,
            self._hot,
            0,
            0,
            self._busy_ns,
            self._executions,
            self._flops,
            self._gpsimd_ns,
        )
        words[self._word] = crc32(self._content, sequence + 1)
        self._sequence = words[self._sequence_word] = sequence + 1

    def write(self, counters: CoreCounters) -> None:
        """Write these counters, independent of the previous ones."""
        self._busy_ns, self._executions = counters.busy_ns, counters.executions
        self._flops, self._gpsimd_ns = counters.flops & MASK, counters.gpsimd_ns
        status = [0] * STATUS_SLOTS
        for number, count in counters.failures:
            status[_STATUS_INDEX.get(number, _FAILURE_INDEX)] += count
        status[0] = counters.executions - sum(status)
        self._status, self._latency = status, list(counters.latency_counts)
        words, sequence = self._words, self._sequence | 1
        self._sequence = words[self._sequence_word] = sequence
        _SECTION.pack_into(
            self._map,
            self._hot,
            counters.executing_since_ns,
            counters.model_slot + 1,
            *(self._busy_ns, self._executions, self._flops, self._gpsimd_ns, 0),
            *status,
            *self._latency,
        )
        words[self._word] = crc32(self._content, sequence + 1)
        self._sequence = words[self._sequence_word] = sequence + 1

    def _repair(self) -> None:
        # Write everything again from the counters in Python, whatever an interrupted change has left.
        words = self._words
        self._sequence = words[self._sequence_word] = self._sequence | 1
        counters = (self._busy_ns, self._executions, self._flops, self._gpsimd_ns)
        section = (0, 0, 0, *counters, 0, *self._status, *self._latency)
        for index, value in enumerate(section):
            words[self._word + index] = value
        words[self._word] = crc32(self._content, self._sequence + 1)
        self._sequence = words[self._sequence_word] = self._sequence + 1

    def close(self) -> None:
        """Release the page."""
        self._content.release()
