"""Checks of a NEFF that another process compiled: the operators, arguments and memory of its graph.

The executable of a graph is generated Python over torch's CPU kernels. So an operator must be on the list
(`neff_operators`), its arguments must fit the operator's schema, a tensor must lie within its buffer, and a result must
not be much larger than the graph states.
"""

from __future__ import annotations

import re
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves

from neurontools.base.units import format_size
from neurontools.compiler.graph import GraphError, Lifted, Node, Symbol, View, reads
from neurontools.compiler.graph_memory import scratch_bytes
from neurontools.compiler.graph_nodes import contiguous_strides
from neurontools.xla.accelerator import DeviceError
from neurontools.xla.custom_op_graph import operators_of, qualified_name
from neurontools.xla.execution import overload_of
from neurontools.xla.graph_values import load_symbol
from neurontools.xla.memory import host_limit
from neurontools.xla.neff_operators import ATEN, COLLECTIVES, GUARDED, NEEDS_CHANNELS, TEXTS
from neurontools.xla.operators import Kind, Operator, Parameter, operator_of

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from neurontools.compiler.graph import Arg, Graph

_NAME = re.compile(r"[a-z_]\w*\.[A-Za-z_]\w*\.\w+")
_SLACK_BYTES = 1 << 20  # torch's meta kernels sometimes return more than the CPU kernels, such as statistics
_ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"
_BATCH_NORM = ("weight", "running_mean", "running_var", "save_mean", "save_invstd")
_LISTS = {Kind.TENSOR_LIST: (View,), Kind.SCALAR_LIST: (int, float, Lifted), Kind.LIST: (int, float)}
_SYMBOLS = (torch.dtype, torch.layout, torch.memory_format)


def check_graph(graph: Graph, inputs: Sequence[View], scalars: Sequence[float], name: str) -> None:
    """Check the graph of a NEFF that another process compiled.

    Args:
        graph: the graph.
        inputs: the contents of its input slots.
        scalars: values of its scalar inputs.
        name: the name of the NEFF in messages.

    Raises:
        DeviceError: it calls an operator that a NEFF may not call, or no compiler produces such a graph.
    """
    checker = _Checker(graph, scalars, name)
    checker.check_memory(inputs)
    for node in graph.nodes:
        checker.check_call(node)
    checker.check_outputs()


def unlisted_operators(graph: Graph) -> list[str]:
    """Return the operators of a graph that a NEFF of another process may not call."""
    custom = operators_of(graph.libraries)
    return sorted({node.op for node in graph.nodes if not _is_listed(node.op, custom)})


class _Checker:
    def __init__(self, graph: Graph, scalars: Sequence[float], name: str) -> None:
        self._graph = graph
        self._scalars = scalars
        self._name = name
        self._custom = operators_of(graph.libraries)
        self._known = set(graph.inputs)

    def check_memory(self, inputs: Sequence[View]) -> None:
        """Check that the peak memory of the graph, without its inputs, is within the limit of this computer."""
        graph = self._graph
        inside = {view.slot for view in inputs if graph.slots[view.slot].nbytes <= _extent_bytes(view)}
        kept = {*graph.inputs, *graph.outputs} - inside
        peak = scratch_bytes(graph) + sum(graph.slots[slot].nbytes for slot in kept)
        if peak > host_limit():
            raise DeviceError(
                f"{self._name} needs {format_size(peak)} of host memory, the limit is {format_size(host_limit())}",
                "use a smaller model or batch, or raise NEURONTOOLS_HOST_MEMORY",
            )

    def check_call(self, node: Node) -> None:
        """Check the operator, arguments and results of one call."""
        operator = self._operator(node)
        try:
            _check_arguments(operator, node)
            self._check_views(node)
            if operator.overload.namespace == "aten":
                self._check_sizes(operator, node)
        except ValueError as error:
            raise DeviceError(
                f"{self._name} has an invalid call of {node.op}: {error}", "compile the model again"
            ) from error
        self._known.update(view.slot for view in node.results if view is not None)

    def check_outputs(self) -> None:
        """Check that the graph computes the tensors that it returns."""
        if not self._known.issuperset(self._graph.outputs):
            raise DeviceError(
                f"{self._name} returns tensors that it does not make", "compile the model again"
            )

    def _operator(self, node: Node) -> Operator:
        if not _is_listed(node.op, self._custom):
            raise DeviceError(
                f"{self._name} calls {node.op!r}, which a NEFF of another process may not call",
                "compile the model in this process, or load the custom-operator library that defines the operator",
            )
        try:
            overload = overload_of(node)
        except GraphError as error:
            raise DeviceError(f"{self._name}: {error.message}", error.remedy) from error
        if not isinstance(overload, OpOverload) or not operator_of(overload).recordable:
            raise DeviceError(
                f"{self._name} calls {node.op!r}, which cannot be part of a graph", "compile the model again"
            )
        return operator_of(overload)

    def _check_views(self, node: Node) -> None:
        """Check that tensors lie within existing buffers."""
        for view in reads(node):
            if view.slot not in self._known:
                raise ValueError(f"buffer {view.slot} does not exist yet")
        for view in (*reads(node), *(view for view in node.results if view is not None)):
            check_view(self._graph, view)

    def _check_sizes(self, operator: Operator, node: Node) -> None:
        """Check, without computing it, that a result is not much larger than the graph states."""
        name = node.op.split(".")[1].rstrip("_")
        if name in GUARDED and not self._fits_kernel(name, operator, node):
            raise ValueError("its kernel does not check these arguments")
        kwargs = {name: self._meta(arg) for name, arg in node.kwargs}
        if any(parameter.kind is Kind.DEVICE for parameter in operator.parameters):
            kwargs["device"] = torch.device("meta")
        try:
            made = tree_leaves(operator.overload(*map(self._meta, node.args), **kwargs))
        except NotImplementedError:
            made = []  # the listed operators without a meta kernel return no more than they take
        except (RuntimeError, TypeError, IndexError) as error:
            raise ValueError(str(error).partition("\n")[0]) from error
        new = {view.slot for view in node.results if view is not None} - self._known
        stated = sum(self._graph.slots[slot].nbytes for slot in new)
        nbytes = sum(item.numel() * item.itemsize for item in made if isinstance(item, torch.Tensor))
        if operator.returns_parameter < 0 and new and nbytes > 2 * stated + _SLACK_BYTES:
            raise ValueError("its result is larger than the graph states")
        if name in NEEDS_CHANNELS:
            first, *others = reads(node)
            if len(first.shape) < 2 or any(view.shape not in {(first.shape[1],), (0,)} for view in others):
                raise ValueError("its tensors differ in the number of channels")

    def _fits_kernel(self, name: str, operator: Operator, node: Node) -> bool:
        values: dict[str, Any] = dict(node.kwargs)
        values |= {
            parameter.name: arg for parameter, arg in zip(operator.parameters, node.args, strict=False)
        }
        try:
            return _fits_kernel(name, values)
        except (RuntimeError, TypeError) as error:
            raise ValueError(str(error).partition("\n")[0]) from error

    def _meta(self, arg: Arg) -> Any:
        match arg:
            case View():
                return _empty(arg)
            case Lifted():
                return self._scalars[arg.index]
            case Symbol():
                return load_symbol(arg)
            case tuple():
                return [self._meta(item) for item in arg]
        return arg


def _is_listed(op: str, custom: Container[str]) -> bool:
    if not _NAME.fullmatch(op):
        return False
    namespace, name, _ = op.split(".")
    if namespace == "aten":
        return name in ATEN or name.removesuffix("_").removeprefix("_foreach_") in ATEN
    return name in COLLECTIVES if namespace == "neurontools" else qualified_name(op) in custom


def _fits_kernel(name: str, values: dict[str, Any]) -> bool:
    """Return whether an operator has arguments with which its kernel stays within its tensors; it does not check them.

    Args:
        name: of the operator.
        values: its arguments by name.
    """
    match name:
        case "nll_loss_backward":  # without a reduction, the kernel does not check the classes
            return values["reduction"] in {1, 2}
        case "embedding_dense_backward":  # the kernel counts by index without checking it
            return values["scale_grad_by_freq"] is False
        case "native_layer_norm_backward":
            shape, normalized = values["input"].shape, len(values["normalized_shape"])
            rows = prod(shape[: len(shape) - normalized])
            return values["grad_out"].shape == shape and all(
                prod(view.shape) == rows and view.strides == contiguous_strides(view.shape)
                for view in (values["mean"], values["rstd"])
            )
        case "native_batch_norm_backward":
            shape, used = values["input"].shape, "save" if values["train"] else "running"
            channels = {each: values[each] for each in _BATCH_NORM}
            return (
                values["grad_out"].shape == shape
                and len(shape) > 1
                and all(view is None or view.shape == (shape[1],) for view in channels.values())
                and all(view is not None for each, view in channels.items() if each.startswith(used))
            )
        case "convolution_backward":
            settings = ("stride", "padding", "dilation", "transposed", "output_padding", "groups")
            tensors = (_empty(values["input"]), _empty(values["weight"]), None)
            made = torch.ops.aten.convolution.default(*tensors, *(values[each] for each in settings))
            return bool(tuple(made.shape) == values["grad_output"].shape)
    return name.removesuffix("_backward") == _ATTENTION and _fits_attention(values)


def _fits_attention(values: dict[str, Any]) -> bool:
    """Return whether the tensors of attention, or of its gradient, have shapes that fit, and rows without gaps.

    The kernels read rows as if their numbers were next to each other: a row that repeats one number is too short.
    """
    query, key, value = (values[name] for name in ("query", "key", "value"))
    results = [values[name] for name in ("grad_out", "out") if name in values]
    sums, mask = values.get("logsumexp"), values.get("attn_mask")
    return (
        len(query.shape) == len(key.shape) == 4
        and all(view.shape == query.shape for view in results)
        and value.shape == key.shape
        and (query.shape[:2], query.shape[3]) == (key.shape[:2], key.shape[3])
        and all(view.strides[3] or view.shape[3] == 1 for view in (query, key, value, *results))
        and (sums is None or sums.shape == query.shape[:3])
        and (mask is None or _broadcasts(mask.shape, (*query.shape[:3], key.shape[2])))
    )


def _broadcasts(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    return len(shape) == len(target) and all(
        size in {1, full} for size, full in zip(shape, target, strict=True)
    )


def _empty(view: View) -> torch.Tensor:
    return torch.empty_strided(view.shape, view.strides, dtype=getattr(torch, view.dtype), device="meta")


def check_view(graph: Graph, view: View) -> None:
    """Check that a tensor has a data type of the device and lies within its buffer.

    Raises:
        ValueError: it has another data type or reaches beyond its buffer.
    """
    dtype = getattr(torch, view.dtype, None)
    if not isinstance(dtype, torch.dtype) or view.dtype not in _dtypes():
        raise ValueError(f"data type {view.dtype!r}")
    if _extent_bytes(view) > graph.slots[view.slot].nbytes:
        raise ValueError(f"a tensor reaches beyond buffer {view.slot}")


def _extent_bytes(view: View) -> int:
    """Return the bytes from the start of a view's buffer to the view's last element."""
    if 0 in view.shape:
        return 0
    steps = sum((size - 1) * stride for size, stride in zip(view.shape, view.strides, strict=True))
    itemsize: int = getattr(torch, view.dtype).itemsize
    return (1 + view.offset + steps) * itemsize


@cache
def _dtypes() -> frozenset[str]:
    named = {name for name in dir(torch) if isinstance(getattr(torch, name), torch.dtype)}
    return frozenset(name for name in named if name == "complex64" or not re.match(r"q|c|bits", name))


def _check_arguments(operator: Operator, node: Node) -> None:
    """Check that the arguments fit the operator's schema: their names become part of generated code."""
    positional = [parameter for parameter in operator.parameters if not parameter.keyword_only]
    named = {parameter.name: parameter for parameter in operator.parameters if parameter.keyword_only}
    names = [name for name, _ in node.kwargs]
    if len(node.args) > len(positional) or len(set(names)) < len(names) or not set(names) <= named.keys():
        raise ValueError("it does not have these parameters")
    given = {parameter.name for parameter in positional[: len(node.args)]} | set(names)
    if any(not parameter.has_default and parameter.name not in given for parameter in operator.parameters):
        raise ValueError("an argument is missing")
    types = {argument.name: str(argument.type) for argument in operator.overload._schema.arguments}  # noqa: SLF001
    pairs = [
        *zip(positional, node.args, strict=False),
        *((named[name], value) for name, value in node.kwargs),
    ]
    for parameter, value in pairs:
        if not _fits(parameter, value, types[parameter.name]):
            raise ValueError(f"argument {parameter.name} is {_shown(value)}")
    returns = len(operator.overload._schema.returns)  # noqa: SLF001
    if not operator.returns_list and operator.returns_parameter < 0 and len(node.results) != returns:
        raise ValueError(f"it returns {returns} tensors, not {len(node.results)}")


def _fits(parameter: Parameter, value: Arg, type_name: str) -> bool:
    if value is None:
        return parameter.kind is not Kind.TENSOR
    match parameter.kind:
        case Kind.TENSOR | Kind.OPTIONAL_TENSOR:
            return isinstance(value, View)
        case Kind.TENSOR_LIST | Kind.SCALAR_LIST | Kind.LIST:
            accepted = _LISTS[parameter.kind]
            return isinstance(value, tuple) and all(
                item is None or isinstance(item, accepted) for item in value
            )
        case Kind.SCALAR | Kind.FIXED_SCALAR:
            return isinstance(value, bool | int | float | Lifted)
        case Kind.CONSTANT if "str" in type_name:
            pattern = TEXTS.get(parameter.name)
            return pattern is not None and isinstance(value, str) and re.fullmatch(pattern, value) is not None
        case Kind.CONSTANT | Kind.IGNORED:
            return isinstance(value, bool | int) or (isinstance(value, Symbol) and _is_constant(value))
    return False


def _is_constant(symbol: Symbol) -> bool:
    return symbol.kind != "device" and isinstance(getattr(torch, symbol.name, None), _SYMBOLS)


def _shown(value: Arg) -> str:
    return "a tensor" if isinstance(value, View) else repr(value)[:60]
