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
                of which the last word is the doorbell: the only word the daemon writes, the number of faults that
                are armed for this process

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
from typing import TYPE_CHECKING
from zlib import crc32

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
MODEL = struct.Struct("<QI4x128s48s7Q8x")
CORE_HOT = struct.Struct("<6Q")

ROW_WORDS = 10
RESERVED_WORD = 7
MODEL_LOADS_WORD = 8
CPU_USER_WORD, CPU_SYSTEM_WORD = 8, 9
CORE_WORDS = 8 + STATUS_SLOTS + LATENCY_BUCKETS
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
