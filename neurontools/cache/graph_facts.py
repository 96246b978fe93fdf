"""The common form of canonical graphs and HLO modules: operators, shapes, constants, wiring, source lines.

Values that a program reads in the middle of a step show in it: each ends a graph, and the next graph is the rest of the
step.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

SCALAR_INPUT = "$"
"""How a number that is an input of the graph stands among the constants of an operator."""


class GraphForm(StrEnum):
    """How a graph was stored: canonical JSON, or an HLO module."""

    CANONICAL = "canonical"
    HLO = "hlo"


class TensorType(NamedTuple):
    """Type and shape of a tensor. A tuple, because a large graph has 100,000 to compare and count."""

    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor argument: result `result` of operation `producer`, or, below 0, of input `-1 - producer`.

    `window` is the layout of a strided view on its buffer, "" for a contiguous tensor.
    """

    producer: int
    result: int
    tensor: TensorType
    window: str = ""

    @property
    def input_number(self) -> int:
        """The number of the graph's input, -1 for the result of an operation."""
        return -1 - self.producer if self.producer < 0 else -1


@dataclass(frozen=True, slots=True)
class OperatorCall:
    """One operator call. `constants` are its other arguments as text; `source` is the user's `file:line`, or ""."""

    name: str
    operands: tuple[Operand, ...]
    results: tuple[TensorType, ...]
    constants: tuple[str, ...] = ()
    source: str = ""

    @property
    def tensors(self) -> tuple[TensorType, ...]:
        """The tensors of operands and results."""
        return (*[operand.tensor for operand in self.operands], *self.results)

    @property
    def detail(self) -> tuple[object, ...]:
        """Everything but wiring and source line: equal for two operations that do the same to different inputs."""
        return (
            self.name,
            tuple([(operand.tensor, operand.window) for operand in self.operands]),
            self.results,
            self.constants,
        )


@dataclass(frozen=True, slots=True)
class GraphFacts:
    """A graph.

    Args:
        form: how it was stored.
        inputs: its inputs in order.
        input_names: their names, "" if unknown.
        operations: in order.
        outputs: tensors that are visible when it ends.
        aliases: outputs that share an input's buffer, as text.
        libraries: digests of custom operators' libraries.
        cut: what ended the recording, as `cause at file:line`, or "".
        unread: parts that could not be read, one sentence each.
        buffers_bytes: the size of all of its buffers, 0 if unknown.
    """

    form: GraphForm
    inputs: tuple[TensorType, ...]
    input_names: tuple[str, ...]
    operations: tuple[OperatorCall, ...]
    outputs: tuple[Operand, ...] = ()
    aliases: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    cut: str = ""
    unread: tuple[str, ...] = ()
    buffers_bytes: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        """The operators' names in order."""
        return tuple(operation.name for operation in self.operations)


_BACKWARD = re.compile(r"backward|_grad|-grad|select_and_scatter")
_READS = re.compile(r"\.item\(\)|bool|copy to the CPU|print of a tensor|aten::")


def is_value_read(cut: str) -> bool:
    """Return whether a graph ended because the program read a value."""
    return _READS.match(cut) is not None


def read_text(cut: str) -> str:
    """Return a sentence on the value read that ended a graph."""
    cause, _, source = cut.rpartition(" at ")
    return f"a value is read at {source} ({cause})"


def continues(graph: GraphFacts, before: GraphFacts) -> bool:
    """Return whether a graph is the rest of a step whose first graph ended because a value was read.

    It takes most of the tensors that the first graph computed, and either ends the step or has its backward pass.
    """
    if graph.cut == before.cut or not is_value_read(before.cut):
        return False
    computed = Counter(
        _size(output.tensor) for output in before.outputs if output.producer >= 0 and output.tensor.shape
    )
    # Weights have the same sizes as gradients, but both graphs take them.
    taken = Counter(map(_size, graph.inputs)) - Counter(map(_size, before.inputs))
    common = (computed & taken).total()
    if not common or 2 * common < computed.total():
        return False
    ends_step = bool(graph.cut) and not is_value_read(graph.cut)
    return ends_step or (has_backward(graph.names) and not has_backward(before.names))


def has_backward(names: tuple[str, ...]) -> bool:
    """Return whether operators of a backward pass are among these."""
    return any(_BACKWARD.search(name) for name in names)


def _size(tensor: TensorType) -> tuple[str, int]:
    """Return the data type of a tensor and its number of elements: the graph that takes it may transpose it."""
    return tensor.dtype, math.prod(tensor.shape)
