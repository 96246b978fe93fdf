"""HLO modules as real compilers store them: a compact reader of XLA's public HloModuleProto.

Field numbers are those of XLA's public hlo.proto and xla_data.proto. Only what a comparison needs is read: computations,
instructions, shapes, constants, replica groups, aliases, and the metadata that names operator, file and line. Other
fields are passed over; their bytes still tell whether two instructions are equal.
"""

from __future__ import annotations

import hashlib
import struct
from typing import TYPE_CHECKING

from neurontools.cache.graphs.graph_facts import Tensor
from neurontools.cache.graphs.hlo_module import DTYPES, HloComputation, HloInstruction, HloModule
from neurontools.cache.graphs.wire import BYTES, VARINT, WireError, fields, numbers, signed, text

if TYPE_CHECKING:
    from collections.abc import Callable

_MAX_DEPTH = 16
_MAX_INSTRUCTIONS = 200_000
_TUPLE = "tuple"
_SHORT_BYTES = 32
# HloInstructionProto's fields that become fields of `HloInstruction`.
_TEXTS = {1: "name", 2: "opcode"}
_NUMBERS = {9: "parameter", 35: "number"}
_LISTS = {14: "dimensions", 36: "operands", 38: "called"}
_SHAPE, _METADATA = 3, 7
# LiteralProto's fields: struct code of one item.
_FIXED_ITEMS = {8: "f", 9: "d"}
_VARINT_ITEMS = frozenset({4, 5, 6, 7})


class HloError(Exception):
    """The bytes are no HLO module; the message says why."""


def read_hlo(data: bytes) -> HloModule:
    """Return the module that bytes hold, as far as it can be read; `problems` tell of damage behind that.

    Raises:
        HloError: there is no computation in them.
    """
    reader = _Reader(data)
    module = reader.module(0, len(data))
    if not module.computations:
        # An HloProto holds the module as its first field.
        inner = reader.wrapped()
        if inner is not None:
            module = reader.module(*inner)
    if not any(computation.instructions for computation in module.computations):
        raise HloError("it holds no HLO module" + (f" ({module.problems[0]})" if module.problems else ""))
    return module


class _Reader:
    """Reads messages of one buffer; an error inside of one message loses the rest of that message only."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._count = 0
        self._problems: list[str] = []

    def module(self, start: int, end: int) -> HloModule:
        module = HloModule()
        self._problems = module.problems

        def take(number: int, kind: int, value: int, begin: int, stop: int) -> None:
            if number == 1 and kind == BYTES:
                module.name = text(self._data, begin, stop)
            elif number == 2 and kind == BYTES:
                module.entry_name = text(self._data, begin, stop)
            elif number == 3 and kind == BYTES:
                module.computations.append(self._computation(begin, stop))
            elif number == 6 and kind == VARINT:
                module.entry_number = signed(value)
            elif number == 8 and kind == BYTES:
                module.aliases = self._aliases(begin, stop)

        self._each("module", start, end, take)
        return module

    def wrapped(self) -> tuple[int, int] | None:
        try:
            for number, kind, _, begin, stop in fields(self._data):
                if number == 1 and kind == BYTES:
                    return begin, stop
        except WireError:
            pass
        return None

    def _each(self, what: str, start: int, end: int, take: Callable[[int, int, int, int, int], None]) -> None:
        try:
            for found in fields(self._data, start, end):
                take(*found)
        except WireError as error:
            self._problems.append(f"a {what} is damaged: {error}")

    def _computation(self, start: int, end: int) -> HloComputation:
        computation = HloComputation()

        def take(number: int, kind: int, value: int, begin: int, stop: int) -> None:
            if number == 1 and kind == BYTES:
                computation.name = text(self._data, begin, stop)
            elif number == 2 and kind == BYTES:
                self._count += 1
                if self._count > _MAX_INSTRUCTIONS:
                    raise WireError(f"more than {_MAX_INSTRUCTIONS} instructions; the rest is not read")
                computation.instructions.append(self._instruction(begin, stop))
            elif number == 5 and kind == VARINT:
                computation.number = signed(value)
            elif number == 6 and kind == VARINT:
                computation.root = signed(value)

        self._each("computation", start, end, take)
        return computation

    def _instruction(self, start: int, end: int) -> HloInstruction:
        found = HloInstruction()
        data = self._data

        def take(number: int, kind: int, value: int, begin: int, stop: int) -> None:
            if kind == BYTES and number in _TEXTS:
                setattr(found, _TEXTS[number], text(data, begin, stop))
            elif kind == VARINT and number in _NUMBERS:
                setattr(found, _NUMBERS[number], signed(value))
            elif number in _LISTS:
                getattr(found, _LISTS[number]).extend(numbers(data, kind, value, begin, stop))
            elif kind == BYTES and number == _SHAPE:
                found.shapes = tuple(self._shapes(begin, stop, 0))
            elif kind == BYTES and number == _METADATA:
                self._metadata(found, begin, stop)
            else:
                self._attribute(found.attributes, number, kind, value, begin, stop)

        self._each("instruction", start, end, take)
        return found

    def _attribute(
        self, attributes: list[str], number: int, kind: int, value: int, start: int, end: int
    ) -> None:
        data = self._data
        match number:
            case 8 if kind == BYTES:
                attributes.append(self._literal(start, end))
            case 28 if kind == BYTES:
                attributes.append(f"target={text(data, start, end)}")
            case 49 if kind == BYTES:
                attributes.append(f"replica_group={self._numbers_of(start, end, 1)}")
            case 63 if kind == BYTES:
                attributes.append(f"direction={text(data, start, end)}")
            case _:
                attributes.append(_other(number, kind, value, data[start:end]))

    def _metadata(self, found: HloInstruction, start: int, end: int) -> None:
        def take(number: int, kind: int, value: int, begin: int, stop: int) -> None:
            if number == 2 and kind == BYTES:
                found.op_name = text(self._data, begin, stop)
            elif number == 3 and kind == BYTES:
                found.source_file = text(self._data, begin, stop)
            elif number == 4 and kind == VARINT:
                found.source_line = signed(value)

        self._each("metadata", start, end, take)

    def _shapes(self, start: int, end: int, depth: int) -> list[Tensor]:
        dtype = DTYPES[0]
        dimensions: list[int] = []
        inner: list[Tensor] = []

        def take(number: int, kind: int, value: int, begin: int, stop: int) -> None:
            nonlocal dtype
            if number == 2 and kind == VARINT:
                dtype = DTYPES.get(value, f"type{value}")
            elif number == 3:
                dimensions.extend(numbers(self._data, kind, value, begin, stop))
            elif number == 4 and kind == BYTES and depth < _MAX_DEPTH:
                inner.extend(self._shapes(begin, stop, depth + 1))

        self._each("shape", start, end, take)
        return inner if dtype == _TUPLE else [Tensor(dtype, tuple(dimensions))]

    def _literal(self, start: int, end: int) -> str:
        """Return a constant's value where it is one short number list, else its digest."""
        content = self._data[start:end]
        values: list[str] = []

        def take(number: int, kind: int, value: int, begin: int, stop: int) -> None:
            size = stop - begin
            if number in _FIXED_ITEMS and kind == BYTES and size <= _SHORT_BYTES:
                code = _FIXED_ITEMS[number]
                whole = size - size % struct.calcsize(code)
                items = struct.iter_unpack(f"<{code}", self._data[begin : begin + whole])
                values.extend(f"{item:.7g}" for (item,) in items)
            elif number in _VARINT_ITEMS and size <= _SHORT_BYTES:
                values.extend(map(str, numbers(self._data, kind, value, begin, stop)))

        self._each("literal", start, end, take)
        if values:
            return ", ".join(values)
        return f"constant {hashlib.sha256(content).hexdigest()[:8]} ({len(content)} bytes)"

    def _numbers_of(self, start: int, end: int, wanted: int) -> list[int]:
        found: list[int] = []

        def take(number: int, kind: int, value: int, begin: int, stop: int) -> None:
            if number == wanted:
                found.extend(numbers(self._data, kind, value, begin, stop))

        self._each("list of numbers", start, end, take)
        return found

    def _aliases(self, start: int, end: int) -> list[str]:
        found: list[str] = []

        def take_entry(number: int, kind: int, value: int, begin: int, stop: int) -> None:
            del value
            if number == 1 and kind == BYTES:
                output = self._numbers_of(begin, stop, 1)
                parameter = self._numbers_of(begin, stop, 2)
                found.append(f"output {output} is parameter {(parameter or [0])[0]}")

        self._each("alias", start, end, take_entry)
        return found


def _other(number: int, kind: int, value: int, content: bytes) -> str:
    if kind == BYTES:
        return f"field{number}={hashlib.sha256(content).hexdigest()[:8]}"
    return f"field{number}={signed(value)}"
