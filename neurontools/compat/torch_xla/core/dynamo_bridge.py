"""torch_xla.core.dynamo_bridge: what `torch.compile(backend="openxla")` runs (PyTorch/XLA, "TorchDynamo integration").

torch has the backend itself. It splits training with AOTAutograd and hands each graph to `extract_compiled_graph`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from neurontools.compat.unsupported import missing_names
from neurontools.xla import api
from neurontools.xla.debugging.debug_analysis import DYNAMO_GRAPH, DYNAMO_INPUTS

__getattr__ = missing_names(__name__)


def extract_compiled_graph(xla_model: torch.fx.GraphModule, xla_args: Sequence[Any]) -> Callable[..., Any]:
    """Return a function that runs a graph of TorchDynamo on the device.

    Each call is one execution: what is recorded before it, such as its inputs, runs first.

    Args:
        xla_model: the graph.
        xla_args: arguments of the first call; the graph is compiled when it runs for the first time.
    """

    def run(*args: Any) -> Any:
        engine = api.engine()
        engine.sync(cause=DYNAMO_INPUTS)
        try:
            return xla_model(*args)
        finally:
            engine.sync(cause=DYNAMO_GRAPH)

    return run
