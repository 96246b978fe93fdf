"""The sections of a telemetry page, decoded for a reader."""

from __future__ import annotations

import struct
from zlib import crc32

from neurontools.machine.pages.layout import (
    CORE_BYTES,
    CORE_LATENCY_WORD,
    CORE_STATUS_WORD,
    LATENCY_BUCKETS,
    MODEL,
    MODEL_SLOTS,
    STATUS_NUMBERS,
    STATUS_SLOTS,
    PageLayout,
    text_of,
)
from neurontools.machine.snapshot import CoreUse, MemoryUse, ModelState

ShownModel = tuple[int, ModelState, ModelState]

# A core's first words and its successes; failures are decoded only when there are any.
_COUNTERS = struct.Struct("<7Q8xQ")
_MODEL, _EXECUTIONS, _SUCCESSES = 2, 4, 7
_FAILURES = struct.Struct(f"<{STATUS_SLOTS - 1}Q")
_FAILURES_START = 8 * (CORE_STATUS_WORD + 1)
_LATENCY = struct.Struct(f"<{LATENCY_BUCKETS}Q")
_LATENCY_START = 8 * CORE_LATENCY_WORD
_NO_LATENCY = (0,) * LATENCY_BUCKETS

# What changes often in a page of one core, taken at once: the core's section, then the sequence numbers.
_ONE = PageLayout(1)
_ONE_START = _ONE.core_offset - _ONE.process_offset
_ONE_END = _ONE_START + CORE_BYTES
_ONE_CORE = struct.Struct(f"<{_ONE_START}x7Q8xQ{8 * (STATUS_SLOTS - 1)}x{LATENCY_BUCKETS}Q3Q")
_ONE_LATENCY = slice(8, 8 + LATENCY_BUCKETS)
_NEVER = -1

_unpack_counters, _unpack_latency = _COUNTERS.unpack_from, _LATENCY.unpack_from
_unpack_failures, _unpack_one = _FAILURES.unpack_from, _ONE_CORE.unpack_from


class CoreSection:
    """The last values of one core's section.

    Args:
        core: machine-wide logical id.
        index: of its sequence number.
        offset: where the section is in the page.
        start: where it is in what a reader takes at once.
    """

    __slots__ = (
        "core",
        "counters",
        "failures",
        "index",
        "latency",
        "memory",
        "model_loads",
        "offset",
        "sequence",
        "start",
        "use",
    )

    def __init__(self, core: int, index: int, offset: int, start: int) -> None:
        self.core = core
        self.index = index
        self.offset = offset
        self.start = start
        self.sequence = _NEVER
        self.counters: tuple[int, ...] = ()
        self.latency: tuple[int, ...] = ()
        self.failures: tuple[int, ...] = ()
        self.memory = MemoryUse()
        self.model_loads = 0
        self.use = CoreUse(core, memory=self.memory)

    def show(self, now_ns: int) -> None:
        """Update `use`."""
        _, since_ns, _, busy_ns, executions, flops, gpsimd_ns, _ = self.counters
        if 0 < since_ns < now_ns:
            busy_ns += now_ns - since_ns
        self.use = CoreUse(
            self.core,
            busy_ns,
            executions,
            flops,
            gpsimd_ns,
            since_ns != 0,
            self.memory,
            self.model_loads,
            _named(self.failures) if self.failures else (),
        )

    def take(self, block: bytes, start: int, sequence: int, now_ns: int) -> bool:
        """Decode the section at an offset and publish it; False when it is inconsistent with its sequence number."""
        counters = _unpack_counters(block, start)
        if sequence & 1 or crc32(block[start + 8 : start + CORE_BYTES], sequence) != counters[0]:
            return False
        self.sequence = sequence
        self.counters = counters
        self.latency = _unpack_latency(block, start + _LATENCY_START)
        if counters[_EXECUTIONS] != counters[_SUCCESSES] or self.failures:
            self.failures = _unpack_failures(block, start + _FAILURES_START)
        self.show(now_ns)
        return True

    def take_alone(self, block: bytes, memory_sequence: int, models_sequence: int, now_ns: int) -> bool:
        """Decode and publish a page of one core in one step.

        Args:
            block: what changes often in such a page.
            memory_sequence: sequence number of the process section when it was taken.
            models_sequence: that of the models.
            now_ns: CLOCK_MONOTONIC.

        Returns:
            False when other sections changed too, when executions failed, or when the section does not check.
        """
        values = _unpack_one(block)
        check, since_ns, _, busy_ns, executions, flops, gpsimd_ns, successes = counters = values[:8]
        memory, models, sequence = values[-3:]
        if memory != memory_sequence or models != models_sequence or executions != successes:
            return False
        if sequence & 1 or self.failures or crc32(block[_ONE_START + 8 : _ONE_END], sequence) != check:
            return False
        self.sequence = sequence
        self.counters = counters
        self.latency = values[_ONE_LATENCY]
        if 0 < since_ns < now_ns:
            busy_ns += now_ns - since_ns
        self.use = CoreUse(
            self.core,
            busy_ns,
            executions,
            flops,
            gpsimd_ns,
            since_ns != 0,
            self.memory,
            self.model_loads,
            (),
        )
        return True

    def salvage(self, block: bytes, start: int) -> None:
        """Publish the counters of a section whose change was interrupted.

        Single words are whole. Executions are counted by status first; what changes after that may be the old value,
        but never one below what was read before.
        """
        _, _, _, *hot, successes = _unpack_counters(block, start)
        failures = _unpack_failures(block, start + _FAILURES_START)
        statuses = (successes, *failures)
        busy_ns, _, flops, gpsimd_ns = hot
        last = self.use
        self.counters = (
            *(0, 0, 0, max(last.busy_ns, busy_ns), max(last.executions, sum(statuses))),
            *(max(last.flops, flops), max(last.gpsimd_ns, gpsimd_ns), successes),
        )
        self.latency = _unpack_latency(block, start + _LATENCY_START)
        self.failures = failures
        self.sequence = _NEVER
        self.show(0)

    @property
    def model_slot(self) -> int:
        """Slot of the executing model, -1 for none."""
        return self.counters[_MODEL] - 1

    @property
    def successes(self) -> int:
        """Successful executions."""
        return self.counters[_SUCCESSES]


def _named(failures: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    return tuple(pair for pair in zip(STATUS_NUMBERS[1:], failures, strict=False) if pair[1])


def status_counts(cores: list[CoreSection]) -> tuple[tuple[int, int], ...]:
    """Return the executions of cores by status, without statuses that did not occur."""
    successes = sum([core.successes for core in cores])
    failures = [core.failures for core in cores if core.failures]
    if not failures:
        return ((0, successes),) if successes else ()
    counts = (successes, *map(sum, zip(*failures, strict=True)))
    return tuple(pair for pair in zip(STATUS_NUMBERS, counts, strict=False) if pair[1])


def latency_counts(cores: list[CoreSection]) -> tuple[int, ...]:
    """Return the latency histogram over cores."""
    if len(cores) == 1:
        return cores[0].latency
    return tuple(map(sum, zip(_NO_LATENCY, *[core.latency for core in cores], strict=True)))


def loaded_models(section: bytes, cores: tuple[int, ...]) -> tuple[ShownModel, ...]:
    """Return the models of the models section: slot, state while idle, state while executing."""
    found = []
    for slot in range(MODEL_SLOTS):
        model_id, core_slot, name, uuid, *memory = MODEL.unpack_from(section, 8 + slot * MODEL.size)
        if model_id and core_slot < len(cores):
            what = (model_id, text_of(name), text_of(uuid), cores[core_slot])
            use = MemoryUse(*memory)
            found.append((slot, ModelState(*what, False, use), ModelState(*what, True, use)))
    return tuple(found)
