"""The writing side of a telemetry page: counters kept in Python, mirrored into the page, no system call.

Executions go straight to the section of their core, without a lock: a core has one writer at a time, the thread that
executes on it (the runtime admits one execution at a time to a core). An exception that a signal handler raises in the
middle of a change leaves an odd sequence number; the next change repairs the section from the counters in Python.

Memory and models may change in any thread and even inside a garbage collection that interrupts another change; those go
through a queue that the first caller empties, so that nothing ever waits here.
"""

from __future__ import annotations

import mmap
import os
import time
from collections import deque
from dataclasses import dataclass
from struct import Struct
from threading import Lock
from typing import TYPE_CHECKING, Protocol
from zlib import crc32

from neurontools.machine.pages.layout import (
    CATEGORIES,
    CHECK_PRIME,
    CORE_BYTES,
    CORE_HOT,
    CORE_LATENCY_WORD,
    CORE_SINCE_WORD,
    CORE_STATUS_WORD,
    CORE_WORDS,
    CPU_SYSTEM_WORD,
    CPU_USER_WORD,
    FIRST_CORE_SECTION,
    LATENCY_BUCKETS,
    MASK,
    MODEL,
    MODEL_LOADS_WORD,
    MODEL_SLOTS,
    MODELS_BYTES,
    MODELS_SECTION,
    PROCESS_SECTION,
    RESERVED_WORD,
    ROW_WORDS,
    STATUS_NUMBERS,
    STATUS_SLOTS,
    PageLayout,
    check_weights,
    fitted,
    parse_header,
    settled_check,
)

if TYPE_CHECKING:
    from neurontools.machine.snapshot import MemoryCategory, MemoryUse


_STATUS_INDEX = {number: index for index, number in enumerate(STATUS_NUMBERS)}
_FAILURE_INDEX = _STATUS_INDEX[1]
_LAST_BUCKET = LATENCY_BUCKETS - 1
_HALF = 0xFFFFFFFF


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
        """Write these counters; busy time does not fall below what the page shows, the core executes later instead."""
        words, sequence = self._words, self._sequence | 1
        # Readers wait from here on, so none of them sees more than what is computed below.
        self._sequence = words[self._sequence_word] = sequence
        since_ns = words[self._word + CORE_SINCE_WORD]
        shown_ns = self._busy_ns + (max(0, time.monotonic_ns() - since_ns) if since_ns else 0)
        ahead_ns = max(0, shown_ns - counters.busy_ns)
        self._busy_ns, self._executions = counters.busy_ns + ahead_ns, counters.executions
        self._flops, self._gpsimd_ns = counters.flops & MASK, counters.gpsimd_ns
        status = [0] * STATUS_SLOTS
        for number, count in counters.failures:
            status[_STATUS_INDEX.get(number, _FAILURE_INDEX)] += count
        status[0] = counters.executions - sum(status)
        self._status, self._latency = status, list(counters.latency_counts)
        since_ns = counters.executing_since_ns
        _SECTION.pack_into(
            self._map,
            self._hot,
            since_ns + ahead_ns if since_ns else 0,
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


NO_MODEL = -1

_CATEGORY_INDEX = {name: index for index, name in enumerate(CATEGORIES)}
_HOST_ROW = 1


class ShownModel(Protocol):
    """A loaded model as a page shows it; `ModelState` is one."""

    @property
    def model_id(self) -> int:
        """A number above zero, unique in the process."""

    @property
    def name(self) -> str:
        """The model's name."""

    @property
    def uuid(self) -> str:
        """The NEFF's identity."""

    @property
    def core(self) -> int:
        """Machine-wide logical id of its core."""

    @property
    def memory(self) -> MemoryUse:
        """Its device memory."""


class PageWriter:
    """A process's own page. The descriptor stays the caller's; the map holds a duplicate until `close`.

    Raises:
        PageError: the descriptor is not a page of this version.
    """

    def __init__(self, fd: int) -> None:
        size = os.fstat(fd).st_size
        self.identity, self.cores = parse_header(os.pread(fd, size, 0), size)
        layout = PageLayout(len(self.cores))
        self._map = mmap.mmap(fd, size)
        self._words = memoryview(self._map).cast("Q")
        self._slot_of = {core: slot for slot, core in enumerate(self.cores)}
        first = layout.sequences_offset // 8
        self._cores = tuple(
            CoreWriter(self._map, self._words, offset, first + FIRST_CORE_SECTION + slot)
            for slot, offset in enumerate(layout.core_sections)
        )
        self._memory = _MemoryWriter(self._words, layout, first + PROCESS_SECTION)
        self._models = _ModelsWriter(self._map, self._words, layout, first + MODELS_SECTION)
        self._pending: deque[tuple[int, int] | tuple[int, bytes]] = deque()
        self._applying = Lock()
        self._doorbell = layout.doorbell_offset // 8
        rows = layout.process_offset // 8 + _row(0)
        ends = rows + ROW_WORDS * layout.core_count
        self._model_loads = list(self._words[rows + MODEL_LOADS_WORD : ends : ROW_WORDS])

    @property
    def doorbell(self) -> int:
        """Not 0 while the daemon wants something from this process; read from the page, no system call."""
        return self._words[self._doorbell]

    @property
    def armed_faults(self) -> int:
        """The number of faults the daemon has armed for this process."""
        return self._words[self._doorbell] & _HALF

    @property
    def profile_request(self) -> int:
        """The number of the request to profile this process, 0 for none."""
        return self._words[self._doorbell] >> 32

    def begin(self, core_slot: int, model_slot: int = NO_MODEL) -> int:
        """Mark a core (by its position in `cores`) as executing and return the current CLOCK_MONOTONIC in ns."""
        return self._cores[core_slot].begin(model_slot)

    def end(self, core_slot: int, status: int, wall_ns: int, flops: int = 0, gpsimd_ns: int = 0) -> None:
        """Mark a core as idle and count its execution.

        Args:
            core_slot: position in `cores`.
            status: NRT status number; an unknown number counts as NRT_FAILURE.
            wall_ns: how long the execution took, not negative.
            flops: floating point operations of the cost model.
            gpsimd_ns: modelled time of custom operators.
        """
        self._cores[core_slot].end(status, wall_ns, flops, gpsimd_ns)

    def write_core(self, core_slot: int, counters: CoreCounters) -> None:
        """Write all counters of a core in one step: for a synthetic process."""
        self._cores[core_slot].write(counters)

    def set_memory(self, core_slot: int, category: MemoryCategory, used_bytes: int) -> None:
        """Write the device memory of a core in use by a category."""
        self._change((_row(core_slot) + _CATEGORY_INDEX[category], used_bytes))

    def set_host_memory(self, category: MemoryCategory, used_bytes: int) -> None:
        """Write the host memory in use by a category."""
        self._change((_HOST_ROW + _CATEGORY_INDEX[category], used_bytes))

    def set_reserved(self, core_slot: int, reserved_bytes: int) -> None:
        """Write the device memory granted for a core, which a new daemon adopts."""
        self._change((_row(core_slot) + RESERVED_WORD, reserved_bytes))

    def set_cpu_time(self, user_ns: int, system_ns: int) -> None:
        """Write host CPU time: only for a synthetic process."""
        self._change((_HOST_ROW + CPU_USER_WORD, user_ns))
        self._change((_HOST_ROW + CPU_SYSTEM_WORD, system_ns))

    def add_model(self, model: ShownModel) -> int:
        """Count and publish a loaded model; return its slot, `NO_MODEL` when all are taken or its core is another process's."""
        core_slot = self._slot_of.get(model.core)
        if core_slot is None:
            return NO_MODEL
        self._model_loads[core_slot] += 1
        self._change((_row(core_slot) + MODEL_LOADS_WORD, self._model_loads[core_slot]))
        slot = self._models.take_slot()
        if slot != NO_MODEL:
            memory = (getattr(model.memory, category) for category in CATEGORIES)
            texts = (fitted(model.name, 128), fitted(model.uuid, 48))
            self._change((slot, MODEL.pack(model.model_id, core_slot, *texts, *memory)))
        return slot

    def remove_model(self, slot: int) -> None:
        """Remove a model from the page; `NO_MODEL` does nothing."""
        if slot != NO_MODEL:
            self._change((slot, bytes(MODEL.size)))
            self._models.free_slots.append(slot)

    def close(self) -> None:
        """Unmap the page; the file and its content stay. Do not call other methods afterwards."""
        for core in self._cores:
            core.close()
        self._cores = ()
        self._words.release()
        self._map.close()

    def _change(self, change: tuple[int, int] | tuple[int, bytes]) -> None:
        # A thread that finds another at work leaves its change to it; the worker looks again after it let go.
        self._pending.append(change)
        while self._pending and self._applying.acquire(blocking=False):
            try:
                while self._pending:
                    where, value = self._pending.popleft()
                    if isinstance(value, int):
                        self._memory.set(where, value)
                    else:
                        self._models.set(where, value)
            finally:
                self._applying.release()


def _row(core_slot: int) -> int:
    return _HOST_ROW + ROW_WORDS * (1 + core_slot)


class _MemoryWriter:
    """The process section: host memory, memory and reservation of each core."""

    __slots__ = ("_first", "_sequence", "_sequence_word", "_settled", "_values", "_weights", "_words")

    def __init__(self, words: memoryview, layout: PageLayout, sequence_word: int) -> None:
        self._words = words
        self._first = first = layout.process_offset // 8
        self._values = list(words[first : first + layout.process_words])
        self._weights = check_weights(layout.process_words)
        self._sequence_word = sequence_word
        self._sequence = words[sequence_word]
        self._settled = 0
        self._repair()

    def set(self, index: int, value: int) -> None:
        if self._sequence & 1:
            self._repair()
        words, values, sequence = self._words, self._values, self._sequence
        self._sequence = words[self._sequence_word] = sequence + 1
        self._settled = settled = (
            self._settled + self._weights[index] * (value - values[index])
        ) % CHECK_PRIME
        values[index] = words[self._first + index] = value
        words[self._first] = (settled + sequence + 2) % CHECK_PRIME
        self._sequence = words[self._sequence_word] = sequence + 2

    def _repair(self) -> None:
        words, values = self._words, self._values
        self._sequence = words[self._sequence_word] = self._sequence | 1
        self._settled = settled_check(values)
        values[0] = (self._settled + self._sequence + 1) % CHECK_PRIME
        for index, value in enumerate(values):
            words[self._first + index] = value
        self._sequence = words[self._sequence_word] = self._sequence + 1


class _ModelsWriter:
    """The section of loaded models, which changes rarely: each change computes its CRC-32 anew."""

    __slots__ = ("_map", "_offset", "_sequence", "_sequence_word", "_words", "free_slots")

    def __init__(self, page: mmap.mmap, words: memoryview, layout: PageLayout, sequence_word: int) -> None:
        self._map = page
        self._words = words
        self._offset = layout.models_offset
        self._sequence_word = sequence_word
        self._sequence = words[sequence_word]
        first = 1 + self._offset // 8
        taken = {slot for slot in range(MODEL_SLOTS) if words[first + slot * MODEL.size // 8]}
        self.free_slots = deque(slot for slot in range(MODEL_SLOTS) if slot not in taken)

    def take_slot(self) -> int:
        try:
            return self.free_slots.popleft()
        except IndexError:
            return NO_MODEL

    def set(self, slot: int, record: bytes) -> None:
        words = self._words
        self._sequence = words[self._sequence_word] = self._sequence | 1
        slots = self._offset + 8
        start = slots + slot * MODEL.size
        self._map[start : start + MODEL.size] = record
        end = self._offset + MODELS_BYTES
        words[self._offset // 8] = crc32(self._map[slots:end], self._sequence + 1)
        self._sequence = words[self._sequence_word] = self._sequence + 1
