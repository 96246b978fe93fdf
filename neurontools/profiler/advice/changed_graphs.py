"""Changes of a graph that rules ask the engine model about: one copy for many, no copies, half of a batch in turn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from neurontools.compiler.engines.lowering.families import family
from neurontools.compiler.graph import Arg, Graph, Node, Slot, View, reads
from neurontools.compiler.resizing import ChangeError, resize
from neurontools.compiler.work import item_bytes, numel, written

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Places = dict[int, tuple[int, int]]
"""Where buffers lie that become parts of others: the other one, and the first element in it."""


def merge_copies(graph: Graph, group: Sequence[int]) -> Graph:
    """Return a graph with one copy instead of several, given by their positions.

    Raises:
        ChangeError: what they copy cannot be one tensor.
    """
    nodes = graph.nodes
    targets = [written(nodes[position])[0] for position in group]
    sources = [reads(nodes[position])[-1] for position in group]
    if any(view.dtype != targets[0].dtype for view in (*targets, *sources)):
        raise ChangeError("they change the data type")
    slots, places = list(graph.slots), Places()
    made, read = (_joined(graph, views, slots, places) for views in (targets, sources))
    first = nodes[group[0]]
    args: tuple[Arg, ...] = (made, read) if family(first.op) == "copy" else (read,)
    merged = Node(first.op, args, first.kwargs, (made,), first.source)
    skipped = frozenset(group[:-1])
    kept = [
        merged if position == group[-1] else _placed(node, places)
        for position, node in enumerate(nodes)
        if position not in skipped
    ]
    return _rebuilt(graph, slots, kept, places)


def drop_copies(graph: Graph, copied: Mapping[int, int]) -> Graph:
    """Return a graph without copies of whole buffers: what reads a copy reads its origin, as if it lay in that order.

    Args:
        graph: the graph.
        copied: buffers that the copies read, by the positions of the copies.
    """
    origins = {written(graph.nodes[position])[0].slot: slot for position, slot in copied.items()}
    places: Places = {}
    for slot in origins:
        origin = slot
        while origin in origins:
            origin = origins[origin]
        places[slot] = origin, 0
    kept = [_placed(node, places) for position, node in enumerate(graph.nodes) if position not in copied]
    return _rebuilt(graph, graph.slots, kept, places)


def work_in_halves(graph: Graph, batch: int) -> Graph:
    """Return a graph that runs each call on one half of the batch and then on the other.

    Raises:
        ChangeError: the batch cannot be halved, or what the graph makes is not a result for each sample.
    """
    half = resize(graph, {batch: batch // 2}, only_batch=True)
    sizes = zip(graph.slots, half.slots, strict=True)
    per_sample = {slot for slot, (whole, part) in enumerate(sizes) if whole != part}
    if not set(graph.outputs) <= per_sample | set(graph.inputs):
        raise ChangeError("the graph sums over the batch")
    if any(view.slot in graph.inputs for node in graph.nodes for view in written(node)):
        raise ChangeError("the graph updates its inputs")
    slots, places = list(half.slots), Places()
    for slot in sorted(per_sample | {view.slot for node in half.nodes for view in written(node)}):
        places[slot] = len(slots), 0
        slots.append(half.slots[slot])
    nodes = [call for node in half.nodes for call in (node, _placed(node, places))]
    inputs, outputs = (
        (*border, *(places[slot][0] for slot in border if slot in places))
        for border in (half.inputs, half.outputs)
    )
    return Graph(tuple(slots), inputs, half.lifted, tuple(nodes), outputs, half.libraries)


def _joined(graph: Graph, views: Sequence[View], slots: list[Slot], places: Places) -> View:
    """Return one tensor of all, in a new buffer that takes theirs in."""
    dtype, total = views[0].dtype, sum(map(numel, views))
    if any(numel(view) * item_bytes(dtype) != graph.slots[view.slot].nbytes for view in views):
        raise ChangeError("they copy parts of larger tensors")
    if len({view.slot for view in views}) < len(views) or any(view.slot in places for view in views):
        raise ChangeError("some are copied more than once")
    offset = 0
    for view in views:
        places[view.slot] = len(slots), offset
        offset += numel(view)
    slots.append(Slot(total * item_bytes(dtype)))
    return View(len(slots) - 1, dtype, (total,), (1,), 0)


def _placed(node: Node, places: Places) -> Node:
    """Return a call whose buffers lie in others."""

    def moved(arg: Arg) -> Arg:
        if isinstance(arg, View):
            return _moved(arg, places)
        return tuple(map(moved, arg)) if isinstance(arg, tuple) else arg

    return replace(
        node,
        args=tuple(map(moved, node.args)),
        kwargs=tuple((name, moved(value)) for name, value in node.kwargs),
        results=tuple(None if view is None else _moved(view, places) for view in node.results),
    )


def _moved(view: View, places: Places) -> View:
    slot, first = places.get(view.slot, (view.slot, 0))
    return replace(view, slot=slot, offset=view.offset + first)


def _rebuilt(graph: Graph, slots: Sequence[Slot], nodes: Sequence[Node], places: Places) -> Graph:
    inputs, outputs = (
        tuple(dict.fromkeys(places[slot][0] if slot in places else slot for slot in border))
        for border in (graph.inputs, graph.outputs)
    )
    return Graph(tuple(slots), inputs, graph.lifted, tuple(nodes), outputs, graph.libraries)
