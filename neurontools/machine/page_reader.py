"""The reading side of a telemetry page: pread only, bounded retries, everything checked, only changes decoded.

A reader may look at thousands of pages each second, so one pread brings everything that changes often, and what did
not change is the same object as before.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass

from neurontools.machine.fast_values import fast_constructor
from neurontools.machine.memory import MemoryUse
from neurontools.machine.page_header import parse_header, text_of
from neurontools.machine.page_layout import (
    CORE_BYTES,
    CORE_STATUS_WORD,
    FIRST_CORE_SECTION,
    HEADER,
    LATENCY_BUCKETS,
    MAX_CORES,
    MEMORY_WORDS,
    MODEL,
    MODEL_SLOTS,
    MODELS_BYTES,
    MODELS_SECTION,
    PROCESS_SECTION,
    RESERVED_WORD,
    STATUS_NUMBERS,
    STATUS_SLOTS,
    Layout,
    checks,
    models_check,
)
from neurontools.machine.snapshot import CoreUse, ModelState

RETRIES = 64
AT_ONCE_BYTES = 8192

# The words of a core without those of failures, which are looked at only when there are any.
_CORE = struct.Struct(f"<7Q8xQ{8 * (STATUS_SLOTS - 1)}x{LATENCY_BUCKETS}Q")
_SINCE, _MODEL, _BUSY, _SUCCESSES, _LATENCY = 1, 2, 3, 7, 8
_FAILURES = struct.Struct(f"<{STATUS_SLOTS - 1}Q")
_FAILURES_OFFSET = 8 * (CORE_STATUS_WORD + 1)
_FAILURES_END = _FAILURES_OFFSET + _FAILURES.size
_NO_FAILURES = bytes(_FAILURES.size)
_NO_WORDS = (0,) * (_LATENCY + LATENCY_BUCKETS)
_NEVER = -1


@dataclass(frozen=True, slots=True)
class PageValue:
    """What a page says at one moment.

    `status_counts` and `latency_counts` are as in `ProcessState`, summed over the cores. `reserved_bytes` is the
    device memory granted by the machine, in the order of `cores`.
    """

    cores: tuple[CoreUse, ...]
    host_memory: MemoryUse
    models: tuple[ModelState, ...]
    status_counts: tuple[tuple[int, int], ...]
    latency_counts: tuple[int, ...]
    reserved_bytes: tuple[int, ...]


_page_value = fast_constructor(PageValue)
_core_use = fast_constructor(CoreUse)


class PageReader:
    """Read somebody else's page. The descriptor stays the caller's.

    Raises:
        PageError: the descriptor is no page of this version, or its static part is damaged.
    """

    __slots__ = (
        "_core_memory",
        "_executing",
        "_failures",
        "_fd",
        "_first_bytes",
        "_first_offset",
        "_host_memory",
        "_layout",
        "_models",
        "_reserved_bytes",
        "_seen",
        "_sequence_words",
        "_sequences",
        "_shown_models",
        "_uses",
        "_value",
        "_words",
        "cores",
        "identity",
    )

    def __init__(self, fd: int) -> None:
        self._fd = fd
        static = self._pread(HEADER.size + 4 * MAX_CORES, 0)
        self.identity, self.cores = parse_header(static, os.fstat(fd).st_size)
        self._layout = layout = Layout(len(self.cores))
        # Small pages are taken with one pread, of large ones first the sequence numbers.
        often_bytes = layout.page_bytes - layout.process_offset
        small = often_bytes <= AT_ONCE_BYTES
        self._first_offset = layout.process_offset if small else layout.sequences_offset
        self._first_bytes = layout.page_bytes - self._first_offset
        self._sequence_words = struct.Struct(f"<{layout.sequence_count}Q")
        self._words: list[tuple[int, ...]] = [_NO_WORDS for _ in self.cores]
        self._failures: list[tuple[int, ...]] = [() for _ in self.cores]
        self._uses: list[CoreUse] = [CoreUse(core, 0, 0, 0, 0, False, MemoryUse()) for core in self.cores]
        self._core_memory: tuple[MemoryUse, ...] = ()
        self._host_memory = MemoryUse()
        self._reserved_bytes: tuple[int, ...] = ()
        self._models: tuple[tuple[int, ModelState, ModelState], ...] = ()
        self._shown_models: tuple[ModelState, ...] = ()
        self._executing: tuple[int, ...] = ()
        self._value: PageValue | None = None
        self._forget()

    def changed(self) -> bool:
        """Return whether the next `read` may differ from the last one that succeeded (one small pread)."""
        layout = self._layout
        sequences = self._pread(8 * layout.sequence_count, layout.sequences_offset)
        return bool(self._executing) or sequences != self._seen

    def read(self, now_ns: int) -> PageValue | None:
        """Return what the page says at `now_ns` (CLOCK_MONOTONIC), or None when it is damaged or stays torn.

        The same object as last time means that nothing changed. A section whose writer was stopped in the middle of
        a change stays torn until the writer goes on.
        """
        try:
            block = os.pread(self._fd, self._first_bytes, self._first_offset)
        except OSError:
            block = b""
        if len(block) != self._first_bytes:
            self._forget()
            return None
        start = self._layout.sequences_offset - self._first_offset
        seen = block[start : start + self._sequence_words.size]
        if seen != self._seen:
            if self._take(block, seen, now_ns):
                return self._value
            self._forget()
            return None
        if self._executing:
            self._count_on(now_ns)
        return self._value

    def _take(self, block: bytes, seen: bytes, now_ns: int) -> bool:
        layout = self._layout
        if self._first_offset != layout.process_offset:
            block = self._pread(layout.page_bytes - layout.process_offset, layout.process_offset)
            start = layout.sequences_offset - layout.process_offset
            seen = block[start : start + self._sequence_words.size]
            if len(seen) != self._sequence_words.size:
                return False
        sequences = self._sequence_words.unpack(seen)
        last, self._sequences = self._sequences, sequences
        memory_changed = sequences[PROCESS_SECTION] != last[PROCESS_SECTION]
        if memory_changed and not self._take_memory(block, sequences[PROCESS_SECTION]):
            return False
        models_changed = sequences[MODELS_SECTION] != last[MODELS_SECTION]
        if models_changed and not self._take_models(sequences[MODELS_SECTION]):
            return False
        changed = [
            slot
            for slot in range(len(self.cores))
            if sequences[FIRST_CORE_SECTION + slot] != last[FIRST_CORE_SECTION + slot]
        ]
        for slot in changed:
            if not self._take_core(slot, block, sequences[FIRST_CORE_SECTION + slot]):
                return False
        self._seen = seen
        self._show(changed, now_ns, memory_changed=memory_changed, models_changed=models_changed)
        return True

    def _take_memory(self, block: bytes, sequence: int) -> bool:
        layout = self._layout
        size = 8 * layout.process_words
        section: bytes | None = block[:size]
        if sequence & 1 or not checks(block[:size], sequence):
            section = self._again(PROCESS_SECTION, layout.process_offset, size)
        if section is None:
            return False
        words = struct.unpack(f"<{layout.process_words}Q", section)
        rows = range(1, layout.process_words, MEMORY_WORDS)
        host, *cores = (MemoryUse(*words[row : row + RESERVED_WORD]) for row in rows)
        self._host_memory, self._core_memory = host, tuple(cores)
        self._reserved_bytes = words[1 + MEMORY_WORDS + RESERVED_WORD :: MEMORY_WORDS]
        return True

    def _take_models(self, sequence: int) -> bool:
        offset = self._layout.models_offset
        section: bytes | None = self._pread(MODELS_BYTES, offset)
        if sequence & 1 or not _models_check(section or b"", sequence):
            section = self._again(MODELS_SECTION, offset, MODELS_BYTES)
        if section is None:
            return False
        self._models = _models(section, self.cores)
        return True

    def _take_core(self, slot: int, block: bytes, sequence: int) -> bool:
        offset = self._layout.core_sections[slot]
        start = offset - self._layout.process_offset
        section: bytes | None = block[start : start + CORE_BYTES]
        if sequence & 1 or not checks(block[start : start + CORE_BYTES], sequence):
            section = self._again(FIRST_CORE_SECTION + slot, offset, CORE_BYTES)
        if section is None:
            return False
        self._words[slot] = _CORE.unpack(section)
        failures = section[_FAILURES_OFFSET:_FAILURES_END]
        self._failures[slot] = () if failures == _NO_FAILURES else _FAILURES.unpack(failures)
        return True

    def _again(self, index: int, offset: int, size: int) -> bytes | None:
        where = self._layout.sequences_offset + 8 * index
        check = _models_check if index == MODELS_SECTION else checks
        for _ in range(RETRIES):
            before = self._pread(8, where)
            section = self._pread(size, offset)
            if len(before) < 8 or len(section) < size:
                return None
            if not before[0] & 1 and check(section, int.from_bytes(before, "little")):
                return section
        return None

    def _show(self, changed: list[int], now_ns: int, *, memory_changed: bool, models_changed: bool) -> None:
        words = self._words
        was_executing = self._executing
        self._executing = tuple([slot for slot, core in enumerate(words) if core[_SINCE]])
        stale = range(len(words)) if memory_changed else {*changed, *was_executing, *self._executing}
        for slot in stale:
            self._uses[slot] = self._use(slot, now_ns)
        if models_changed or self._models:
            running = {words[slot][_MODEL] - 1 for slot in self._executing}
            self._shown_models = tuple(
                [active if slot in running else idle for slot, idle, active in self._models]
            )
        value = self._value
        self._value = _page_value(
            tuple(self._uses),
            self._host_memory,
            self._shown_models,
            self._status_counts() if changed or value is None else value.status_counts,
            self._latency_counts() if changed or value is None else value.latency_counts,
            self._reserved_bytes,
        )

    def _count_on(self, now_ns: int) -> None:
        # Nothing was written, but the executions under way last longer.
        for slot in self._executing:
            self._uses[slot] = self._use(slot, now_ns)
        value = self._value
        if value is not None:
            self._value = _page_value(
                tuple(self._uses),
                value.host_memory,
                value.models,
                value.status_counts,
                value.latency_counts,
                value.reserved_bytes,
            )

    def _use(self, slot: int, now_ns: int) -> CoreUse:
        words = self._words[slot]
        since_ns = words[_SINCE]
        busy_ns = words[_BUSY] + now_ns - since_ns if 0 < since_ns < now_ns else words[_BUSY]
        return _core_use(
            self.cores[slot], busy_ns, *words[_BUSY + 1 : _SUCCESSES], since_ns != 0, self._core_memory[slot]
        )

    def _status_counts(self) -> tuple[tuple[int, int], ...]:
        successes = sum([words[_SUCCESSES] for words in self._words])
        failures = [row for row in self._failures if row]
        if not failures:
            return ((0, successes),) if successes else ()
        counts = (successes, *map(sum, zip(*failures, strict=True)))
        return tuple(pair for pair in zip(STATUS_NUMBERS, counts, strict=False) if pair[1])

    def _latency_counts(self) -> tuple[int, ...]:
        if len(self._words) == 1:
            return self._words[0][_LATENCY:]
        rows = [words[_LATENCY:] for words in self._words]
        return tuple(map(sum, zip((0,) * LATENCY_BUCKETS, *rows, strict=True)))

    def _forget(self) -> None:
        # The next read decodes everything.
        self._seen: bytes | None = None
        self._sequences = (_NEVER,) * self._layout.sequence_count

    def _pread(self, size: int, offset: int) -> bytes:
        try:
            return os.pread(self._fd, size, offset)
        except OSError:
            return b""


def _models_check(section: bytes, sequence: int) -> bool:
    return models_check(section[8:], sequence) == int.from_bytes(section[:8], "little")


def _models(section: bytes, cores: tuple[int, ...]) -> tuple[tuple[int, ModelState, ModelState], ...]:
    # Each model as its slot, its state while idle and its state while executing.
    found = []
    for slot in range(MODEL_SLOTS):
        model_id, core_slot, name, uuid, *memory = MODEL.unpack_from(section, 8 + slot * MODEL.size)
        if model_id and core_slot < len(cores):
            what = (model_id, text_of(name), text_of(uuid), cores[core_slot])
            use = MemoryUse(*memory)
            found.append((slot, ModelState(*what, False, use), ModelState(*what, True, use)))
    return tuple(found)
