"""HLO modules for tests, written field by field as XLA's public hlo.proto and xla_data.proto number them."""

from __future__ import annotations

import struct
from dataclasses import dataclass

DTYPES = {"pred": 1, "s32": 4, "s64": 5, "f32": 11, "bf16": 16}


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def data(field: int, content: bytes | str) -> bytes:
    content = content.encode() if isinstance(content, str) else content
    return varint(field << 3 | 2) + varint(len(content)) + content


def packed(field: int, values: list[int]) -> bytes:
    return data(field, b"".join(map(varint, values)))


def shape(dtype: str, *dimensions: int) -> bytes:
    return number(2, DTYPES[dtype]) + packed(3, list(dimensions))


def tuple_shape(*shapes: bytes) -> bytes:
    return number(2, 13) + b"".join(data(4, each) for each in shapes)


def literal(*values: float) -> bytes:
    return data(1, shape("f32")) + data(8, b"".join(struct.pack("<f", value) for value in values))


@dataclass
class Op:
    """An instruction; `extra` are further fields of it, already written."""

    number: int
    opcode: str
    shape: bytes
    operands: tuple[int, ...] = ()
    extra: bytes = b""
    source: str = ""
    called: tuple[int, ...] = ()

    def write(self) -> bytes:
        out = (
            data(1, f"{self.opcode}.{self.number}") + data(2, self.opcode) + data(3, self.shape) + self.extra
        )
        if self.source:
            file, _, line = self.source.rpartition(":")
            out += data(7, data(2, f"jit/{self.opcode}") + data(3, file) + number(4, int(line)))
        out += number(35, self.number)
        out += packed(36, list(self.operands)) if self.operands else b""
        return out + (packed(38, list(self.called)) if self.called else b"")


def computation(name: str, identity: int, root: int, ops: list[Op]) -> bytes:
    written = b"".join(data(2, op.write()) for op in ops)
    return data(1, name) + written + number(5, identity) + number(6, root)


def module(*computations: bytes, entry: int, extra: bytes = b"") -> bytes:
    out = data(1, "SyncTensorsGraph.7") + data(2, "main") + b"".join(data(3, each) for each in computations)
    return out + number(6, entry) + extra


def mlp(
    rows: int = 8, scale: float = 0.5, *, groups: tuple[tuple[int, ...], ...] = ((0, 1),), first: int = 1
) -> bytes:
    """A dot, a scaling, an all-reduce that calls an addition; ids begin at `first`, as they do from trace to trace."""
    a, s, n = first, shape("f32"), number
    add = computation(
        "add",
        900,
        a + 102,
        [
            Op(a + 100, "parameter", s, extra=n(9, 0)),
            Op(a + 101, "parameter", s, extra=n(9, 1)),
            Op(a + 102, "add", s, (a + 100, a + 101)),
        ],
    )
    out = shape("f32", rows, 4)
    reduce = b"".join(data(49, packed(1, list(group))) for group in groups)
    main = computation(
        "main",
        901,
        a + 6,
        [
            Op(a, "parameter", shape("f32", rows, 16), extra=n(9, 0)),
            Op(a + 1, "parameter", shape("f32", 16, 4), extra=n(9, 1)),
            Op(a + 2, "dot", out, (a, a + 1), source="/home/u/train.py:11", extra=data(30, n(1, 1))),
            Op(a + 3, "constant", s, extra=data(8, literal(scale)), source="/home/u/train.py:12"),
            Op(a + 4, "multiply", out, (a + 2, a + 3), source="/home/u/train.py:12"),
            Op(a + 5, "all-reduce", out, (a + 4,), reduce, "/home/u/train.py:13", (900,)),
            Op(a + 6, "tuple", tuple_shape(out), (a + 5,)),
        ],
    )
    alias = data(8, data(1, packed(1, [0]) + n(2, 1)))
    return module(add, main, entry=901, extra=alias)
