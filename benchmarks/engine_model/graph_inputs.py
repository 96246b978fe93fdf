"""What a recorded graph reads, and graphs whose weights are stored in another type."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from neurontools.compiler.graph import Slot, View
from neurontools.compiler.work import item_bytes, numel

if TYPE_CHECKING:
    from neurontools.compiler.graph import Graph


def input_bytes(graph: Graph) -> int:
    """Return the bytes that a graph must read: inputs of its calls, of tables only the rows that are gathered."""
    inputs, sizes = set(graph.inputs), {}
    for node in graph.nodes:
        if node.op.startswith(("aten.embedding", "aten.index_copy", "neurontools.")):
            continue
        for arg in node.args:
            if isinstance(arg, View) and arg.slot in inputs:
                sizes[arg.slot] = max(
                    sizes.get(arg.slot, 0),
                    min(graph.slots[arg.slot].nbytes, numel(arg) * item_bytes(arg.dtype)),
                )
    return sum(sizes.values())


def with_weights(graph: Graph, dtype: str) -> Graph:
    """Return a graph whose weights (second factors that are inputs) are stored in another type."""
    inputs, slots = set(graph.inputs), list(graph.slots)
    nodes = []
    for node in graph.nodes:
        right = node.args[-1] if node.op.startswith(("aten.mm", "aten.addmm")) else None
        if isinstance(right, View) and right.slot in inputs:
            slots[right.slot] = Slot(numel(right) * item_bytes(dtype))
            node = replace(node, args=(*node.args[:-1], replace(right, dtype=dtype)))  # noqa: PLW2901
        nodes.append(node)
    return graph.with_calls(slots, nodes)
