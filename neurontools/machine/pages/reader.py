"""The reading side of a telemetry page: pread only, bounded retries, everything checked, only changes decoded.

A reader may look at thousands of pages each second, so one pread brings everything that changes often, and what did
not change is the same object as before.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools.machine.pages import layout as page_layout
from neurontools.machine.pages.layout import (
    CORE_BYTES,
    CPU_SYSTEM_WORD,
    CPU_USER_WORD,
    FIRST_CORE_SECTION,
    HEADER,
    LATENCY_BUCKETS,
    MAX_CORES,
    MODEL_LOADS_WORD,
    MODELS_BYTES,
    MODELS_SECTION,
    PROCESS_SECTION,
    RESERVED_WORD,
    ROW_WORDS,
    CoreSection,
    PageLayout,
    checks,
    parse_header,
    process_checks,
)
from neurontools.machine.snapshot import MemoryUse

if TYPE_CHECKING:
    from neurontools.machine.snapshot import CoreUse, ModelState

RETRIES = 64
AT_ONCE_BYTES = 8192

_NEVER = -1

_pread = os.pread


@dataclass(frozen=True, slots=True)
class PageValue:
    """The content of a page at one time.

    `status_counts` and `latency_counts` are as in `ProcessState`, summed over the cores. `reserved_bytes` is the
    device memory granted by the machine, in the order of `cores`; `cpu_ns` host CPU time in user and system mode.
    """

    cores: tuple[CoreUse, ...]
    host_memory: MemoryUse
    models: tuple[ModelState, ...]
    status_counts: tuple[tuple[int, int], ...]
    latency_counts: tuple[int, ...]
    reserved_bytes: tuple[int, ...]
    cpu_ns: tuple[int, int] = (0, 0)


class PageReader:
    """Reader of another process's page. The descriptor stays the caller's.

    `cores` are the page's machine-wide logical ids, `uses` what was done on them; `counts` are executions, failed ones
    and FLOPs of all cores; the other attributes are as in `PageValue`. They are those of the last good read.

    Raises:
        PageError: the descriptor is not a page of this version, or its static part is damaged.
    """

    __slots__ = (
        "_alone",
        "_cores",
        "_executing",
        "_fd",
        "_first_bytes",
        "_first_offset",
        "_layout",
        "_models",
        "_models_sequence",
        "_process_sequence",
        "_seen",
        "_sequences_at",
        "_sequences_end",
        "_unpack_sequences",
        "_value",
        "cores",
        "counts",
        "cpu_ns",
        "host_memory",
        "identity",
        "latency_counts",
        "models",
        "reserved_bytes",
        "status_counts",
        "uses",
    )

    def __init__(self, fd: int) -> None:
        self._fd = fd
        static = self._pread(HEADER.size + 4 * MAX_CORES, 0)
        self.identity, self.cores = parse_header(static, os.fstat(fd).st_size)
        self._layout = layout = PageLayout(len(self.cores))
        # Small pages are read with one pread; of large ones, the sequence numbers are read first.
        often_bytes = layout.page_bytes - layout.process_offset
        small = often_bytes <= AT_ONCE_BYTES
        self._first_offset = layout.process_offset if small else layout.sequences_offset
        self._first_bytes = layout.page_bytes - self._first_offset
        self._sequences_at = layout.sequences_offset - self._first_offset
        self._sequences_end = self._sequences_at + 8 * layout.sequence_count
        self._unpack_sequences = struct.Struct(f"<{layout.sequence_count}Q").unpack
        self._cores = [
            CoreSection(core, index, offset, offset - layout.process_offset)
            for index, (core, offset) in enumerate(
                zip(self.cores, layout.core_sections, strict=True), FIRST_CORE_SECTION
            )
        ]
        self._alone = self._cores[0] if len(self._cores) == 1 else None
        self.uses = tuple([core.use for core in self._cores])
        self.host_memory = MemoryUse()
        self.models: tuple[ModelState, ...] = ()
        self.status_counts: tuple[tuple[int, int], ...] = ()
        self.latency_counts = (0,) * LATENCY_BUCKETS
        self.reserved_bytes = (0,) * len(self.cores)
        self.cpu_ns = (0, 0)
        self.counts = (0, 0, 0)
        self._models: tuple[page_layout.ShownModel, ...] = ()
        self._executing: list[CoreSection] = []
        self._value: PageValue | None = None
        self._seen: bytes | None = None
        self._process_sequence = self._models_sequence = _NEVER

    def changed(self) -> bool:
        """Return whether the next `read` may differ from the last successful one (one small pread)."""
        layout = self._layout
        sequences = self._pread(8 * layout.sequence_count, layout.sequences_offset)
        return bool(self._executing) or sequences != self._seen

    def read(self, now_ns: int) -> PageValue | None:
        """Return the content of the page at `now_ns` (CLOCK_MONOTONIC), None when it is damaged or stays inconsistent.

        The same object as last time means that nothing changed. A section whose writer was stopped in the middle of
        a change stays torn until the writer goes on.
        """
        if self.refresh(now_ns) is None:
            return None
        if self._value is None:
            self._value = PageValue(
                self.uses,
                self.host_memory,
                self.models,
                self.status_counts,
                self.latency_counts,
                self.reserved_bytes,
                self.cpu_ns,
            )
        return self._value

    def refresh(self, now_ns: int) -> bool | None:
        """Update the attributes, as `read` does, and return whether anything changed; None as in `read`."""
        try:
            block = _pread(self._fd, self._first_bytes, self._first_offset)
        except OSError:
            block = b""
        if len(block) != self._first_bytes:
            self._forget()
            return None
        seen = block[self._sequences_at : self._sequences_end]
        if seen == self._seen:
            return self._grow(now_ns) if self._executing else False
        alone = self._alone
        if alone and alone.take_alone(block, self._process_sequence, self._models_sequence, now_ns):
            # As `_show` does, for the case that is by far the most frequent.
            use = alone.use
            executions = use.executions
            self._seen, self._value = seen, None
            self._executing = [alone] if use.executing else []
            self.uses = (use,)
            self.status_counts = ((0, executions),) if executions else ()
            self.latency_counts = alone.latency
            self.counts = (executions, 0, use.flops)
            if self._models:
                self.models = self._running_models()
            return True
        if self._take(block, seen, now_ns):
            return True
        self._forget()
        return None

    def salvage(self) -> bool:
        """Recover the consistent values of a page whose writer stopped in the middle of a change.

        Of the cores whose sections check these are the last values, of the others the counters as they stand; memory
        and models are those of the last good read. False when the page is cut short.
        """
        layout = self._layout
        block = self._pread(layout.page_bytes - layout.process_offset, layout.process_offset)
        if len(block) != layout.page_bytes - layout.process_offset:
            return False
        start = layout.sequences_offset - layout.process_offset
        _, _, *sequences = self._unpack_sequences(block[start : start + 8 * layout.sequence_count])
        for core, sequence in zip(self._cores, sequences, strict=True):
            if not core.take(block, core.start, sequence, 0):
                core.salvage(block, core.start)
        self._forget()
        self._show(changed=True)
        return True

    def _grow(self, now_ns: int) -> bool:
        # Nothing was written, but the executions under way last longer.
        for core in self._executing:
            core.show(now_ns)
        self._show(changed=False)
        return True

    def _take(self, block: bytes, seen: bytes, now_ns: int) -> bool:
        if not self._sequences_at:
            layout = self._layout
            block = self._pread(layout.page_bytes - layout.process_offset, layout.process_offset)
            start = layout.sequences_offset - layout.process_offset
            seen = block[start : start + 8 * layout.sequence_count]
            if len(seen) != 8 * layout.sequence_count:
                return False
        memory_sequence, models_sequence, *sequences = self._unpack_sequences(seen)
        memory_changed = memory_sequence != self._process_sequence
        if memory_changed and not self._take_memory(block, memory_sequence):
            return False
        if models_sequence != self._models_sequence and not self._take_models(models_sequence):
            return False
        changed = False
        for core, sequence in zip(self._cores, sequences, strict=True):
            if sequence != core.sequence:
                if not core.take(block, core.start, sequence, now_ns) and not self._take_core(core, now_ns):
                    return False
                changed = True
        for core in self._cores if memory_changed else self._executing:
            core.show(now_ns)
        self._seen = seen
        self._show(changed=changed)
        return True

    def _take_memory(self, block: bytes, sequence: int) -> bool:
        layout = self._layout
        size = 8 * layout.process_words
        section = block[:size]
        if sequence & 1 or not process_checks(section, sequence):
            section, sequence = self._retry_section(PROCESS_SECTION, layout.process_offset, size)
            if not section:
                return False
        words = struct.unpack(f"<{layout.process_words}Q", section)
        rows = range(1, layout.process_words, ROW_WORDS)
        host, *cores = (MemoryUse(*words[row : row + RESERVED_WORD]) for row in rows)
        self.host_memory, self._process_sequence = host, sequence
        self.cpu_ns = words[1 + CPU_USER_WORD], words[1 + CPU_SYSTEM_WORD]
        of_cores = words[1 + ROW_WORDS :]
        for core, memory, loads in zip(
            self._cores, cores, of_cores[MODEL_LOADS_WORD::ROW_WORDS], strict=True
        ):
            core.memory, core.model_loads = memory, loads
        self.reserved_bytes = of_cores[RESERVED_WORD::ROW_WORDS]
        return True

    def _take_models(self, sequence: int) -> bool:
        offset = self._layout.models_offset
        section = self._pread(MODELS_BYTES, offset)
        if sequence & 1 or not checks(section, sequence):
            section, sequence = self._retry_section(MODELS_SECTION, offset, MODELS_BYTES)
            if not section:
                return False
        self._models, self._models_sequence = page_layout.loaded_models(section, self.cores), sequence
        return True

    def _take_core(self, core: CoreSection, now_ns: int) -> bool:
        section, sequence = self._retry_section(core.index, core.offset, CORE_BYTES)
        return core.take(section, 0, sequence, now_ns) if section else False

    def _retry_section(self, index: int, offset: int, size: int) -> tuple[bytes, int]:
        where = self._layout.sequences_offset + 8 * index
        check = process_checks if index == PROCESS_SECTION else checks
        for _ in range(RETRIES):
            before = self._pread(8, where)
            section = self._pread(size, offset)
            if len(before) < 8 or len(section) < size:
                break
            sequence = int.from_bytes(before, "little")
            if not sequence & 1 and check(section, sequence):
                return section, sequence
        return b"", _NEVER

    def _show(self, *, changed: bool) -> None:
        cores = self._cores
        self._value = None
        self.uses = uses = tuple([core.use for core in cores])
        if changed:
            self._executing = [core for core in cores if core.use.executing]
            self.status_counts = page_layout.status_counts(cores)
            self.latency_counts = page_layout.latency_counts(cores)
            failed = sum([count for status, count in self.status_counts if status])
            executions, flops = sum([use.executions for use in uses]), sum([use.flops for use in uses])
            self.counts = (executions, failed, flops)
        self.models = self._running_models() if self._models else ()

    def _running_models(self) -> tuple[ModelState, ...]:
        running = {core.model_slot for core in self._executing}
        return tuple([active if slot in running else idle for slot, idle, active in self._models])

    def _forget(self) -> None:
        # The next read decodes everything.
        self._seen = None
        self._process_sequence = self._models_sequence = _NEVER
        for core in self._cores:
            core.sequence = _NEVER

    def _pread(self, size: int, offset: int) -> bytes:
        try:
            return os.pread(self._fd, size, offset)
        except OSError:
            return b""
