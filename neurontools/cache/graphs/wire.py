"""The wire format of protocol buffers, read without a schema: fields of a message one by one, and repeated numbers.

Everything is bounded by the length of the bytes, so that no damage can make a reader loop or recurse without end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_FIXED_BYTES = {FIXED64: 8, FIXED32: 4}
_LONGEST_VARINT = 10


class WireError(Exception):
    """The bytes are no message: cut short, or with a kind of field that does not exist."""


def fields(data: bytes, start: int = 0, end: int | None = None) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield (number, kind, value, start, end) of each field.

    `value` is the number of a VARINT and of FIXED32 and FIXED64 (little-endian, unsigned), 0 for BYTES; `start` and
    `end` bound the content in `data`.

    Raises:
        WireError: what follows is no field; all before it have been yielded.
    """
    stop = len(data) if end is None else end
    position = start
    while position < stop:
        key, position = varint(data, position, stop)
        number, kind = key >> 3, key & 7
        if number == 0:
            raise WireError(f"field number 0 before byte {position}")
        if kind == VARINT:
            begin = position
            value, position = varint(data, position, stop)
            yield number, kind, value, begin, position
        elif kind == BYTES:
            length, position = varint(data, position, stop)
            if length > stop - position:
                raise WireError(f"a field of {length} bytes ends behind its message, at byte {position}")
            yield number, kind, 0, position, position + length
            position += length
        elif kind in _FIXED_BYTES:
            width = _FIXED_BYTES[kind]
            if width > stop - position:
                raise WireError(f"cut short at byte {position}")
            value = int.from_bytes(data[position : position + width], "little")
            yield number, kind, value, position, position + width
            position += width
        else:
            raise WireError(f"no such kind of field ({kind}) before byte {position}")


def varint(data: bytes, position: int, stop: int) -> tuple[int, int]:
    """Return an unsigned 64-bit number and where it ends.

    Raises:
        WireError: it does not end within ten bytes, or within its message.
    """
    value = shift = 0
    for offset in range(position, min(stop, position + _LONGEST_VARINT)):
        byte = data[offset]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, offset + 1
        shift += 7
    raise WireError(f"a number without end at byte {position}")


def signed(value: int) -> int:
    """Return an int64 field's value, which the wire holds as its two's complement."""
    return value - (1 << 64) if value >> 63 else value


def numbers(data: bytes, kind: int, value: int, start: int, end: int) -> list[int]:
    """Return the int64 values of one occurrence of a repeated field, packed or not.

    Raises:
        WireError: a packed number has no end.
    """
    if kind != BYTES:
        return [signed(value)]
    found = []
    while start < end:
        item, start = varint(data, start, end)
        found.append(signed(item))
    return found


def text(data: bytes, start: int, end: int) -> str:
    """Return the text of a field; bytes that are no UTF-8 are replaced."""
    return data[start:end].decode("utf-8", "replace")
