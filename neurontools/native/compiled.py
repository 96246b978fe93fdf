"""The backend `neuron` of torch.compile: each graph of TorchDynamo becomes one graph of the device.

AOTAutograd splits training into a forward and a backward graph. A graph records its operators when it runs first, so
that it reaches the compiler, the cache and the tools like any recorded graph. Later calls execute its program.
"""

from __future__ import annotations

import logging
import os
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch._dynamo.backends.common import aot_autograd

from neurontools.errors import NeuronToolsError
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
_NO_COPIES = "TORCH_NEURONX_DYNAMO_DISABLE_CPU_AUTOCOPY"
_CPU = torch.device("cpu")
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
    check_graph(model, inputs)
    for name, value in (("mode", mode), ("options", options)):
        if value and value != "default":
            _log.warning("torch.compile(backend='neuron') ignores %s=%r", name, value)
    if not needs_autograd(model, inputs):
        run = _compile(model, inputs)
        return lambda *args: run(list(args))
    compile_training = aot_autograd(
        fw_compiler=_compile, partition_fn=partition, keep_inference_input_mutations=True
    )
    compiled: Runner = compile_training(model, inputs)
    return compiled


def _compile(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Runner:
    """Return a function that runs a graph as one execution on the device; it takes a list, which it clears."""
    tensors = {position: value for position, value in enumerate(inputs) if isinstance(value, torch.Tensor)}
    on_host = [position for position, value in tensors.items() if value.device == _CPU]
    if not any(value.device != _CPU or value.dim() for value in tensors.values()):
        on_host = []  # numbers of the CPU alone stay there
    if on_host:
        _move_constants(graph)
    owned = _own_tensors(graph)
    run = api.engine().as_graph(
        lambda *args: graph(*args[: len(inputs)]), _INPUTS, _GRAPH, repeatable=is_repeatable(graph)
    )

    def run_boxed(args: list[Any]) -> Any:
        copies = _copy_to_device(args, on_host) if on_host else ()
        taken = [*args, *owned]
        args.clear()
        try:
            results = run(taken)
        except NeuronToolsError as error:
            add_source(error, graph)
            raise
        for copied in copies:
            copied.write_back()
        return results

    run_boxed._boxed_call = True  # type: ignore[attr-defined]  # noqa: SLF001  torch's mark: it may clear the list
    return run_boxed


class _Copy(NamedTuple):
    """A copy on the device of an input that is on the CPU, and the version that it had."""

    original: torch.Tensor
    copy: torch.Tensor
    version: int

    def write_back(self) -> None:
        """Change the input as the graph has changed the copy."""
        if _version(self.copy) != self.version:
            self.original.copy_(self.copy)


def _copy_to_device(args: list[Any], on_host: Sequence[int]) -> list[_Copy]:
    """Replace inputs of a graph that are on the CPU by copies on the device, and return those."""
    refused = next((position for position in on_host if args[position].dim()), None)
    if refused is not None and os.environ.get(_NO_COPIES) == "1":
        raise DeviceError(
            f"Input tensor at index {refused} is on cpu device", f"move it to {NEURON}, or unset {_NO_COPIES}"
        )
    copies = []
    for position in on_host:
        original, args[position] = args[position], args[position].to(NEURON)
        copies.append(_Copy(original, args[position], _version(args[position])))
    return copies


def _own_tensors(graph: torch.fx.GraphModule) -> tuple[torch.Tensor, ...]:
    """Return the tensors on the device that a graph holds itself, such as the parameters of an optimizer."""
    names = dict.fromkeys(str(node.target) for node in graph.graph.nodes if node.op == "get_attr")
    values = (attrgetter(name)(graph) for name in names)
    return tuple(value for value in values if isinstance(value, torch.Tensor) and value.device.type == NEURON)


def _version(tensor: torch.Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version  # noqa: SLF001


def _move_constants(graph: torch.fx.GraphModule) -> None:
    """Let a graph make its tensors on the device, as its inputs are moved there."""
    device = torch.device(NEURON)
    for node in graph.graph.nodes:
        if node.kwargs.get("device") in {_CPU, "cpu"}:
            node.kwargs = {**node.kwargs, "device": device}
    graph.recompile()
