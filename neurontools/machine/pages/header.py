"""The static part of a telemetry page: its process and cores."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

from neurontools.errors import NeuronToolsError
from neurontools.machine.pages.layout import (
    HEADER,
    HEADER_CHECKSUM_OFFSET,
    MAGIC,
    MAX_CORES,
    MODEL_SLOTS,
    VERSION,
    PageLayout,
)

_TEXT_BYTES = (64, 64, 256, 1024, 64)


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
        raise PageError(f"a telemetry page has at most {MAX_CORES} cores, {len(cores)} asked for")
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
            "let program and daemon be of the same neurontools release",
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
