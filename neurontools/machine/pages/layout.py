"""Layout of a telemetry page, version 3. All numbers are little-endian; a word is an unsigned 64-bit number.

    part        what
    header      at 0: magic "NTLMPAGE", version u32, header length u32, page length u64, core count u32, model
                slots u32, CRC-32 of header and core list (this field as zero) u32, zero u32, pid u64, start_ticks
                u64, uid u64, registered_ns u64, then UTF-8 text padded with zero bytes: machine 64, boot_id 64,
                tag 256, command 1024, runtime_version 64
    core list   at 1544: machine-wide logical core ids, u32 each; padded to 64 bytes
    models      check word; 64 slots of 256 bytes: id u64 (0: free), core slot u32, 4 zero bytes, name 128, uuid 48,
                memory by category (7 words), 8 zero bytes; padded so that the page ends at a multiple of 4096
    process     check word; a row of 10 words for the host: memory by category, zero, CPU time in user and in system
                mode in ns (zero for a process that the operating system knows); a row for each core: memory by
                category, the device memory reserved from the machine, models ever loaded, zero; padded to 64 bytes
    core 0..n   104 words each: check, executing_since_ns (0: idle), model slot + 1 (0: none), busy_ns, executions,
                flops, gpsimd_ns, zero; executions by NRT status (32 words in the order of STATUS_NUMBERS); latency
                histogram (64 words)
    sequences   one word for the process section, one for the model section, one for each core; padded to 64 bytes,
                of which the last word is the doorbell, the only word the daemon writes: in its low half the number
                of faults that are armed for this process, in its high half the number of the request to profile
                the process (0: none)

Each section has a sequence number of its own (a seqlock): odd while its one writer is at work, raised by two with
each change, so that threads that execute on different cores never wait for each other. The check word is the CRC-32
of the section's other words, started with the sequence number. The process section grows with the cores, so its
writer keeps a check word up to date by adding differences: it makes the section, read as one number, `CHECK_SEED`
plus the sequence number modulo the prime `CHECK_PRIME`. Either way every single changed word is found, and a section
that was read with another sequence number than its own does not check (but for one chance in 2**32), so that no
second look at the sequence numbers is needed. What changes often lies together at the end: one read brings it, and a
page that is cut short shows.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING
from zlib import crc32

from neurontools.errors import NeuronToolsError
from neurontools.machine.snapshot import CoreUse, MemoryUse, ModelState

if TYPE_CHECKING:
    from collections.abc import Sequence

MAGIC = b"NTLMPAGE"
VERSION = 3
PAGE_ALIGN = 4096
MAX_CORES = 1024
MODEL_SLOTS = 64
LATENCY_BUCKETS = 64
STATUS_SLOTS = 32

STATUS_NUMBERS = (
    *(0, 1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 13, 14, 15, 101),
    *(1002, 1003, 1004, 1005, 1006, 1100, 1200, 1201, 1202, 1203, 1204, 1205, 1206),
)

CATEGORIES = (
    "constants",
    "model_code",
    "model_shared_scratchpad",
    "runtime_memory",
    "tensors",
    "dma_buffers",
    "application_memory",
)

HEADER = struct.Struct("<8sIIQIIII4Q64s64s256s1024s64s")
HEADER_CHECKSUM_OFFSET = 32
WORD = struct.Struct("<Q")
HALF_WORD = struct.Struct("<I")
MODEL = struct.Struct("<QI4x128s48s7Q8x")
CORE_HOT = struct.Struct("<6Q")

ROW_WORDS = 10
RESERVED_WORD = 7
MODEL_LOADS_WORD = 8
CPU_USER_WORD, CPU_SYSTEM_WORD = 8, 9
CORE_WORDS = 8 + STATUS_SLOTS + LATENCY_BUCKETS
CORE_SINCE_WORD = 1
CORE_STATUS_WORD = 8
CORE_LATENCY_WORD = CORE_STATUS_WORD + STATUS_SLOTS
CORE_BYTES = CORE_WORDS * 8
MODELS_BYTES = 8 + MODEL_SLOTS * MODEL.size

PROCESS_SECTION = 0
MODELS_SECTION = 1
FIRST_CORE_SECTION = 2

MASK = 2**64 - 1
CHECK_SEED = 0x6E74_7061_6765_3031
CHECK_PRIME = 0x9E37_79B9_7F4A_7C55

_TEXT_BYTES = (64, 64, 256, 1024, 64)


def check_weights(count: int) -> tuple[int, ...]:
    """Return how much an increment of each word of a process section adds to its check word, modulo `CHECK_PRIME`."""
    return tuple(-pow(2, 64 * index, CHECK_PRIME) % CHECK_PRIME for index in range(count))


def settled_check(words: Sequence[int]) -> int:
    """Return the check word of a process section (its first word is ignored) for sequence number zero."""
    content = struct.pack(f"<{len(words)}Q", 0, *words[1:])
    return (CHECK_SEED - int.from_bytes(content, "little")) % CHECK_PRIME


def process_checks(section: bytes, sequence: int) -> bool:
    """Return whether a process section is consistent with this sequence number."""
    return int.from_bytes(section, "little") % CHECK_PRIME == (CHECK_SEED + sequence) % CHECK_PRIME


def checks(section: bytes, sequence: int) -> bool:
    """Return whether a section of a core or of the models is consistent with this sequence number."""
    return crc32(section[8:], sequence) == int.from_bytes(section[:8], "little")


def aligned(size: int, step: int) -> int:
    """Return `size` rounded up to a multiple of `step`."""
    return -(-size // step) * step


class PageLayout:
    """Offsets in bytes of the sections of a page for a number of cores."""

    __slots__ = (
        "core_count",
        "core_offset",
        "core_sections",
        "doorbell_offset",
        "models_offset",
        "page_bytes",
        "process_offset",
        "process_words",
        "sequence_count",
        "sequences_offset",
        "static_bytes",
    )

    def __init__(self, core_count: int) -> None:
        self.core_count = core_count
        self.static_bytes = HEADER.size + 4 * core_count
        self.models_offset = aligned(self.static_bytes, 64)
        self.process_words = 1 + ROW_WORDS * (1 + core_count)
        self.sequence_count = FIRST_CORE_SECTION + core_count
        process_bytes = aligned(8 * self.process_words, 64)
        sequences_bytes = aligned(8 * (self.sequence_count + 1), 64)
        cores_bytes = CORE_BYTES * core_count
        end = self.models_offset + MODELS_BYTES + process_bytes + cores_bytes + sequences_bytes
        self.page_bytes = aligned(end, PAGE_ALIGN)
        self.sequences_offset = self.page_bytes - sequences_bytes
        self.doorbell_offset = self.page_bytes - 8
        self.core_offset = self.sequences_offset - cores_bytes
        self.process_offset = self.core_offset - process_bytes
        self.core_sections = tuple(range(self.core_offset, self.sequences_offset, CORE_BYTES))


def page_size(core_count: int) -> int:
    """Return the length in bytes of the page of a process that claims a number of cores."""
    return PageLayout(core_count).page_bytes


class PageError(NeuronToolsError):
    """A telemetry page cannot be created, or is not a page of this version."""


@dataclass(frozen=True, slots=True)
class PageIdentity:
    """The process of a page; `registered_ns` is CLOCK_MONOTONIC."""

    machine: str
    pid: int
    start_ticks: int
    boot_id: str
    uid: int
    tag: str
    command: str
    runtime_version: str
    registered_ns: int


def pack_header(identity: PageIdentity, cores: tuple[int, ...]) -> bytes:
    """Return the static part of a page.

    Text that does not fit its field is cut.

    Raises:
        PageError: too many cores, or a number that does not fit its field.
    """
    if len(cores) > MAX_CORES:
        raise PageError(f"a telemetry page has at most {MAX_CORES} cores, {len(cores)} requested")
    layout = PageLayout(len(cores))
    texts = (identity.machine, identity.boot_id, identity.tag, identity.command, identity.runtime_version)
    try:
        static = bytearray(
            HEADER.pack(
                *(MAGIC, VERSION, HEADER.size, layout.page_bytes, len(cores), MODEL_SLOTS, 0, 0),
                *(identity.pid, identity.start_ticks, identity.uid, identity.registered_ns),
                *(fitted(text, size) for text, size in zip(texts, _TEXT_BYTES, strict=True)),
            )
            + struct.pack(f"<{len(cores)}I", *cores)
        )
    except struct.error as error:
        raise PageError(f"telemetry page of process {identity.pid}: {error}") from error
    struct.pack_into("<I", static, HEADER_CHECKSUM_OFFSET, zlib.crc32(static))
    return bytes(static)


def parse_header(data: bytes, file_bytes: int) -> tuple[PageIdentity, tuple[int, ...]]:
    """Return the checked identity and cores of a page from its first bytes.

    Args:
        data: the page's beginning, at least the static part of the largest page or the whole page.
        file_bytes: length of the file.

    Raises:
        PageError: not a page, another version, cut short, or damaged.
    """
    if len(data) < HEADER.size or data[:8] != MAGIC:
        raise PageError("not a telemetry page: wrong magic or shorter than a header")
    (_, version, header_bytes, page_bytes, core_count, model_slots, checksum, _, *rest) = HEADER.unpack_from(
        data
    )
    if version != VERSION:
        raise PageError(
            f"telemetry page of version {version}, this program reads version {VERSION}",
            "use the same neurontools release for program and daemon",
        )
    if core_count > MAX_CORES or header_bytes != HEADER.size or model_slots != MODEL_SLOTS:
        raise PageError("damaged telemetry page: impossible sizes in its header")
    layout = PageLayout(core_count)
    if page_bytes != layout.page_bytes or file_bytes != page_bytes or len(data) < layout.static_bytes:
        raise PageError(f"damaged telemetry page: {file_bytes} bytes instead of {layout.page_bytes}")
    static = bytearray(data[: layout.static_bytes])
    struct.pack_into("<I", static, HEADER_CHECKSUM_OFFSET, 0)
    if zlib.crc32(static) != checksum:
        raise PageError("damaged telemetry page: checksum of its header does not match")
    pid, start_ticks, uid, registered_ns, *texts = rest
    machine, boot_id, tag, command, runtime_version = map(text_of, texts)
    identity = PageIdentity(
        machine, pid, start_ticks, boot_id, uid, tag, command, runtime_version, registered_ns
    )
    return identity, struct.unpack_from(f"<{core_count}I", data, HEADER.size)


def fitted(text: str, size: int) -> bytes:
    """Return text as UTF-8 of at most `size` bytes, cut between characters."""
    data = text.encode("utf-8", "replace")
    if len(data) <= size:
        return data
    return data[:size].decode("utf-8", "ignore").encode()


def text_of(field: bytes) -> str:
    """Return the text of a padded field."""
    return field.rstrip(b"\0").decode("utf-8", "replace")


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
