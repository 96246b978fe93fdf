"""Checks of a NEFF that another process compiled: the operators, arguments and memory of its graph.

The executable of a graph is generated Python over torch's CPU kernels. So an operator must be on the list
(`neff_operators`), its arguments must fit the operator's schema and its kernel (`neff_kernels`), a tensor must lie
within its buffer, and the results, which torch's meta kernels make without computing anything, must be the tensors that
the graph states. So the checks of the stated tensors hold for the tensors that the kernels get.
"""

from __future__ import annotations

import re
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch._ops import OpOverload

from neurontools.base.interrupts import is_of_handler
from neurontools.base.units import format_size
from neurontools.compiler.graph import GraphError, Lifted, Node, Symbol, View, reads
from neurontools.compiler.limits import scratch_bytes
from neurontools.compiler.work import flops
from neurontools.xla.accelerator import DeviceError
from neurontools.xla.custom_op_graph import operators_of, qualified_name
from neurontools.xla.execution import overload_of
from neurontools.xla.graph_values import load_symbol
from neurontools.xla.memory import host_limit
from neurontools.xla.neff_kernels import ATEN, COLLECTIVES, TEXTS, fits_kernel, true_results
from neurontools.xla.operators import Kind, Operator, Parameter, operator_of

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping, Sequence

    from neurontools.compiler.graph import Arg, Graph

_NAME = re.compile(r"[a-z_]\w*\.[A-Za-z_]\w*\.\w+")
_LISTS = {Kind.TENSOR_LIST: (View,), Kind.SCALAR_LIST: (int, float, Lifted), Kind.LIST: (int, float)}
_SYMBOLS = {"ScalarType": "dtype", "Layout": "layout", "MemoryFormat": "memory_format"}
_LAYOUTS = ("strided",)
_MEMORY_FORMATS = ("contiguous_format", "preserve_format", "channels_last", "channels_last_3d")
_LARGEST_ITEM = (1 << 31) - 1  # of a list: torch multiplies strides, dilations and sizes without a check
_MOST_OPERATIONS = 10**14  # of one call, which cannot be interrupted
_PER_ELEMENT = 100  # operations that take as long as to read or write an element
# Results in another order in memory than the meta kernel's, and results that only the gradient reads.
_OTHER_STRIDES = frozenset({"_linalg_svd", "max_unpool2d", "nonzero_static"})
_FIRST_RESULT_ONLY = frozenset({"_embedding_bag", "_embedding_bag_forward_only"})


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


def true_call_results(graph: Graph, node: Node, scalars: Sequence[float]) -> list[Any] | None:
    """Return the results of a call as meta tensors; None where it returns an argument.

    Args:
        graph: has the buffers of the call's tensors.
        node: the call.
        scalars: values of the graph's scalar inputs.

    Raises:
        ValueError: the call is not valid.
        DeviceError: it is none of an operator that a NEFF may call.
    """
    return _Checker(graph, scalars, "the graph").true_results(node)


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
        self._made: dict[Any, list[Any]] = {}

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
            values = _named_arguments(operator, node)
            self._check_views(node)
            self._check_call(operator, node, values)
        except ValueError as error:
            if is_of_handler(error):
                raise
            raise DeviceError(
                f"{self._name} has an invalid call of {node.op}: {error}", "compile the model again"
            ) from error
        self._known.update(view.slot for view, _ in sound_results(node, node.results))

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

    def true_results(self, node: Node) -> list[Any] | None:
        """Return the results of a call as meta tensors; None where it returns an argument."""
        operator = self._operator(node)
        values = _named_arguments(operator, node)
        for view in reads(node):
            check_view(self._graph, view)
        return None if operator.returns_parameter >= 0 else self._make(operator, node, values)

    def _check_call(self, operator: Operator, node: Node, values: Mapping[str, Arg]) -> None:
        """Check what the call does with its tensors, without computing it."""
        name = _plain_name(node.op)
        numbers = {
            key: self._scalars[value.index] if isinstance(value, Lifted) else value
            for key, value in values.items()
        }
        try:
            fits = fits_kernel(name, numbers)
        except Exception as error:  # torch's kernels in Python raise any
            if is_of_handler(error):
                raise
            reason = str(error).partition("\n")[0]
            raise ValueError(f"its kernel does not check these arguments: {reason}") from error
        if not fits:
            raise ValueError("its kernel does not check these arguments")
        operations = _operations(node, numbers)
        if operations > _MOST_OPERATIONS:
            raise ValueError(f"it takes {operations:.1e} operations, the limit is {_MOST_OPERATIONS:.0e}")
        if operator.returns_list:
            _check_count(name, node, numbers)
        made = self._results(operator, node, numbers)
        if operator.returns_parameter >= 0:
            changed = node.args[operator.returns_parameter]
            assert isinstance(changed, View)
            if node.results != (changed,) or not is_made(self._graph, changed, made[0], in_place=True):
                raise ValueError("it changes another tensor than the graph states")
        elif node.results or any(isinstance(tensor, torch.Tensor) for tensor in made):
            self._check_results(node, made)

    def _check_results(self, node: Node, made: Sequence[Any]) -> None:
        """Check that the results are the tensors that the graph states."""
        if len(made) != len(node.results):
            raise ValueError(f"it returns {len(made)} tensors, not {len(node.results)}")
        for view, tensor in sound_results(node, made):
            if not is_made(self._graph, view, tensor, any_order=_plain_name(node.op) in _OTHER_STRIDES):
                raise ValueError(f"it returns {_described(tensor)}, not what the graph states")

    def _results(self, operator: Operator, node: Node, values: Mapping[str, Any]) -> list[Any]:
        """Return the results of a call as meta tensors; equal calls are made once."""
        slots: dict[int, int] = {}
        key = (
            node.op,
            *(_shape_of(arg, slots) for arg in node.args),
            *((name, _shape_of(arg, slots)) for name, arg in node.kwargs),
        )
        made = self._made.get(key)
        if made is None:
            made = self._made[key] = self._make(operator, node, values)
        return made

    def _make(self, operator: Operator, node: Node, values: Mapping[str, Any]) -> list[Any]:
        kwargs = {name: self._meta(arg) for name, arg in node.kwargs}
        if any(parameter.kind is Kind.DEVICE for parameter in operator.parameters):
            kwargs["device"] = torch.device("meta")
        try:
            outcome = operator.overload(*map(self._meta, node.args), **kwargs)
        except Exception as error:  # torch's kernels in Python raise any
            if is_of_handler(error):
                raise
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            if isinstance(error, NotImplementedError):
                reason = "the size of its results is not known in advance"
            raise ValueError(reason) from error
        results = outcome if isinstance(outcome, list | tuple) else () if outcome is None else (outcome,)
        return true_results(_plain_name(node.op), values, results)

    def _meta(self, arg: Arg) -> Any:
        match arg:
            case View():
                dtype = getattr(torch, arg.dtype)
                whole = torch.empty(
                    self._graph.slots[arg.slot].nbytes // dtype.itemsize, dtype=dtype, device="meta"
                )
                return whole.as_strided(arg.shape, arg.strides, arg.offset)
            case Lifted():
                return self._scalars[arg.index]
            case Symbol():
                return load_symbol(arg)
            case tuple():
                return [self._meta(item) for item in arg]
        return arg


def _plain_name(op: str) -> str:
    return op.split(".")[1].rstrip("_")


def sound_results(node: Node, made: Sequence[Any]) -> Iterator[tuple[View, Any]]:
    """Yield the views of the results that other calls may read, each with the tensor that was made for it."""
    count = 1 if _plain_name(node.op) in _FIRST_RESULT_ONLY else len(node.results)
    for view, tensor in zip(node.results[:count], made, strict=False):
        if view is not None:
            yield view, tensor


def _shape_of(arg: Arg, slots: dict[int, int]) -> Any:
    """Return an argument with the order in which the call names its buffers in place of their numbers."""
    if isinstance(arg, View):
        return (slots.setdefault(arg.slot, len(slots)), arg.dtype, arg.shape, arg.strides, arg.offset)
    if isinstance(arg, tuple):
        return tuple(_shape_of(item, slots) for item in arg)
    return type(arg), arg


def is_made(
    graph: Graph, view: View, tensor: Any, *, in_place: bool = False, any_order: bool = False
) -> bool:
    """Return whether a view of the graph is that result of a call.

    Args:
        graph: the graph.
        view: the view.
        tensor: the result, on whatever device, or something else for a result that is not a tensor.
        in_place: whether the result is an argument that the call changes.
        any_order: whether the order in memory is not known.
    """
    if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
        return False
    if (getattr(torch, view.dtype), view.shape) != (tensor.dtype, tuple(tensor.shape)):
        return False
    steps = zip(view.shape, view.strides, tensor.stride(), strict=True)
    if not any_order and tensor.numel() and any(size > 1 and stride != true for size, stride, true in steps):
        return False
    return in_place or (
        view.offset == tensor.storage_offset()
        and graph.slots[view.slot].nbytes == tensor.untyped_storage().nbytes()
    )


def _described(tensor: Any) -> str:
    if not isinstance(tensor, torch.Tensor):
        return "no tensor"
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def _operations(node: Node, values: Mapping[str, Any]) -> int:
    """Return about how many operations a call takes."""
    views = (*reads(node), *(view for view in node.results if view is not None))
    elements = sum(prod(view.shape) for view in views)
    window = values.get("kernel_size", ())
    factor = prod(max(1, abs(size)) for size in window) if isinstance(window, tuple) else 1
    if "dist" in node.op or "margin" in node.op:
        factor *= max((size for view in views for size in view.shape), default=1)
    if "mvlgamma" in node.op:
        factor *= values["p"]
    return max(flops(node), _PER_ELEMENT * elements * factor)


def _check_count(name: str, node: Node, values: Mapping[str, Any]) -> None:
    """Check the number of tensors that a call returns, before even a meta kernel makes them."""
    view, dim = values.get("self"), values.get("dim", 0)
    if not isinstance(view, View) or "split_with_sizes" in name:
        return
    size = view.shape[dim] if -len(view.shape) <= dim < len(view.shape) else 0
    part = values.get("split_size", 1) if "split" in name else 1
    if part > 0 and -(-size // part) > max(1, len(node.results)):
        raise ValueError(f"it returns {-(-size // part)} tensors, not {len(node.results)}")


def _is_listed(op: str, custom: Container[str]) -> bool:
    if not _NAME.fullmatch(op):
        return False
    namespace, name, _ = op.split(".")
    if namespace == "aten":
        return name in ATEN or name.removesuffix("_").removeprefix("_foreach_") in ATEN
    return name in COLLECTIVES if namespace == "neurontools" else qualified_name(op) in custom


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
    return frozenset(
        name for name in named if name == "complex64" or not re.match(r"q|c|bits|float4|u?int[1-7]$", name)
    )


def _named_arguments(operator: Operator, node: Node) -> dict[str, Arg]:
    """Return the arguments by name, with defaults, checked against the operator's schema.

    Raises:
        ValueError: they do not fit it. Their names become part of generated code.
    """
    positional = [parameter for parameter in operator.parameters if not parameter.keyword_only]
    named = {parameter.name: parameter for parameter in operator.parameters if parameter.keyword_only}
    names = [name for name, _ in node.kwargs]
    if len(node.args) > len(positional) or len(set(names)) < len(names) or not set(names) <= named.keys():
        raise ValueError("it does not have these parameters")
    given = {parameter.name: arg for parameter, arg in zip(positional, node.args, strict=False)}
    given |= dict(node.kwargs)
    types = {argument.name: str(argument.real_type) for argument in operator.overload._schema.arguments}  # noqa: SLF001
    values: dict[str, Arg] = {}
    for parameter in operator.parameters:
        if parameter.name not in given:
            if not parameter.has_default:
                raise ValueError("an argument is missing")
            values[parameter.name] = parameter.default
        elif not _fits(parameter, given[parameter.name], types[parameter.name]):
            raise ValueError(f"argument {parameter.name} is {_shown(given[parameter.name])}")
        else:
            values[parameter.name] = given[parameter.name]
    return values


def _fits(parameter: Parameter, value: Arg, type_name: str) -> bool:
    if value is None:
        return type_name.startswith("Optional[") or parameter.kind is Kind.DEVICE
    match parameter.kind:
        case Kind.TENSOR | Kind.OPTIONAL_TENSOR:
            return isinstance(value, View)
        case Kind.TENSOR_LIST | Kind.SCALAR_LIST | Kind.LIST:
            return isinstance(value, tuple) and all(
                _fits_list(parameter.kind, item, type_name) for item in value
            )
        case Kind.SCALAR | Kind.FIXED_SCALAR:
            return isinstance(value, bool | int | float | Lifted)
        case Kind.CONSTANT | Kind.IGNORED:
            return _is_constant(parameter.name, value, type_name.removeprefix("Optional[").removesuffix("]"))
    return False


def _fits_list(kind: Kind, item: Arg, type_name: str) -> bool:
    if item is None:
        return "Optional[Tensor]" in type_name
    is_small = not isinstance(item, int) or abs(item) <= _LARGEST_ITEM
    return isinstance(item, _LISTS[kind]) and is_small


def _is_constant(name: str, value: Arg, type_name: str) -> bool:
    match type_name:
        case "str":
            pattern = TEXTS.get(name)
            return pattern is not None and isinstance(value, str) and re.fullmatch(pattern, value) is not None
        case "bool":
            return isinstance(value, bool)
        case "int" | "SymInt":
            return isinstance(value, int)
    valid = {"ScalarType": _dtypes(), "Layout": _LAYOUTS, "MemoryFormat": _MEMORY_FORMATS}.get(type_name, ())
    return isinstance(value, Symbol) and value.kind == _SYMBOLS.get(type_name) and value.name in valid


def _shown(value: Arg) -> str:
    return "a tensor" if isinstance(value, View) else repr(value)[:60]
