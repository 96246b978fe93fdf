"""From a path through the trace cache to the canonical graph."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

from neurontools.compiler.graph import Graph, Slot, reads
from neurontools.xla.buffers import form_bytes

if TYPE_CHECKING:
    from neurontools.xla.trie import TrieNode


def build_graph(
    leaf: TrieNode, live: tuple[int, ...], libraries: tuple[str, ...] = (), cut: str = ""
) -> Graph:
    """Return the graph of a recording.

    Args:
        leaf: its last call.
        live: slots that somebody can still see at the cut.
        libraries: sha256 of every native library whose operators the path calls.
        cut: what ended it.
    """
    slots: list[Slot] = []
    inputs: list[int] = []
    nodes = []
    for node in leaf.path():
        inputs += range(len(slots), len(slots) + node.bound)
        slots += [Slot(form_bytes(form)) for form in node.added]
        assert node.call is not None
        nodes.append(node.call)
    return Graph(
        slots=tuple(slots),
        inputs=tuple(inputs),
        lifted=leaf.lifted,
        nodes=tuple(nodes),
        outputs=live,
        libraries=libraries,
        cut=cut,
    )


def input_forms(leaf: TrieNode) -> tuple[int, ...]:
    """Return the form of every input of a recording, in the graph's order."""
    return tuple(form for node in leaf.path() for form in node.added[: node.bound])


def scratch_bytes(graph: Graph) -> int:
    """Return the device memory that a graph's temporaries take at most at one time."""
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
