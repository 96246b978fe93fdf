"""The wire format of protocol buffers: what is written is read, and damage is an error, never a loop."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neurontools.base import protowire


def test_varints_are_base_128() -> None:
    assert protowire.encode_varint(0) == b"\0"
    assert protowire.encode_varint(300) == b"\xac\x02"
    assert protowire.encode_varint(2**64 - 1) == b"\xff" * 9 + b"\x01"


@given(st.lists(st.tuples(st.integers(1, 2**28), st.integers(0, 2**64 - 1) | st.text(max_size=20))))
def test_what_is_written_is_read(items: list[tuple[int, int | str]]) -> None:
    data = b"".join(
        protowire.encode_number(number, value)
        if isinstance(value, int)
        else protowire.encode_text(number, value)
        for number, value in items
    )
    found = [
        (number, value if kind == protowire.VARINT else protowire.read_text(data, start, end))
        for number, kind, value, start, end in protowire.read_fields(data)
    ]
    expected = [(n, v.encode("utf-8", "replace").decode() if isinstance(v, str) else v) for n, v in items]
    assert found == expected


@given(st.binary(max_size=60))
def test_any_bytes_end_in_fields_or_an_error(data: bytes) -> None:
    position = 0
    try:
        for _, _, _, start, end in protowire.read_fields(data):
            assert position < end <= len(data)
            assert start <= end
            position = end
    except protowire.WireError:
        return
    assert position == len(data) or not data


def test_packed_numbers_are_signed() -> None:
    packed = b"".join(protowire.encode_varint(value & (2**64 - 1)) for value in (1, -1, 300))
    assert protowire.read_numbers(packed, protowire.BYTES, 0, 0, len(packed)) == [1, -1, 300]
    assert protowire.read_numbers(b"", protowire.VARINT, 2**64 - 2, 0, 0) == [-2]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x00", "field number 0"),
        (b"\x0a\x05ab", "exceeds its message"),
        (b"\x0d\x01", "truncated"),
        (b"\x0b", "unknown kind"),
        (b"\x08" + b"\xff" * 11, "unterminated number"),
    ],
)
def test_damage_is_named(data: bytes, message: str) -> None:
    with pytest.raises(protowire.WireError, match=message):
        list(protowire.read_fields(data))
