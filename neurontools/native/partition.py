"""How a training graph is split into a forward and a backward graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._functorch.partitioners import default_partition, has_recomputable_ops, is_opaque_node

if TYPE_CHECKING:
    from collections.abc import Sequence

    Graphs = tuple[torch.fx.GraphModule, torch.fx.GraphModule]

_TAG = "partitioner_tag"
_STATE = "rng_state_output"  # torch's name for the state of random numbers that a checkpoint draws again


def partition(
    joint: torch.fx.GraphModule, inputs: Sequence[Any], *, num_fwd_outputs: int, **options: Any
) -> Graphs:
    """Split a graph as torch does by default, but save no views: the backward graph makes them anew.

    Views cost nothing in a graph, but each tensor that the forward graph saves costs time. `inputs`, `num_fwd_outputs`
    and `options` are those of torch's partitioners.
    """
    if not has_recomputable_ops(joint):  # those of a checkpoint have their own rules
        _repeat_views(joint.graph)
    forward, backward = default_partition(joint, inputs, num_fwd_outputs=num_fwd_outputs, **options)
    _move_states(forward, backward, num_fwd_outputs)
    return forward, backward


def _move_states(forward: torch.fx.GraphModule, backward: torch.fx.GraphModule, num_fwd_outputs: int) -> None:
    """Let the forward graph save states of random numbers before objects, such as the mesh of a DTensor.

    That is the order in which AOTAutograd of torch 2.13 takes them, while its partitioner puts the states last.
    """
    output = forward.graph.output_node()
    values: Any = output.args[0]
    saved = values[num_fwd_outputs:]
    objects = [node for node in saved if is_opaque_node(node)]
    if not objects:
        return
    first = saved.index(objects[0])
    late = [
        node
        for node in saved[first:]
        if isinstance(node.meta.get("val"), torch.Tensor) and node not in objects
    ]
    moved = [*saved[:first], *late, *(node for node in saved[first:] if node not in late)]
    output.args = ((*values[:num_fwd_outputs], *moved),)
    taken = backward.graph.find_nodes(op="placeholder")
    first_object = next(node for node in taken if is_opaque_node(node))
    for node in taken:
        if node.name.startswith(_STATE):
            first_object.prepend(node)
    forward.recompile()
    backward.recompile()


def _repeat_views(graph: torch.fx.Graph) -> None:
    """Give the backward part of a graph its own copies of the views that the forward part has made."""
    nodes = list(graph.nodes)
    of_forward = [index for index, node in enumerate(nodes) if _is_forward(node)]
    if not of_forward:
        return
    made_forward = set(nodes[: of_forward[-1] + 1])
    copies: dict[torch.fx.Node, torch.fx.Node] = {}

    def repeat(node: torch.fx.Node) -> torch.fx.Node:
        if node not in made_forward or not _is_view(node):
            return node
        if node not in copies:
            copies[node] = graph.node_copy(node, repeat)
            copies[node].meta = {**node.meta, _TAG: "is_backward"}
        return copies[node]

    for node in nodes[of_forward[-1] + 1 :]:
        if node.op == "call_function":
            with graph.inserting_before(node):
                node.args = torch.fx.node.map_arg(node.args, repeat)
                node.kwargs = torch.fx.node.map_arg(node.kwargs, repeat)


def _is_forward(node: torch.fx.Node) -> bool:
    return node.meta.get(_TAG) == "is_forward" or (
        node.op == "placeholder" and not str(node.target).startswith("tangents")
    )


def _is_view(node: torch.fx.Node) -> bool:
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and target.is_view  # noqa: SLF001
