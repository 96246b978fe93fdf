"""Values that a program reads in the middle of a step: each ends a graph, and the next graph is the rest of the step."""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from neurontools.cache.graph_facts import GraphFacts, TensorType

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
