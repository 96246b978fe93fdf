"""The device memory that a graph needs, by purpose."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from neurontools.compiler.graph import reads

if TYPE_CHECKING:
    from neurontools.compiler.graph import Graph


class GraphSizes(NamedTuple):
    """Bytes of inputs, outputs, outputs that are changed inputs, and the peak of temporaries."""

    inputs: int
    outputs: int
    aliased: int
    temporaries: int


def graph_sizes(graph: Graph) -> GraphSizes:
    """Return the device memory of a graph's parts."""

    def total(slots: set[int]) -> int:
        return sum(graph.slots[slot].nbytes for slot in slots)

    inputs, outputs = set(graph.inputs), set(graph.outputs)
    return GraphSizes(total(inputs), total(outputs), total(inputs & outputs), scratch_bytes(graph))


def scratch_bytes(graph: Graph) -> int:
    """Return the peak device memory of a graph's temporaries, in bytes."""
    kept = {*graph.inputs, *graph.outputs}
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for position, call in enumerate(graph.nodes):
        for view in (*reads(call), *(view for view in call.results if view is not None)):
            if view.slot not in kept:
                first.setdefault(view.slot, position)
                last[view.slot] = position
    change = [0] * (len(graph.nodes) + 1)
    for slot, position in first.items():
        change[position] += graph.slots[slot].nbytes
        change[last[slot] + 1] -= graph.slots[slot].nbytes
    return max(accumulate(change), default=0)
