"""Messages that libraries read and write as protocol buffers: HLO modules and the borders of NEFFs. Stored as JSON.

An HLO module has the parameters of the project's graph as its instructions, and the graph itself.
"""

from __future__ import annotations

import base64
import json
from enum import IntEnum
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch

from neurontools.base.json_reader import load_json
from neurontools.compat.traced_model import TracedModelError
from neurontools.xla.graph_values import dtype_name

if TYPE_CHECKING:
    from collections.abc import Mapping

_DTYPES = {
    "bool": 1,
    **{name: 2 + place for place, name in enumerate(("int8", "int16", "int32", "int64"))},
    **{name: 6 + place for place, name in enumerate(("uint8", "uint16", "uint32", "uint64"))},
    "float16": 10,
    "float32": 11,
    "float64": 12,
    "complex64": 15,
    "bfloat16": 16,
    "complex128": 18,
    "float8_e5m2": 19,
    "float8_e4m3fn": 20,
}
"""Numbers of XLA's data types (openxla/xla, xla_data.proto)."""


class PrimitiveType(IntEnum):
    """XLA's data types by name."""

    PRED, S8, S16, S32, S64, U8, U16, U32, U64 = range(1, 10)
    F16, F32, F64, TUPLE = range(10, 14)
    C64, BF16, C128, F8E5M2, F8E4M3FN = 15, 16, 18, 19, 20


PRIMITIVE_TYPES = {number: number for number in _DTYPES.values()}
"""The number of each data type in a `MetaNeff`, by its number in an HLO module."""


class Message:
    """A message; `schema` gives each field a default, the class of a nested message, or a list of that class."""

    schema: ClassVar[Mapping[str, Any]]

    def __init__(self, **values: Any) -> None:
        for name, kind in self.schema.items():
            setattr(self, name, values.pop(name) if name in values else _default(kind))
        if values:
            raise ValueError(f"{type(self).__name__} has no field {min(values)!r}")

    def SerializeToString(self) -> bytes:  # noqa: N802 # the name in protobuf
        """Return the stored form."""
        return json.dumps(self._stored(), separators=(",", ":")).encode()

    def ParseFromString(self, data: bytes) -> int:  # noqa: N802 # the name in protobuf
        """Read the stored form.

        Raises:
            TracedModelError: the bytes are damaged or of another machine.
        """
        try:
            self._load(load_json(data))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise TracedModelError(
                f"not a {type(self).__name__} of the simulated machine: {error!r}", "compile the model again"
            ) from error
        return len(data)

    def CopyFrom(self, other: Self) -> None:  # noqa: N802 # the name in protobuf
        """Take the contents of another message."""
        self._load(other._stored())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._stored()})"  # libraries hash the text of a module

    def _stored(self) -> dict[str, Any]:
        return {name: _store(getattr(self, name)) for name in self.schema}

    def _load(self, stored: dict[str, Any]) -> None:
        for name, kind in self.schema.items():
            setattr(self, name, _load(kind, stored[name]))


def _default(kind: Any) -> Any:
    if isinstance(kind, type):
        return kind()
    return type(kind)() if isinstance(kind, list | dict) else kind


def _store(value: Any) -> Any:
    match value:
        case Message():
            return value._stored()  # noqa: SLF001 # of this module
        case bytes():
            return base64.b64encode(value).decode()
        case list():
            return [_store(item) for item in value]
        case dict():
            return [[key, _store(item)] for key, item in value.items()]
    return value


def _load(kind: Any, stored: Any) -> Any:
    if isinstance(kind, type):
        made = kind()
        made._load(stored)  # noqa: SLF001 # of this module
        return made
    match kind:
        case bytes():
            return base64.b64decode(stored, validate=True)
        case list():
            return [_load(kind[0], item) if kind else int(item) for item in stored]
        case dict():
            return {key: value for key, value in stored}  # noqa: C416 # checks the pairs
    return type(kind)(stored)


class HloFrontendAttributes(Message):
    """Notes of libraries for the compiler, which has no use for them here."""

    schema: ClassVar[Mapping[str, Any]] = {"map": {}}
    map: dict[str, str]


class HloInstructionProto(Message):
    """A parameter of a graph."""

    schema: ClassVar[Mapping[str, Any]] = {
        "name": "",
        "opcode": "",
        "id": 0,
        "parameter_number": 0,
        "custom_call_target": "",
        "operand_ids": [],
        "called_computation_ids": [],
        "dimensions": [],
        "frontend_attributes": HloFrontendAttributes,
    }


class HloComputationProto(Message):
    """The entry of a graph."""

    schema: ClassVar[Mapping[str, Any]] = {
        "name": "",
        "id": 0,
        "root_id": 0,
        "instructions": [HloInstructionProto],
    }
    id: int
    instructions: list[HloInstructionProto]


class HloInputOutputAliasProto(Message):
    """Aliases of a module; `MetaNeff` has them here."""

    schema: ClassVar[Mapping[str, Any]] = {"entries": []}


class HloModuleProto(Message):
    """A graph, with the facts that libraries read; `graph` is its stored form."""

    schema: ClassVar[Mapping[str, Any]] = {
        "name": "",
        "id": 0,
        "entry_computation_id": 0,
        "computations": [HloComputationProto],
        "frontend_attributes": HloFrontendAttributes,
        "input_output_alias": HloInputOutputAliasProto,
        "graph": b"",
    }
    entry_computation_id: int
    computations: list[HloComputationProto]
    graph: bytes


class MetaTensor(Message):
    """A tensor of the border of a NEFF."""

    class Type(IntEnum):
        """What an input holds."""

        UNKNOWN = 0
        USER_INPUT = 1
        INPUT_WEIGHT = 2
        INPUT_STATE = 3

    USER_INPUT, INPUT_WEIGHT, INPUT_STATE = Type.USER_INPUT, Type.INPUT_WEIGHT, Type.INPUT_STATE
    schema: ClassVar[Mapping[str, Any]] = {
        "name": b"",
        "shape": [],
        "data_type": 0,
        "type": Type.UNKNOWN,
        "checkpoint_key": b"",
        "user_input_key": b"",
    }
    type: Type
    shape: list[int]
    data_type: int
    checkpoint_key: bytes


class Constant(Message):
    """A tensor of the traced code."""

    schema: ClassVar[Mapping[str, Any]] = {"data_type": 0, "shape": [], "data": b""}
    data_type: int
    shape: list[int]
    data: bytes

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Self:
        """Return a tensor as a message."""
        data = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        return cls(data_type=data_type_of(tensor.dtype), shape=list(tensor.shape), data=data)

    def tensor(self) -> torch.Tensor:
        """Return the tensor.

        Raises:
            TracedModelError: the message is damaged.
        """
        try:
            flat = torch.frombuffer(bytearray(self.data), dtype=torch.uint8) if self.data else torch.empty(0)
            return flat.view(torch_dtype(self.data_type)).view(self.shape)
        except (KeyError, RuntimeError) as error:
            raise TracedModelError(
                f"a constant of the model is damaged: {error}", "compile it again"
            ) from error


class MetaNeff(Message):
    """The border of a NEFF.

    `border` is its signature as of a traced model, `constants` are the weights in it without a name.
    """

    schema: ClassVar[Mapping[str, Any]] = {
        "name": b"",
        "input_tensors": [MetaTensor],
        "output_tensors": [MetaTensor],
        "output_aliases_to": {},
        "serialized_graph_def": b"",
        "border": b"",
        "constants": [Constant],
    }
    input_tensors: list[MetaTensor]
    output_tensors: list[MetaTensor]
    output_aliases_to: dict[int, int]
    serialized_graph_def: bytes
    border: bytes
    constants: list[Constant]

    def example_results(self) -> list[torch.Tensor]:
        """Return zeros of the shapes of the results that hold no state."""
        return [
            torch.zeros(tensor.shape, dtype=torch_dtype(tensor.data_type))
            for number, tensor in enumerate(self.output_tensors)
            if number not in self.output_aliases_to
        ]


def data_type_of(dtype: torch.dtype) -> int:
    """Return XLA's number of a data type."""
    return _DTYPES[dtype_name(dtype)]


def torch_dtype(data_type: int) -> torch.dtype:
    """Return the data type of XLA's number."""
    name = next((name for name, number in _DTYPES.items() if number == data_type), None)
    if name is None:
        raise KeyError(f"unknown data type {data_type}")
    dtype: torch.dtype = getattr(torch, name)
    return dtype
