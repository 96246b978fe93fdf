"""The backend `neuron` of torch.compile: each graph of TorchDynamo becomes one graph of the device.

AOTAutograd splits training into a forward and a backward graph. A graph records its operators when it runs first, so
that it reaches the compiler, the cache and the tools like any recorded graph. Later calls execute its program.
"""

from __future__ import annotations

import logging
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import torch
from torch._dynamo.backends.common import aot_autograd

from neurontools import env
from neurontools.errors import NeuronToolsError
from neurontools.native import replayed_random
from neurontools.native.activation import is_active
from neurontools.native.graph_checks import add_source, check_graph, is_repeatable, needs_autograd
from neurontools.native.partition import partition
from neurontools.native.selection import NEURON
from neurontools.xla import api
from neurontools.xla.accelerator import DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Runner = Callable[..., Any]

_INPUTS = "inputs of torch.compile(backend='neuron')"
_GRAPH = "torch.compile(backend='neuron')"
_NO_COPIES = b"TORCH_NEURONX_DYNAMO_DISABLE_CPU_AUTOCOPY"
_CPU = torch.device("cpu")
_CONSTANT = "_tensor_constant"
_log = logging.getLogger("neurontools.native")


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
        DeviceError: this process has no device `neuron`, or the device cannot run the graph.
    """
    if not is_active():
        raise DeviceError(
            "torch.compile(backend='neuron') needs the device neuron in this process",
            "start the program with neuron-run, or set NEURONTOOLS_DEVICE=neuron",
        )
    replayed_random.install()
    check_graph(model, inputs)
    for name, value in (("mode", mode), ("options", options)):
        if value and value != "default":
            _log.warning("torch.compile(backend='neuron') ignores %s=%r", name, value)
    if not needs_autograd(model, inputs):
        run = _compile(model, inputs)
        return lambda *args: run(list(args))
    compile_training = aot_autograd(
        fw_compiler=_compile,
        bw_compiler=_compile_backward,
        partition_fn=partition,
        keep_inference_input_mutations=True,
    )
    compiled: Runner = compile_training(model, inputs)
    return compiled


def _compile(model: torch.fx.GraphModule, inputs: Sequence[Any]) -> Runner:
    """Return a function that runs a graph as one execution on the device; it takes a list, which it clears."""
    graph, owned = _lift_tensors(model)
    tensors = {
        position: value for position, value in enumerate([*inputs, *owned]) if isinstance(value, torch.Tensor)
    }
    on_host = [position for position, value in tensors.items() if value.device == _CPU]
    if not any(value.device != _CPU or value.dim() for value in tensors.values()):
        on_host = []  # numbers of the CPU alone stay there
    if on_host:
        _move_constants(graph)
    arrays = [position for position in on_host if tensors[position].dim()]
    run = api.engine().as_graph(graph, _INPUTS, _GRAPH, repeatable=is_repeatable(graph), on_host=on_host)

    def run_boxed(args: list[Any]) -> Any:
        if arrays and env.is_one(_NO_COPIES):
            _check_devices(args, arrays)
        taken = [*args, *owned]
        args.clear()
        try:
            return run(taken)
        except NeuronToolsError as error:
            add_source(error, graph)
            raise

    run_boxed._boxed_call = True  # type: ignore[attr-defined]  # noqa: SLF001  torch's mark: it may clear the list
    return run_boxed


def _compile_backward(model: torch.fx.GraphModule, inputs: Sequence[Any]) -> Runner:
    """Return a function as `_compile` does, whose gradients of inputs on the CPU are there, too."""
    results = [getattr(node, "meta", {}).get("val") for node in model.graph.output_node().args[0]]
    on_cpu = [
        index
        for index, value in enumerate(results)
        if isinstance(value, torch.Tensor) and value.device == _CPU
    ]
    run = _compile(model, inputs)
    if not on_cpu:
        return run

    def run_and_copy(args: list[Any]) -> list[Any]:
        gradients = list(run(args))
        for index in on_cpu:
            gradients[index] = gradients[index].cpu()
        return gradients

    run_and_copy._boxed_call = True  # type: ignore[attr-defined]  # noqa: SLF001  as above
    return run_and_copy


def _check_devices(args: Sequence[Any], positions: Sequence[int]) -> None:
    for position in positions:
        if isinstance(args[position], torch.Tensor) and args[position].device == _CPU:
            raise DeviceError(
                f"Input tensor at index {position} is on cpu device",
                f"move it to {NEURON}, or unset {_NO_COPIES.decode()}",
            )


def _lift_tensors(model: torch.fx.GraphModule) -> tuple[torch.fx.GraphModule, list[torch.Tensor]]:
    """Make inputs of the tensors that a graph holds itself, such as the state of an optimizer.

    Constants of the program on the CPU stay in the graph.

    Returns:
        The graph, another one if it holds tensors, and these.
    """
    names = dict.fromkeys(str(node.target) for node in model.graph.nodes if node.op == "get_attr")
    values = {name: attrgetter(name)(model) for name in names if not name.startswith(_CONSTANT)}
    tensors = {
        name: value
        for name, value in values.items()
        if isinstance(value, torch.Tensor) and (value.device.type == NEURON or not value.dim())
    }
    if not tensors:
        return model, []
    graph = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in model.graph.find_nodes(op="placeholder"):
        copies[node] = graph.node_copy(node)
    inputs = {name: graph.placeholder(f"own_{index}") for index, name in enumerate(tensors)}
    for node in model.graph.nodes:
        if node.op == "get_attr" and node.target in inputs:
            copies[node] = inputs[node.target]
        elif node.op != "placeholder":
            copies[node] = graph.node_copy(node, copies.__getitem__)
    return torch.fx.GraphModule(model, graph), list(tensors.values())


def _move_constants(graph: torch.fx.GraphModule) -> None:
    """Let a graph make its tensors on the device, as its inputs are moved there."""
    device = torch.device(NEURON)
    for node in graph.graph.nodes:
        if node.kwargs.get("device") in {_CPU, "cpu"}:
            node.kwargs = {**node.kwargs, "device": device}
    graph.recompile()
