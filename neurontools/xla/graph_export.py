"""A function recorded as one graph with a border: which inputs it takes, which weights it holds, what it returns.

The graph of a training step binds whatever tensors it meets. A model that is compiled ahead of time instead has fixed
inputs and results, and carries its weights.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from neurontools.xla import api
from neurontools.xla.accelerator import DeviceError
from neurontools.xla.buffers import buffer_of, geometry_of, layout_geometry
from neurontools.xla.call_capture import view_from
from neurontools.xla.custom_op_graph import libraries_of
from neurontools.xla.program import build_graph

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from neurontools.compiler.graph import Graph, View

_PASSES = 3


@dataclass(frozen=True, slots=True)
class GraphInput:
    """An input of an exported graph.

    Args:
        argument: position among the function's arguments; -1 for a weight.
        value: the contents of a weight, None for an argument.
        origin: the device tensor that a weight was read from.
        geometry: what the graph expects.
    """

    argument: int
    value: torch.Tensor | None
    origin: torch.Tensor | None
    geometry: View


@dataclass(frozen=True, slots=True)
class ExportedGraph:
    """A graph with its border.

    Args:
        graph: the graph.
        inputs: what its input slots hold, in the graph's order.
        scalars: values of its scalar inputs.
        results: where the function's results are.
    """

    graph: Graph
    inputs: tuple[GraphInput, ...]
    scalars: tuple[float, ...]
    results: tuple[View, ...]


def export_graph(
    function: Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]],
    arguments: Sequence[torch.Tensor],
    weights: Sequence[torch.Tensor],
    index: int = 0,
) -> ExportedGraph:
    """Record a function on a device, without running what it computes.

    The function is called until the recording needs no learning any more, because learning runs operators at once, which
    would change weights that the function writes.

    Args:
        function: takes device tensors and returns tensors.
        arguments: CPU tensors of the shapes and data types that the graph is for.
        weights: device tensors that the function reads; others that it meets become weights too.
        index: device to record on.

    Raises:
        DeviceError: an operator needs values while the function is recorded, or the function differs between calls.
    """
    recorder = api.engine().recorder(index)
    with recorder.lock:
        recorder.sync("trace")
        limit = recorder.graph_limit
        recorder.graph_limit = sys.maxsize  # a traced model is one graph
        try:
            for _ in range(_PASSES):
                try:
                    made = _record(recorder, function, arguments, weights)
                finally:
                    recorder.reset()
                if made is not None:
                    return made
        finally:
            recorder.graph_limit = limit
    raise DeviceError(
        "the traced function records other operators at each call",
        "remove random choices from its Python code",
    )


def _record(
    recorder: Any,
    function: Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]],
    arguments: Sequence[torch.Tensor],
    weights: Sequence[torch.Tensor],
) -> ExportedGraph | None:
    epoch = recorder.epoch
    taken = [recorder.adopt(argument.detach().clone()) for argument in arguments]
    known = {id(buffer_of(weight)): weight for weight in weights}
    results = [_recorded(recorder, result) for result in function(taken)]
    if recorder.epoch is not epoch:
        raise DeviceError(
            "the traced function has a tensor whose shape depends on values: a traced graph has fixed shapes",
            "move that part out of the function",
        )
    if recorder.learning:
        return None
    leaf = recorder.node
    positions = {id(buffer_of(tensor)): position for position, tensor in enumerate(taken)}
    views = tuple(view_from(buffer_of(result).slot, geometry_of(result)) for result in results)
    libraries = libraries_of(node.call.op for node in leaf.path() if node.call)
    graph = build_graph(leaf, tuple(sorted({view.slot for view in views})), libraries, "trace")
    inputs = []
    for slot in graph.inputs:
        buffer = recorder.slots[slot]
        geometry = view_from(slot, layout_geometry(buffer.layout_id))
        position = positions.get(id(buffer), -1)
        value = recorder.host_of(buffer) if position < 0 else None
        inputs.append(GraphInput(position, value, known.get(id(buffer)), geometry))
    return ExportedGraph(graph, tuple(inputs), tuple(recorder.scalars), views)


def _recorded(recorder: Any, result: torch.Tensor) -> torch.Tensor:
    """Return a result as a tensor of the recording: what the function only passes on is copied by the graph."""
    if result.device.type != "xla":
        result = result.to(recorder.device)
    return result if buffer_of(result).epoch is recorder.epoch else result.clone()
