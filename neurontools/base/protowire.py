"""The wire format of protocol buffers without a schema: write fields, read fields one by one.

Reading is bounded by the length of the bytes: no damage makes a reader loop or recurse without end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_FIXED_BYTES = {FIXED64: 8, FIXED32: 4}
_MAX_VARINT_BYTES = 10


class WireError(Exception):
    """The bytes are not a message: truncated, or with an unknown kind of field."""


def encode_varint(value: int) -> bytes:
    """Return the base-128 varint of a non-negative number."""
    if value < 0x80:
        return bytes((value,))
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def encode_number(field: int, value: int) -> bytes:
    """Return a field with a non-negative number."""
    return encode_varint(field << 3) + encode_varint(value)


def encode_text(field: int, value: str) -> bytes:
    """Return a field with a string."""
    return encode_message(field, value.encode("utf-8", "replace"))


def encode_message(field: int, *parts: bytes) -> bytes:
    """Return a field with a message made of encoded fields, or with bytes."""
    body = b"".join(parts)
    return encode_varint(field << 3 | BYTES) + encode_varint(len(body)) + body


def read_fields(
    data: bytes, start: int = 0, end: int | None = None
) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield (number, kind, value, start, end) of each field.

    `value` is the number of a VARINT, FIXED32 or FIXED64 (unsigned), 0 for BYTES; `start` and `end` bound the content
    in `data`.

    Raises:
        WireError: the remaining bytes are not a field; all fields before have been yielded.
    """
    stop = len(data) if end is None else end
    position = start
    while position < stop:
        key, position = read_varint(data, position, stop)
        number, kind = key >> 3, key & 7
        if number == 0:
            raise WireError(f"field number 0 before byte {position}")
        if kind == VARINT:
            content = position
            value, position = read_varint(data, position, stop)
            yield number, kind, value, content, position
        elif kind == BYTES:
            length, position = read_varint(data, position, stop)
            if length > stop - position:
                raise WireError(f"a field of {length} bytes exceeds its message at byte {position}")
            yield number, kind, 0, position, position + length
            position += length
        elif kind in _FIXED_BYTES:
            width = _FIXED_BYTES[kind]
            if width > stop - position:
                raise WireError(f"truncated at byte {position}")
            value = int.from_bytes(data[position : position + width], "little")
            yield number, kind, value, position, position + width
            position += width
        else:
            raise WireError(f"unknown kind of field {kind} before byte {position}")


def read_varint(data: bytes, position: int, stop: int) -> tuple[int, int]:
    """Return an unsigned 64-bit number and the position after it.

    Raises:
        WireError: it does not end within ten bytes, or within its message.
    """
    value = shift = 0
    for offset in range(position, min(stop, position + _MAX_VARINT_BYTES)):
        byte = data[offset]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, offset + 1
        shift += 7
    raise WireError(f"an unterminated number at byte {position}")


def to_signed(value: int) -> int:
    """Return the value of an int64 field, which is stored as two's complement."""
    return value - (1 << 64) if value >> 63 else value


def read_numbers(data: bytes, kind: int, value: int, start: int, end: int) -> list[int]:
    """Return the int64 values of one occurrence of a repeated field, packed or not.

    Raises:
        WireError: a packed number has no end.
    """
    if kind != BYTES:
        return [to_signed(value)]
    found = []
    while start < end:
        item, start = read_varint(data, start, end)
        found.append(to_signed(item))
    return found


def read_text(data: bytes, start: int, end: int) -> str:
    """Return the text of a field; bytes that are not UTF-8 are replaced."""
    return data[start:end].decode("utf-8", "replace")
