"""The 1024-byte header of a NEFF, in the layout of the real file format."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass

from neurontools.errors import NeuronToolsError

HEADER_BYTES = 1024
PACKAGE_VERSION = 2
SUPPORTED_VERSION = (2, 0)
NAME_BYTES = 256
_BUILD_BYTES = 128
_MAX_CORES = 64
_LAYOUT = struct.Struct("<5Q128sI32s16s256sI64sQI468s")


class NeffError(NeuronToolsError):
    """The bytes are not a NEFF, or a damaged or unsupported one."""


@dataclass(frozen=True, slots=True)
class NeffHeader:
    """The fields of a NEFF header. `data_hash` covers everything after the header: sha256, md5 in package version 1."""

    package_version: int
    data_bytes: int
    version: tuple[int, int]
    build_version: str
    core_count: int
    data_hash: bytes
    uuid: bytes
    name: str
    feature_bits: int
    lnc: int


def write_header(data: bytes, *, name: str, build_version: str, lnc: int) -> bytes:
    """Return the header of a NEFF's data part. The uuid depends on data and name, so equal NEFFs have equal bytes."""
    digest = hashlib.sha256(data).digest()
    stored_name = clip(name, NAME_BYTES - 1)
    stored_build = clip(build_version, _BUILD_BYTES - 1)
    uuid = hashlib.sha256(b"\0".join((digest, stored_name, stored_build))).digest()[:16]
    return _LAYOUT.pack(
        PACKAGE_VERSION,
        HEADER_BYTES,
        len(data),
        *SUPPORTED_VERSION,
        stored_build,
        lnc,
        digest,
        uuid,
        stored_name,
        lnc,
        bytes([lnc]),
        0,
        lnc,
        b"",
    )


def read_header(data: bytes) -> NeffHeader:
    """Parse the header at the start of a NEFF.

    Raises:
        NeffError: too short, or not a NEFF's header.
    """
    if len(data) < HEADER_BYTES:
        raise NeffError(f"not a NEFF: {len(data)} bytes, shorter than the {HEADER_BYTES}-byte header")
    fields = _LAYOUT.unpack_from(data)
    package_version, header_bytes, data_bytes, major, minor, build, cores, digest, uuid, name = fields[:10]
    if package_version not in {1, PACKAGE_VERSION} or header_bytes != HEADER_BYTES:
        raise NeffError(f"not a NEFF: package version {package_version}, header size {header_bytes}")
    if not 1 <= cores <= _MAX_CORES:
        raise NeffError(f"the NEFF's header is damaged: {cores} NeuronCores")
    return NeffHeader(
        package_version=package_version,
        data_bytes=data_bytes,
        version=(major, minor),
        build_version=_text(build, "build version"),
        core_count=cores,
        data_hash=digest,
        uuid=uuid,
        name=_text(name, "name"),
        feature_bits=fields[12],
        lnc=fields[13],
    )


def hash_matches(header: NeffHeader, data: bytes) -> bool:
    """Return whether a data part matches the header's hash."""
    if header.package_version == 1:
        return header.data_hash[:16] == hashlib.md5(data, usedforsecurity=False).digest()
    return header.data_hash == hashlib.sha256(data).digest()


def clip(text: str, max_bytes: int) -> bytes:
    """Return a text in UTF-8, truncated to whole characters."""
    return text.encode("utf-8", "replace")[:max_bytes].decode("utf-8", "ignore").encode()


def _text(field: bytes, what: str) -> str:
    try:
        text = field.partition(b"\0")[0].decode()
    except UnicodeDecodeError as error:
        raise NeffError(f"the NEFF's header is damaged: the {what} is not text") from error
    if not text.isprintable() and any(ord(character) < 32 or ord(character) == 127 for character in text):
        raise NeffError(f"the NEFF's header is damaged: the {what} holds control characters")
    return text
