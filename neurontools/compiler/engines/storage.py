"""The stored form of a schedule: a line of JSON, then one column after the other as little-endian 64-bit numbers.

Starts and operators are differences to the row before, so that equal layers of a model compress to little.
"""

from __future__ import annotations

import json
import sys
from array import array
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

from neurontools.base.json_reader import load_json
from neurontools.compiler.engines.placement import Engine
from neurontools.errors import NeuronToolsError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

SCHEMA = 2

MAX_NS = 3_600 * 10**9
"""The longest execution that a stored schedule may have."""

MAX_WORK = 2**62
"""FLOPs or bytes of a row at most; profiles store 64-bit integers."""

_COLUMNS = 9
_DELTAS = (0, 2)  # the columns of operators and starts


class CostError(NeuronToolsError):
    """Stored bytes are not a cost model of this schema."""


class CostRow(NamedTuple):
    """A group of equal tiles as it is stored; times in ns, `operator` is a position in the graph.

    `source` is the line of a kernel, "" where the operator's line is that of the row.
    """

    operator: int
    opcode: str
    engine: Engine
    start_ns: int
    duration_ns: int
    busy_ns: int
    tiles: int
    flops: int
    read_bytes: int
    write_bytes: int
    source: str = ""


def dump_schedule(head: dict[str, Any], rows: Sequence[CostRow]) -> bytes:
    """Return the bytes of a schedule: of other values, which are JSON, and of rows."""
    kinds: dict[tuple[str, ...], int] = {}
    columns: list[list[int]] = [[] for _ in range(_COLUMNS)]
    for operator, opcode, engine, *numbers, source in rows:
        kind = (engine.value, opcode, source) if source else (engine.value, opcode)
        columns[0].append(operator)
        columns[1].append(kinds.setdefault(kind, len(kinds)))
        for column, number in zip(columns[2:], numbers, strict=True):
            column.append(number)
    for number in _DELTAS:
        column = columns[number]
        columns[number] = [now - before for now, before in zip(column, [0, *column], strict=False)]
    stored = head | {"schema": SCHEMA, "rows": len(rows), "kinds": list(kinds)}
    line = json.dumps(stored, separators=(",", ":"), sort_keys=True).encode() + b"\n"
    return line + b"".join(_pack(column) for column in columns)


def load_schedule(data: bytes, operators: int) -> tuple[dict[str, Any], tuple[CostRow, ...]]:
    """Return the other values and the rows that `dump_schedule` stored.

    Args:
        data: the bytes.
        operators: number of operators of the graph.

    Raises:
        CostError: they are of another schema.
        KeyError, TypeError, ValueError, IndexError, OverflowError, AttributeError: they are damaged, or a number is
            out of range.
    """
    line, _, body = data.partition(b"\n")
    head: dict[str, Any] = load_json(line)
    if head["schema"] != SCHEMA:
        raise CostError(f"cost model schema {head['schema']} is not supported (supported: {SCHEMA})")
    count = checked(head["rows"], len(body))
    if len(body) != count * 8 * _COLUMNS:
        raise ValueError("it has another size")
    if not count:
        return head, ()
    columns = [_unpack(body[start : start + count * 8]) for start in range(0, len(body), count * 8)]
    kinds = [(Engine(engine), str(opcode), "".join(source)) for engine, opcode, *source in head["kinds"]]
    return head, _rows(columns, kinds, operators)


def checked(value: object, limit: int) -> int:
    """Return a stored number between 0 and a limit.

    Raises:
        ValueError: it is not an integer in that range.
    """
    if type(value) is not int or not 0 <= value <= limit:
        raise ValueError(f"a total is out of range: {value!r}")
    return value


def _rows(
    columns: Sequence[array[int]], kinds: Sequence[tuple[Engine, str, str]], limit: int
) -> tuple[CostRow, ...]:
    operators, starts = list(accumulate(columns[0])), list(accumulate(columns[2]))
    named, durations, busy, *work = columns[1], *columns[3:]
    ends = [start + duration for start, duration in zip(starts, durations, strict=True)]
    smallest = min(map(min, (operators, starts, named, *columns[3:])))
    if smallest < 0 or max(operators) >= limit or max(ends) > MAX_NS:
        raise ValueError("a number of an operation is out of range")
    if any(max(column) > MAX_WORK for column in work) or any(map(int.__gt__, busy, durations)):
        raise ValueError("a number of an operation is out of range")
    engines = [kinds[number][0] for number in named]
    opcodes = [kinds[number][1] for number in named]
    sources = [kinds[number][2] for number in named]
    return tuple(map(CostRow, operators, opcodes, engines, starts, durations, busy, *work, sources))


def _pack(column: Iterable[int]) -> bytes:
    packed = array("q", column)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def _unpack(data: bytes) -> array[int]:
    found = array("q")
    found.frombytes(data)
    if sys.byteorder == "big":
        found.byteswap()
    return found
