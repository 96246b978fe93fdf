"""The backend `neuron` of torch.compile: each graph of TorchDynamo becomes one graph of the device.

AOTAutograd splits training into a forward and a backward graph. A graph records its operators when it runs first, so
that it reaches the compiler, the cache and the tools like any recorded graph. Later calls execute its program.
"""

# ruff: noqa: SLF001
# Torch's private API.

from __future__ import annotations

import functools
import logging
import re
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import default_partition, has_recomputable_ops, is_opaque_node
from torch._prims import rng_prims

from neurontools import env
from neurontools.errors import NeuronToolsError
from neurontools.native.activation import is_active
from neurontools.native.patches import register_on_device
from neurontools.native.selection import NEURON
from neurontools.xla import api
from neurontools.xla.accelerator import DeviceError
from neurontools.xla.call_sites import origin_of, source_of
from neurontools.xla.custom_op_graph import is_custom_operator
from neurontools.xla.device_name import triton_refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Runner = Callable[..., Any]
    Graphs = tuple[torch.fx.GraphModule, torch.fx.GraphModule]

_INPUTS = "inputs of torch.compile(backend='neuron')"
_BACKEND = "torch.compile(backend='neuron')"
_NO_COPIES = b"TORCH_NEURONX_DYNAMO_DISABLE_CPU_AUTOCOPY"
_CPU = torch.device("cpu")
_CONSTANT = "_tensor_constant"
_log = logging.getLogger("neurontools.native")
_NAMED = re.compile(r" \((\S+:\d+)\)$")
_TRITON = "triton_kernel_wrapper"
_OF_TORCH = frozenset(
    {"aten", "prim", "prims", "_c10d_functional", "c10d_functional", "_dtensor", "neurontools"}
)
_SETS_GRADIENTS = (torch._C._set_grad_enabled, torch.set_grad_enabled)
_TAG = "partitioner_tag"
_STATE = "rng_state_output"  # torch's name for the state of random numbers that a checkpoint draws again


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
    _install_random()
    _check_graph(model, inputs)
    for name, value in (("mode", mode), ("options", options)):
        if value and value != "default":
            _log.warning("torch.compile(backend='neuron') ignores %s=%r", name, value)
    if not _needs_autograd(model, inputs):
        run = _compile(model, inputs)
        return lambda *args: run(list(args))
    compile_training = aot_autograd(
        fw_compiler=_compile,
        bw_compiler=_compile_backward,
        partition_fn=_partition,
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
    run = api.engine().as_graph(graph, _INPUTS, _BACKEND, repeatable=_is_repeatable(graph), on_host=on_host)

    def run_boxed(args: list[Any]) -> Any:
        if arrays and env.is_one(_NO_COPIES):
            _check_devices(args, arrays)
        taken = [*args, *owned]
        args.clear()
        try:
            return run(taken)
        except NeuronToolsError as error:
            _add_source(error, graph)
            raise

    run_boxed._boxed_call = True  # type: ignore[attr-defined]
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

    run_and_copy._boxed_call = True  # type: ignore[attr-defined]
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


def _check_graph(model: torch.fx.GraphModule, inputs: Sequence[Any]) -> None:
    """Check that the device can run a graph.

    Raises:
        DeviceError: a shape is symbolic, or a call is a Triton kernel.
    """
    for node in model.graph.nodes:
        if node.op == "call_function" and _TRITON in str(getattr(node.target, "__name__", "")):
            reason, remedy = triton_refusal()
            raise DeviceError(f"{_source_prefix(node)}{reason}", remedy)
    if any(isinstance(value, torch.SymInt) for value in inputs) or any(map(_has_symbols, inputs)):
        raise DeviceError(
            f"{_source_prefix(_first_with_symbols(model))}{_BACKEND} does not support dynamic=True or dynamic dimensions",
            "use dynamic=False: each shape gets a graph of its own",
        )


def _is_repeatable(model: torch.fx.GraphModule) -> bool:
    """Return whether a graph only calls torch and custom operators in C++: other Python code has to run each time."""
    return all(map(_is_known_call, _targets(model)))


def _needs_autograd(model: torch.fx.GraphModule, inputs: Sequence[Any]) -> bool:
    """Return whether a graph may have a backward pass, or takes tensors that only AOTAutograd can unpack."""
    plain = all(
        type(value) in {torch.nn.Parameter, torch.Tensor} or isinstance(value, torch._subclasses.FakeTensor)
        for value in inputs
    )
    return (
        not plain or torch.is_grad_enabled() or any(target in _SETS_GRADIENTS for target in _targets(model))
    )


def _add_source(error: NeuronToolsError, graph: torch.fx.GraphModule) -> None:
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


def _is_known_call(target: Any) -> bool:
    if isinstance(target, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        name = str(target).replace(".", "::", 1)
        return name.partition("::")[0] in _OF_TORCH or is_custom_operator(name.partition(".")[0])
    module = getattr(target, "__module__", None) or ""
    return module.partition(".")[0] in {"torch", "_operator", "operator", "builtins", "math", ""}


def _has_symbols(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and any(isinstance(size, torch.SymInt) for size in value.shape)


def _first_with_symbols(model: torch.fx.GraphModule) -> torch.fx.Node | None:
    calls = (node for node in model.graph.nodes if node.op in {"call_function", "call_method"})
    return next((node for node in calls if _has_symbols(node.meta.get("example_value"))), None)


def _source_prefix(node: torch.fx.Node | None) -> str:
    source = source_of(node) if node is not None else ""
    return f"{source}: " if source else ""


def _partition(
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
    return isinstance(target, torch._ops.OpOverload) and target.is_view


@functools.cache
def _install_random() -> None:
    """Let torch's operators that save and replay random numbers know the device, beside those that torch lists."""
    register_on_device(rng_prims.run_and_save_rng_state, _run_and_save)
    register_on_device(rng_prims.run_with_rng_state, _run_again)


def _run_and_save(index: int, operator: Any, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, Any]:
    return api.engine().rng_state(index, recorded=True), operator(*args, **kwargs)


def _run_again(index: int, state: torch.Tensor, operator: Any, *args: Any, **kwargs: Any) -> Any:
    engine = api.engine()
    current = engine.rng_state(index, recorded=True)
    engine.set_rng_state(index, state, recorded=True)
    outcome = operator(*args, **kwargs)
    engine.set_rng_state(index, current, recorded=True)
    return outcome
