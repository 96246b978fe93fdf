"""What the device can do with a graph of TorchDynamo, and the user's line in errors about it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import torch

from neurontools.xla.accelerator import DeviceError
from neurontools.xla.custom_op_graph import is_custom_operator
from neurontools.xla.debugging.graph_lines import origin_of, source_of
from neurontools.xla.device_name import triton_refusal

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from neurontools.errors import NeuronToolsError

_BACKEND = "torch.compile(backend='neuron')"
_NAMED = re.compile(r" \((\S+:\d+)\)$")
_TRITON = "triton_kernel_wrapper"
_OF_TORCH = frozenset(
    {"aten", "prim", "prims", "_c10d_functional", "c10d_functional", "_dtensor", "neurontools"}
)
_SETS_GRADIENTS = (torch._C._set_grad_enabled, torch.set_grad_enabled)  # noqa: SLF001


def check_graph(model: torch.fx.GraphModule, inputs: Sequence[Any]) -> None:
    """Check that the device can run a graph.

    Raises:
        DeviceError: a shape is symbolic, or a call is a Triton kernel.
    """
    for node in model.graph.nodes:
        if node.op == "call_function" and _TRITON in str(getattr(node.target, "__name__", "")):
            reason, remedy = triton_refusal()
            raise DeviceError(f"{_place(node)}{reason}", remedy)
    if any(isinstance(value, torch.SymInt) for value in inputs) or any(map(_has_symbols, inputs)):
        raise DeviceError(
            f"{_place(_first_with_symbols(model))}{_BACKEND} does not support dynamic=True or dynamic dimensions",
            "use dynamic=False: each shape gets a graph of its own",
        )


def is_repeatable(model: torch.fx.GraphModule) -> bool:
    """Return whether a graph only calls torch and custom operators in C++: other Python code has to run each time."""
    return all(map(_is_repeatable, _targets(model)))


def needs_autograd(model: torch.fx.GraphModule, inputs: Sequence[Any]) -> bool:
    """Return whether a graph may have a backward pass, or takes tensors that only AOTAutograd can unpack."""
    plain = all(type(value) in {torch.nn.Parameter, torch.Tensor} or _is_fake(value) for value in inputs)
    return (
        not plain or torch.is_grad_enabled() or any(target in _SETS_GRADIENTS for target in _targets(model))
    )


def add_source(error: NeuronToolsError, graph: torch.fx.GraphModule) -> None:
    """Put the user's line in a compiled function before an error's message: the graph's first where none is known."""
    named = _NAMED.search(error.message)  # the compiler's messages end with the line of the operator
    source = named[1] if named else _source_in(error)
    source = source or next(filter(None, map(source_of, graph.graph.nodes)), "")
    if source:
        error.message = f"{source}: {error.message[: named.start()] if named else error.message}"
        error.args = (error.message,)


def _source_in(error: BaseException) -> str:
    source, trace = "", error.__traceback__
    while trace is not None:
        source = origin_of(trace.tb_frame, trace.tb_lineno)[0] or source
        trace = trace.tb_next
    return source


def _targets(model: torch.fx.GraphModule) -> Iterator[Any]:
    for module in model.modules():
        if isinstance(module, torch.fx.GraphModule):
            yield from (node.target for node in module.graph.nodes if node.op == "call_function")


def _is_repeatable(target: Any) -> bool:
    if isinstance(target, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):  # noqa: SLF001
        name = str(target).replace(".", "::", 1)
        return name.partition("::")[0] in _OF_TORCH or is_custom_operator(name.partition(".")[0])
    module = getattr(target, "__module__", None) or ""
    return module.partition(".")[0] in {"torch", "_operator", "operator", "builtins", "math", ""}


def _is_fake(value: Any) -> bool:
    return isinstance(value, torch._subclasses.FakeTensor)  # noqa: SLF001


def _has_symbols(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and any(isinstance(size, torch.SymInt) for size in value.shape)


def _first_with_symbols(model: torch.fx.GraphModule) -> torch.fx.Node | None:
    calls = (node for node in model.graph.nodes if node.op in {"call_function", "call_method"})
    return next((node for node in calls if _has_symbols(node.meta.get("example_value"))), None)


def _place(node: torch.fx.Node | None) -> str:
    source = source_of(node) if node is not None else ""
    return f"{source}: " if source else ""
