"""Enough of the protobuf wire format to write messages: varints, doubles, bytes, nested messages."""

from __future__ import annotations


def varint(value: int) -> bytes:
    """Return a base-128 varint of a number that is not negative."""
    if value < 0x80:
        return bytes((value,))
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def number(field: int, value: int) -> bytes:
    """Return a field with a number."""
    return varint(field << 3) + varint(value)


def text(field: int, value: str) -> bytes:
    """Return a field with a string."""
    return message(field, value.encode("utf-8", "replace"))


def message(field: int, *parts: bytes) -> bytes:
    """Return a field with a message of some parts, or with bytes."""
    body = b"".join(parts)
    return varint(field << 3 | 2) + varint(len(body)) + body
