"""Lines of a monitor from a stream, of bounded length."""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Iterator

LONGEST_LINE_BYTES = 1 << 26


def lines(stream: BinaryIO, longest_bytes: int = LONGEST_LINE_BYTES) -> Iterator[bytes]:
    """Yield the lines of a stream without their ends, as they come; empty ones are left out.

    Args:
        stream: until its end.
        longest_bytes: a longer line is yielded cut off there, and its rest dropped.
    """
    while line := stream.readline(longest_bytes):
        text = line.strip()
        if text:
            yield text
        while not line.endswith(b"\n") and (line := stream.readline(longest_bytes)):
            continue
