"""How many elements and bytes an operator call touches, from the views in the graph."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from neurontools.compiler.engines import family, split_name
from neurontools.compiler.graph import reads, views

if TYPE_CHECKING:
    from neurontools.compiler.graph import Node, View

_ITEM_BYTES = {
    "float64": 8,
    "int64": 8,
    "uint64": 8,
    "complex64": 8,
    "complex128": 16,
    "float16": 2,
    "bfloat16": 2,
    "int16": 2,
    "uint16": 2,
    "bool": 1,
    "int8": 1,
    "uint8": 1,
}
# Operators that write arguments which are not the first one, by position (their schemas name these).
_WRITTEN_POSITIONS = {
    "_fused_adam": (0, 2, 3, 4),
    "_fused_adamw": (0, 2, 3, 4),
    "_fused_sgd": (0, 2),
    "native_batch_norm": (3, 4),
    "_native_batch_norm_legit": (3, 4),
    "_batch_norm_with_update": (3, 4),
}
# In-place operators that ignore what was there before.
_OVERWRITING = frozenset({"copy", "fill", "zero", "normal", "uniform", "bernoulli", "random", "exponential"})


def item_bytes(dtype: str) -> int:
    """Return the bytes of one element; 4 for types not listed, 1 for the 8-bit floats."""
    if dtype.startswith("float8"):
        return 1
    return _ITEM_BYTES.get(dtype, 4)


def numel(view: View) -> int:
    """Return the elements of a tensor."""
    return math.prod(view.shape)


def touched_bytes(view: View) -> int:
    """Return the bytes of memory behind a view: a dimension with stride 0 is one element wide."""
    elements = math.prod(
        1 if stride == 0 and size > 1 else size
        for size, stride in zip(view.shape, view.strides, strict=False)
    )
    return elements * item_bytes(view.dtype)


def written(node: Node) -> tuple[View, ...]:
    """Return the views that a call writes: its results and what it changes in place, each once."""
    found = [view for view in node.results if view is not None]
    name = split_name(node.op)[1]
    positions = _WRITTEN_POSITIONS.get(family(node.op), ())
    if not positions and name.endswith("_") and not name.endswith("__"):
        positions = (0,)
    for position in positions:
        if position < len(node.args):
            found += views(node.args[position])
    for key, value in node.kwargs:
        if key == "out":
            found += views(value)
    return tuple(dict.fromkeys(found))


def read_bytes(node: Node) -> int:
    """Return the bytes that a call reads from device memory."""
    found = dict.fromkeys(reads(node))
    if family(node.op) in _OVERWRITING:
        for view in written(node):
            found.pop(view, None)
    return sum(touched_bytes(view) for view in found)


def write_bytes(node: Node) -> int:
    """Return the bytes that a call writes to device memory."""
    return sum(touched_bytes(view) for view in written(node))


def elements(node: Node) -> int:
    """Return the elements that a call works on: those of the larger side, list forms summed up."""
    consumed = max((numel(view) for view in reads(node)), default=0)
    produced = sum(numel(view) for view in written(node))
    return max(consumed, produced)
