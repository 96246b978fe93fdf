"""A function recorded as one graph with a border: which inputs it takes, which weights it holds, what it returns.

The graph of a training step binds whatever tensors it meets. A model that is compiled ahead of time instead has fixed
inputs and results, and carries its weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools.xla import api
from neurontools.xla.accelerator import DeviceError
from neurontools.xla.program import build_graph

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from neurontools.compiler.graph import Graph, View
    from neurontools.xla.recorded_trace import RecordedInput

_PASSES = 3


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
    inputs: tuple[RecordedInput, ...]
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
    for _ in range(_PASSES):
        recorded = api.engine().record_function(index, function, arguments, weights)
        if recorded is not None:
            live = tuple(sorted({view.slot for view in recorded.results}))
            graph = build_graph(recorded.trace, live, "trace")
            return ExportedGraph(graph, recorded.inputs, recorded.scalars, recorded.results)
    raise DeviceError(
        "the traced function records other operators at each call",
        "remove random choices from its Python code",
    )
