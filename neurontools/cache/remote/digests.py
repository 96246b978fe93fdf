"""What is sent to a bucket, described beforehand: its length and digests, for the server to check and to be known again by."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from typing import IO

LARGE_BYTES = 64 << 20
"""What is larger is sent in parts. S3 takes at most 5 GiB in one piece."""
PART_BYTES = 16 << 20
MOST_PARTS = 10_000
"""S3's own limit."""
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Digests:
    """A file's length, and its digests: md5 for the server to check, sha256 for whoever reads it (both binary).

    A file that is sent in parts has the length of a part, and the md5 of each.
    """

    size_bytes: int
    md5: bytes
    sha256: bytes
    part_bytes: int = 0
    part_md5s: tuple[bytes, ...] = ()

    @property
    def tag(self) -> str:
        """The tag that a server gives to the object: the md5, or that of the parts' md5s and how many these are."""
        if not self.part_md5s:
            return self.md5.hex()
        return f"{hashlib.md5(b''.join(self.part_md5s), usedforsecurity=False).hexdigest()}-{len(self.part_md5s)}"

    def describes(self, size_bytes: int, tag: str) -> bool:
        """Return whether an object of this length and tag has this content, in whichever way it was sent."""
        return size_bytes == self.size_bytes and tag in {self.tag, self.md5.hex()}


def digests_of(file: IO[bytes]) -> Digests:
    """Return length and digests of a file's content, read from its beginning."""
    md5, sha256, size = hashlib.md5(usedforsecurity=False), hashlib.sha256(), 0
    part_bytes = _part_bytes(file.seek(0, os.SEEK_END))
    part_md5s: list[bytes] = []
    file.seek(0)
    while part := file.read(part_bytes or _CHUNK_BYTES):
        md5.update(part)
        sha256.update(part)
        size += len(part)
        if part_bytes:
            part_md5s.append(hashlib.md5(part, usedforsecurity=False).digest())
    return Digests(size, md5.digest(), sha256.digest(), part_bytes, tuple(part_md5s))


def _part_bytes(size_bytes: int) -> int:
    """Return the length of the parts of a file, 0 for one that is sent whole."""
    if size_bytes <= LARGE_BYTES:
        return 0
    return PART_BYTES * -(-size_bytes // (PART_BYTES * MOST_PARTS))
