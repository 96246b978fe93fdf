"""The reading side of a telemetry page: pread only, bounded retries, everything checked."""

from __future__ import annotations

import os
import struct
import zlib
from dataclasses import dataclass

from neurontools.machine.memory import MemoryUse
from neurontools.machine.page_header import parse_header, text_of
from neurontools.machine.page_layout import (
    CORE_BYTES,
    CORE_LATENCY_WORD,
    CORE_STATUS_WORD,
    CORE_WEIGHTS,
    HEADER,
    LATENCY_BUCKETS,
    MAX_CORES,
    MEMORY_WORDS,
    MODEL,
    MODEL_ID,
    MODELS_BYTES,
    MODELS_SECTION,
    PROCESS_SECTION,
    RESERVED_WORD,
    STATUS_NUMBERS,
    STATUS_SLOTS,
    Layout,
    check_word,
    weights,
)
from neurontools.machine.snapshot import CoreUse, ModelState

RETRIES = 64


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


class PageReader:
    """Read somebody else's page. The descriptor stays the caller's.

    Raises:
        PageError: the descriptor is no page of this version, or its static part is damaged.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        static = self._pread(HEADER.size + 4 * MAX_CORES, 0)
        self.identity, self.cores = parse_header(static, os.fstat(fd).st_size)
        self._layout = layout = Layout(len(self.cores))
        self._process_weights = weights(layout.process_words)
        self._sections = (
            (layout.process_offset, 8 * (layout.process_words + 1)),
            (layout.models_offset, MODELS_BYTES + 8),
            *((offset, CORE_BYTES) for offset in layout.core_sections),
        )
        self._seen = b""
        self._executing = False

    def changed(self) -> bool:
        """Return whether the next `read` may differ from the last one that succeeded (one small pread)."""
        return self._executing or self._sequences() != self._seen

    def read(self, now_ns: int) -> PageValue | None:
        """Return what the page says at `now_ns` (CLOCK_MONOTONIC), or None when it is damaged or stays torn.

        A section whose writer was stopped in the middle of a change stays torn until the writer goes on.
        """
        layout = self._layout
        before = self._sequences()
        body = self._pread(layout.dynamic_bytes, layout.process_offset)
        after = self._sequences()
        if len(body) < layout.dynamic_bytes or len(after) < 8 * layout.sequence_count:
            return None
        sections: list[bytes] = []
        for index, (offset, size) in enumerate(self._sections):
            word = slice(8 * index, 8 * index + 8)
            start = offset - layout.process_offset
            section: bytes | None = body[start : start + size]
            steady = before[word] == after[word] and not before[8 * index] & 1
            if not (steady and section and self._checks(index, section)):
                section = self._again(index, offset, size)
            if section is None:
                return None
            sections.append(section)
        value = _value(self.cores, sections, now_ns)
        self._seen = before
        self._executing = any(use.executing for use in value.cores)
        return value

    def _again(self, index: int, offset: int, size: int) -> bytes | None:
        where = self._layout.sequences_offset + 8 * index
        for _ in range(RETRIES):
            before = self._pread(8, where)
            section = self._pread(size, offset)
            if len(before) < 8 or len(section) < size:
                return None
            steady = not before[0] & 1 and self._pread(8, where) == before
            if steady and self._checks(index, section):
                return section
        return None

    def _checks(self, index: int, section: bytes) -> bool:
        if index == MODELS_SECTION:
            return zlib.crc32(section[:MODELS_BYTES]) == int.from_bytes(section[MODELS_BYTES:], "little")
        if index == PROCESS_SECTION:
            words = _words(section)
            return words[-1] == check_word(words[:-1], self._process_weights)
        words = _words(section)
        return words[0] == check_word((0, *words[1:]), CORE_WEIGHTS)

    def _sequences(self) -> bytes:
        return self._pread(8 * self._layout.sequence_count, self._layout.sequences_offset)

    def _pread(self, size: int, offset: int) -> bytes:
        try:
            return os.pread(self._fd, size, offset)
        except OSError:
            return b""


def _value(cores: tuple[int, ...], sections: list[bytes], now_ns: int) -> PageValue:
    memory = _words(sections[PROCESS_SECTION])
    counters = [_words(section) for section in sections[2:]]
    status = _sums(STATUS_SLOTS, [words[CORE_STATUS_WORD:CORE_LATENCY_WORD] for words in counters])
    uses = zip(cores, counters, strict=True)
    return PageValue(
        cores=tuple(
            _core_use(core, words, _row(memory, 1 + i), now_ns) for i, (core, words) in enumerate(uses)
        ),
        host_memory=MemoryUse(*_row(memory, 0)),
        models=_models(sections[MODELS_SECTION], cores, {words[2] - 1 for words in counters if words[1]}),
        status_counts=tuple(pair for pair in zip(STATUS_NUMBERS, status, strict=False) if pair[1]),
        latency_counts=_sums(LATENCY_BUCKETS, [words[CORE_LATENCY_WORD:] for words in counters]),
        reserved_bytes=memory[MEMORY_WORDS + RESERVED_WORD :: MEMORY_WORDS],
    )


def _core_use(core: int, words: tuple[int, ...], memory: tuple[int, ...], now_ns: int) -> CoreUse:
    _, since_ns, _, busy_ns, executions, flops, gpsimd_ns = words[:7]
    return CoreUse(
        core=core,
        busy_ns=busy_ns + (max(0, now_ns - since_ns) if since_ns else 0),
        executions=executions,
        flops=flops,
        gpsimd_ns=gpsimd_ns,
        executing=since_ns != 0,
        memory=MemoryUse(*memory),
    )


def _models(section: bytes, cores: tuple[int, ...], executing: set[int]) -> tuple[ModelState, ...]:
    found = []
    for slot, (model_id,) in enumerate(MODEL_ID.iter_unpack(section[:MODELS_BYTES])):
        if model_id:
            _, core_slot, name, uuid, *memory = MODEL.unpack_from(section, slot * MODEL.size)
            if core_slot < len(cores):
                core, running = cores[core_slot], slot in executing
                found.append(
                    ModelState(model_id, text_of(name), text_of(uuid), core, running, MemoryUse(*memory))
                )
    return tuple(found)


def _row(memory: tuple[int, ...], row: int) -> tuple[int, ...]:
    return memory[MEMORY_WORDS * row : MEMORY_WORDS * row + RESERVED_WORD]


def _words(section: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{len(section) // 8}Q", section)


def _sums(length: int, rows: list[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(map(sum, zip((0,) * length, *rows, strict=True)))
