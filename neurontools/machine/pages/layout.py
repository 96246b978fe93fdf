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
