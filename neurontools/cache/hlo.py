"""HLO modules as real compilers store them: a compact reader of XLA's public HloModuleProto.

Field numbers are those of XLA's public hlo.proto and xla_data.proto. Only the parts needed for a comparison are read:
computations, instructions, shapes, constants, replica groups, aliases, and the metadata that names operator, file and
line. The bytes of other fields still show whether two instructions are equal.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from neurontools.base.protowire import (
    BYTES,
    VARINT,
    WireError,
    read_fields,
    read_numbers,
    read_text,
    to_signed,
)
from neurontools.cache.graph_facts import GraphFacts, GraphForm, Operand, OperatorCall, TensorType

if TYPE_CHECKING:
    from collections.abc import Iterator

_MAX_DEPTH = 16
_MAX_INSTRUCTIONS = 200_000
_MAX_VALUE_BYTES = 32
_TUPLE, _PARAMETER = "tuple", "parameter"
_UNKNOWN = TensorType("unknown", ())
_DTYPES = dict(
    enumerate(
        [
            "invalid",
            "pred",
            "s8",
            "s16",
            "s32",
            "s64",
            "u8",
            "u16",
            "u32",
            "u64",
            "f16",
            "f32",
            "f64",
            "tuple",
            "opaque",
            "c64",
            "bf16",
            "token",
            "c128",
            "f8e5m2",
            "f8e4m3fn",
            "s4",
            "u4",
            "f8e4m3b11fnuz",
            "f8e5m2fnuz",
            "f8e4m3fnuz",
            "s2",
            "u2",
            "f8e4m3",
            "f8e3m4",
        ]
    )
)
"""Names of XLA's element types by their number (xla_data.proto)."""
# HloInstructionProto's fields that become fields of `_Instruction`.
_TEXTS = {1: "name", 2: "opcode"}
_NUMBERS = {9: "parameter", 35: "number"}
_LISTS = {14: "dimensions", 36: "operands", 38: "called"}
_SHAPE, _METADATA = 3, 7
# LiteralProto's fields: struct code of one item.
_FIXED_ITEMS = {8: "f", 9: "d"}
_VARINT_ITEMS = frozenset({4, 5, 6, 7})


class HloError(Exception):
    """The bytes are not an HLO module; the message is the reason."""


@dataclass(slots=True)
class _Instruction:
    """One instruction. `shapes` has one tensor, or those of a tuple. `attributes` are other fields as text."""

    number: int = 0
    name: str = ""
    opcode: str = ""
    shapes: tuple[TensorType, ...] = ()
    operands: list[int] = field(default_factory=list)
    called: list[int] = field(default_factory=list)
    dimensions: list[int] = field(default_factory=list)
    parameter: int | None = None
    attributes: list[str] = field(default_factory=list)
    op_name: str = ""
    source_file: str = ""
    source_line: int = 0

    @property
    def tensor(self) -> TensorType:
        return self.shapes[0] if self.shapes else _UNKNOWN


@dataclass(slots=True)
class _Computation:
    """One computation; `root` is the number of the instruction whose value it returns."""

    number: int = 0
    name: str = ""
    root: int = 0
    instructions: list[_Instruction] = field(default_factory=list)


@dataclass(slots=True)
class _Module:
    """A module. `aliases` are (output, parameter) pairs as text; `problems` name parts that cannot be read."""

    entry_name: str = ""
    entry_number: int = 0
    computations: list[_Computation] = field(default_factory=list)
    aliases: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def entry(self) -> _Computation:
        """Return the computation that runs: by number, by name, or else the last one."""
        by_number = (c for c in self.computations if self.entry_number and c.number == self.entry_number)
        by_name = (c for c in self.computations if c.name == self.entry_name)
        return next(by_number, None) or next(by_name, None) or self.computations[-1]


def read_hlo(data: bytes) -> GraphFacts:
    """Return the entry computation of an HLO module, with a digest of each computation that it calls.

    Damaged parts are named in `unread`. Instruction ids and names are left out, as they change from trace to trace.

    Raises:
        HloError: there is no computation in the bytes.
    """
    reader = _Reader(data)
    module = reader.read_module(0, len(data))
    if not module.computations:
        # An HloProto contains the module as its first field.
        inner = next(
            ((b, e) for n, k, _, b, e in reader.fields("", 0, len(data)) if (n, k) == (1, BYTES)), None
        )
        if inner is not None:
            module = reader.read_module(*inner)
    if not any(computation.instructions for computation in module.computations):
        raise HloError("it is not an HLO module" + (f" ({module.problems[0]})" if module.problems else ""))
    return _to_facts(module)


class _Reader:
    """Reads messages of one buffer; an error in one message loses only the rest of that message."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._count = 0
        self._problems: list[str] = []

    def fields(self, what: str, start: int, end: int) -> Iterator[tuple[int, int, int, int, int]]:
        """Yield the fields of a message, up to the first damaged one."""
        try:
            yield from read_fields(self._data, start, end)
        except WireError as error:
            self._problems.append(f"a {what} is damaged: {error}")

    def read_module(self, start: int, end: int) -> _Module:
        module = _Module()
        self._problems = module.problems
        for number, kind, value, begin, stop in self.fields("module", start, end):
            if number == 2 and kind == BYTES:
                module.entry_name = read_text(self._data, begin, stop)
            elif number == 3 and kind == BYTES:
                module.computations.append(self._read_computation(begin, stop))
            elif number == 6 and kind == VARINT:
                module.entry_number = to_signed(value)
            elif number == 8 and kind == BYTES:
                module.aliases = self._read_aliases(begin, stop)
        return module

    def _read_computation(self, start: int, end: int) -> _Computation:
        computation = _Computation()
        for number, kind, value, begin, stop in self.fields("computation", start, end):
            if number == 1 and kind == BYTES:
                computation.name = read_text(self._data, begin, stop)
            elif number == 2 and kind == BYTES:
                self._count += 1
                if self._count > _MAX_INSTRUCTIONS:
                    self._problems.append(f"more than {_MAX_INSTRUCTIONS} instructions; the rest is not read")
                    break
                computation.instructions.append(self._read_instruction(begin, stop))
            elif number == 5 and kind == VARINT:
                computation.number = to_signed(value)
            elif number == 6 and kind == VARINT:
                computation.root = to_signed(value)
        return computation

    def _read_instruction(self, start: int, end: int) -> _Instruction:
        found = _Instruction()
        data = self._data
        for number, kind, value, begin, stop in self.fields("instruction", start, end):
            if kind == BYTES and number in _TEXTS:
                setattr(found, _TEXTS[number], read_text(data, begin, stop))
            elif kind == VARINT and number in _NUMBERS:
                setattr(found, _NUMBERS[number], to_signed(value))
            elif number in _LISTS:
                getattr(found, _LISTS[number]).extend(self._read_list(kind, value, begin, stop))
            elif kind == BYTES and number == _SHAPE:
                found.shapes = tuple(self._read_shapes(begin, stop, 0))
            elif kind == BYTES and number == _METADATA:
                self._read_metadata(found, begin, stop)
            else:
                found.attributes.append(self._format_attribute(number, kind, value, begin, stop))
        return found

    def _read_list(self, kind: int, value: int, start: int, end: int) -> list[int]:
        try:
            return read_numbers(self._data, kind, value, start, end)
        except WireError as error:
            self._problems.append(f"a list of numbers is damaged: {error}")
            return []

    def _format_attribute(self, number: int, kind: int, value: int, start: int, end: int) -> str:
        if kind != BYTES:
            return f"field{number}={to_signed(value)}"
        match number:
            case 8:
                return self._format_literal(start, end)
            case 28:
                return f"target={read_text(self._data, start, end)}"
            case 49:
                return f"replica_group={self._read_numbers_field(start, end, 1)}"
            case 63:
                return f"direction={read_text(self._data, start, end)}"
            case _:
                return f"field{number}={hashlib.sha256(self._data[start:end]).hexdigest()[:8]}"

    def _read_metadata(self, found: _Instruction, start: int, end: int) -> None:
        for number, kind, value, begin, stop in self.fields("metadata", start, end):
            if number == 2 and kind == BYTES:
                found.op_name = read_text(self._data, begin, stop)
            elif number == 3 and kind == BYTES:
                found.source_file = read_text(self._data, begin, stop)
            elif number == 4 and kind == VARINT:
                found.source_line = to_signed(value)

    def _read_shapes(self, start: int, end: int, depth: int) -> list[TensorType]:
        dtype = _DTYPES[0]
        dimensions: list[int] = []
        inner: list[TensorType] = []
        for number, kind, value, begin, stop in self.fields("shape", start, end):
            if number == 2 and kind == VARINT:
                dtype = _DTYPES.get(value, f"type{value}")
            elif number == 3:
                dimensions.extend(self._read_list(kind, value, begin, stop))
            elif number == 4 and kind == BYTES and depth < _MAX_DEPTH:
                inner.extend(self._read_shapes(begin, stop, depth + 1))
        return inner if dtype == _TUPLE else [TensorType(dtype, tuple(dimensions))]

    def _format_literal(self, start: int, end: int) -> str:
        """Return a constant's value if it is one short list of numbers, else its digest."""
        values: list[str] = []
        for number, kind, value, begin, stop in self.fields("literal", start, end):
            size = stop - begin
            if number in _FIXED_ITEMS and kind == BYTES and size <= _MAX_VALUE_BYTES:
                code = _FIXED_ITEMS[number]
                whole = size - size % struct.calcsize(code)
                items = struct.iter_unpack(f"<{code}", self._data[begin : begin + whole])
                values.extend(f"{item:.7g}" for (item,) in items)
            elif number in _VARINT_ITEMS and size <= _MAX_VALUE_BYTES:
                values.extend(map(str, self._read_list(kind, value, begin, stop)))
        if values:
            return ", ".join(values)
        content = self._data[start:end]
        return f"constant {hashlib.sha256(content).hexdigest()[:8]} ({len(content)} bytes)"

    def _read_numbers_field(self, start: int, end: int, wanted: int) -> list[int]:
        found: list[int] = []
        for number, kind, value, begin, stop in self.fields("list of numbers", start, end):
            if number == wanted:
                found.extend(self._read_list(kind, value, begin, stop))
        return found

    def _read_aliases(self, start: int, end: int) -> list[str]:
        found: list[str] = []
        for number, kind, _, begin, stop in self.fields("alias", start, end):
            if number == 1 and kind == BYTES:
                output = self._read_numbers_field(begin, stop, 1)
                parameter = self._read_numbers_field(begin, stop, 2)
                found.append(f"output {output} is parameter {(parameter or [0])[0]}")
        return found


def _to_facts(module: _Module) -> GraphFacts:
    entry = module.entry()
    called = _format_called(module)
    parameters = [item for item in entry.instructions if item.opcode == _PARAMETER]
    parameters.sort(key=lambda item: item.parameter or 0)
    others = [item for item in entry.instructions if item.opcode != _PARAMETER]
    producers = {item.number: -1 - number for number, item in enumerate(parameters)}
    producers |= {item.number: number for number, item in enumerate(others)}
    operands = {item.number: Operand(producers[item.number], 0, item.tensor) for item in entry.instructions}
    missing = sum(number not in operands for item in others for number in item.operands)
    problems = list(module.problems)
    if missing:
        problems.append(f"{missing} operands refer to instructions that do not exist")
    root = next((item for item in entry.instructions if item.number == entry.root), None)
    outputs = [] if root is None else root.operands if root.opcode == _TUPLE else [root.number]
    return GraphFacts(
        form=GraphForm.HLO,
        inputs=tuple(item.tensor for item in parameters),
        input_names=tuple(item.op_name or item.name for item in parameters),
        operations=tuple(_to_operation(item, operands, called) for item in others),
        outputs=tuple(operands[number] for number in outputs if number in operands),
        aliases=tuple(module.aliases),
        unread=tuple(problems),
    )


def _to_operation(item: _Instruction, operands: dict[int, Operand], called: dict[int, str]) -> OperatorCall:
    found = tuple(operands[number] for number in item.operands if number in operands)
    calls = tuple(f"calls {called.get(number, 'an unknown computation')}" for number in item.called)
    source = f"{item.source_file}:{item.source_line}" if item.source_file else item.op_name
    dimensions = (f"dimensions={item.dimensions}",) if item.dimensions else ()
    constants = (*dimensions, *item.attributes, *calls)
    return OperatorCall(item.opcode or "unknown", found, item.shapes, constants, source)


def _format_called(module: _Module) -> dict[int, str]:
    """Return opcodes and a digest of each computation; computations called from it count by their opcode only."""
    texts = {}
    for computation in module.computations:
        lines = [
            f"{item.opcode} {item.shapes} {item.dimensions} {item.attributes} {item.parameter}"
            for item in computation.instructions
        ]
        digest = hashlib.sha256("\n".join(lines).encode("utf-8", "replace")).hexdigest()[:8]
        kinds = [item.opcode for item in computation.instructions if item.opcode != _PARAMETER]
        texts[computation.number] = f"{'+'.join(kinds[:4])} {digest}"
    return texts
