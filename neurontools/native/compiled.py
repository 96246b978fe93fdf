"""The backend `neuron` of torch.compile: each graph of TorchDynamo becomes one graph of the device.

AOTAutograd splits training into a forward and a backward graph. A graph records its operators when it runs, so that it
reaches the compiler, the cache and the tools like any recorded graph.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

import torch
import torch._dynamo.config
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func

from neurontools.native.activation import is_active
from neurontools.native.selection import NEURON
from neurontools.xla import api
from neurontools.xla.accelerator import DeviceError
from neurontools.xla.graph_limits import OneGraph

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Runner = Callable[..., Any]

_INPUTS = "inputs of torch.compile(backend='neuron')"
_GRAPH = "torch.compile(backend='neuron')"
_NO_COPIES = "TORCH_NEURONX_DYNAMO_DISABLE_CPU_AUTOCOPY"
_log = logging.getLogger("neurontools.native")

# A graph has fixed shapes: TorchDynamo must not replace the second shape that it meets by a symbol.
torch._dynamo.config.automatic_dynamic_shapes = False  # noqa: SLF001


def neuron(
    model: torch.fx.GraphModule, inputs: Sequence[Any], *, mode: str | None = None, options: Any = None
) -> Runner:
    """Return what TorchDynamo calls instead of a graph.

    Args:
        model: the graph.
        inputs: fake tensors with the shapes of its inputs.
        mode: only the default mode exists; others get a warning.
        options: none are documented; a dict is ignored with a warning.

    Raises:
        DeviceError: this process has no device `neuron`, or a shape is symbolic.
    """
    if not is_active():
        raise DeviceError(
            "torch.compile(backend='neuron') needs the device neuron in this process",
            "start the program with neuron-run, or set NEURONTOOLS_DEVICE=neuron",
        )
    if any(isinstance(value, torch.SymInt) for value in inputs) or any(map(_has_symbols, inputs)):
        raise DeviceError(
            "torch.compile(backend='neuron') does not support dynamic=True",
            "leave dynamic out: each shape gets a graph of its own",
        )
    for name, value in (("mode", mode), ("options", options)):
        if value:
            _log.warning("torch.compile(backend='neuron') ignores %s=%r", name, value)
    compiled: Runner = aot_autograd(fw_compiler=_compile)(model, inputs)
    return compiled


def _has_symbols(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and any(isinstance(size, torch.SymInt) for size in value.shape)


def _compile(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Runner:
    """Return a function that runs a graph of AOTAutograd as one execution on the device."""
    on_host = [
        position
        for position, value in enumerate(inputs)
        if isinstance(value, torch.Tensor) and value.device.type == "cpu" and value.dim()
    ]
    if on_host:
        _move_constants(graph)

    def run(*args: Any) -> Any:
        engine = api.engine()
        if on_host:
            args = _uploaded(args, on_host)
        engine.sync(cause=_INPUTS)
        eager, fusion = engine.eager, engine.set_fusion(OneGraph())
        engine.set_eager(False)
        try:
            return graph(*args)
        finally:
            engine.sync(cause=_GRAPH)
            engine.set_eager(eager)
            engine.set_fusion(fusion)

    return make_boxed_func(run)  # type: ignore[no-any-return]


def _uploaded(args: Sequence[Any], positions: Sequence[int]) -> tuple[Any, ...]:
    if os.environ.get(_NO_COPIES) == "1":
        raise DeviceError(
            f"Input tensor at index {positions[0]} is on cpu device",
            f"move it to {NEURON}, or unset {_NO_COPIES}",
        )
    moved = list(args)
    for position in positions:
        moved[position] = args[position].to(NEURON)
    return tuple(moved)


def _move_constants(graph: torch.fx.GraphModule) -> None:
    """Let a graph make its tensors on the device, as its inputs are moved there."""
    cpu, device = torch.device("cpu"), torch.device(NEURON)
    for node in graph.graph.nodes:
        if node.kwargs.get("device") == cpu:
            node.kwargs = {**node.kwargs, "device": device}
    graph.recompile()
