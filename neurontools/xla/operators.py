"""Operator metadata for the recorder: torch's schemas, and corrections where a schema is incomplete."""

# ruff: noqa: SLF001
# Torch's private API.

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

import torch

from neurontools.base.interrupts import InterruptHold

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Kernel = Callable[..., Any]

_operators: dict[Any, Operator] = {}
BOUND_OVERLOADS = frozenset(
    {
        "mm", "addmm", "bmm", "baddbmm", "convolution",
        "add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor", "pow.Tensor_Scalar", "maximum", "where.self",
        "neg", "exp", "log", "sqrt", "rsqrt", "sgn", "tanh", "sigmoid", "relu", "silu", "gelu",
        "sum", "sum.dim_IntList", "mean", "mean.dim",
        "_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data",
        "native_layer_norm", "native_batch_norm", "embedding",
        "ones_like", "zeros_like", "clone", "cat", "stack",
        "_foreach_add.List", "_foreach_sqrt", "_foreach_add_.List", "_foreach_add_.Scalar", "_foreach_mul_.List",
        "_foreach_mul_.Scalar", "_foreach_div_.Scalar", "_foreach_lerp_.Scalar", "_foreach_addcmul_.Scalar",
        "_foreach_addcdiv_.Scalar",
    }
)  # fmt: skip
"""Overloads of aten that are called through torch's bindings."""
_own_kernels: dict[str, Callable[..., Any]] = {}


def is_constant(value: Any) -> bool:
    """Return whether a scalar is a constant of the graph: None, 0, 1 and -1; all other numbers become its inputs.

    torch_xla's rule (IsSpecialScalar in torch/csrc/lazy/core/tensor_util.cpp), for ints and floats alike. -0.0 becomes
    an input here: as part of a key it would be equal to 0.
    """
    if value.__class__ is complex:
        return False
    if value in _CONSTANTS:
        return bool(value) or math.copysign(1, value.real) > 0
    return value is None


class Kind(Enum):
    """How a parameter is recorded."""

    __hash__ = object.__hash__  # an Enum's own is Python and looked up for each argument of a call

    TENSOR = "tensor"
    OPTIONAL_TENSOR = "optional tensor"
    TENSOR_LIST = "tensor list"
    SCALAR = "scalar"
    FIXED_SCALAR = "fixed scalar"
    SCALAR_LIST = "scalar list"
    CONSTANT = "constant"
    LIST = "list"
    DEVICE = "device"
    IGNORED = "ignored"
    GENERATOR = "generator"
    UNSUPPORTED = "unsupported"


_TYPES = {
    Kind.TENSOR: "Tensor",
    Kind.SCALAR: "number float",
    Kind.DEVICE: "Device",
    Kind.CONSTANT: "Layout int bool str ScalarType MemoryFormat SymInt",
    Kind.GENERATOR: "Generator",
    Kind.TENSOR_LIST: "List[Tensor] List[Optional[Tensor]]",
    Kind.SCALAR_LIST: "List[number]",
    Kind.LIST: "List[int] List[float] List[bool] List[str]",
}
_KINDS = {name: kind for kind, names in _TYPES.items() for name in names.split()}
_IGNORED_NAMES = {"pin_memory", "non_blocking", "layout"}
# These compute a shape from their scalars, so the scalars' values have to be part of the trace. Custom operators may.
_SHAPED_BY_SCALARS = {"aten::arange", "aten::range"}
_CONSTANTS = frozenset({0, 1, -1})
# Those that torch's fallbacks for conjugate and negative views pass through to the device (ConjugateFallback.cpp).
_WITH_PENDING_BITS = {
    "clone", "copy_", "_conj_physical", "neg_", "mm", "addmm", "addmm_", "bmm", "baddbmm", "baddbmm_", "dot", "vdot",
    "linalg_solve_triangular",
}  # fmt: skip
_OVERWRITING = {"aten::copy_", "aten::fill_", "aten::zero_", "neurontools::recv_"}
_OWN_NAMESPACES = ("aten::", "prims::", "neurontools::")
# Running statistics are updated in place, which these schemas do not say.
_HIDDEN_WRITES = {
    "aten::native_batch_norm": ("running_mean", "running_var"),
    "aten::batch_norm_update_stats": ("running_mean", "running_var"),
}


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of an operator. `default` is only meaningful where `has_default` is set.

    `overwritten`: all of it is written, whatever it contains.
    """

    name: str
    kind: Kind
    keyword_only: bool
    has_default: bool
    default: Any
    written: bool
    overwritten: bool


@dataclass(frozen=True, slots=True, eq=False)
class Operator:
    """An operator overload as the recorder sees it.

    Args:
        index: number in the trace cache's keys.
        overload: what is recorded and executed.
        graph_name: its name in graphs: aten.mm.default.
        parameters: in schema order.
        returns_parameter: position of the parameter that an in-place operator returns, or -1.
        single: whether it returns one tensor; if not, a tuple or list of tensors.
        returns_list: whether it returns a list of tensors.
        recordable: whether its result's shape depends on shapes alone and all of its types can be stored.
        random: whether it draws random numbers.
        pending_bits: whether torch hands it tensors whose conjugation or negation is still to be done.
    """

    index: int
    overload: Any
    graph_name: str
    parameters: tuple[Parameter, ...]
    returns_parameter: int
    single: bool
    returns_list: bool
    recordable: bool
    random: bool
    pending_bits: bool

    @property
    def name(self) -> str:
        """The name as in torch_xla's counters: aten::mm."""
        return str(self.overload._schema.name)

    def __str__(self) -> str:
        return self.graph_name


def operator_of(overload: Any) -> Operator:
    """Return the metadata of an operator overload."""
    known = _operators.get(overload)
    if known is None:
        known = _operators[overload] = _read(overload, len(_operators))
    return known


def call_arguments(operator: Operator, values: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
    """Return values, one per parameter, as positional and keyword arguments."""
    args = []
    kwargs = {}
    for parameter, value in zip(operator.parameters, values, strict=True):
        if parameter.keyword_only:
            kwargs[parameter.name] = value
        else:
            args.append(value)
    return args, kwargs


def find_overload(qualified_name: str) -> Any:
    """Return the overload of a name like aten::add.Tensor, None if torch does not have it."""
    namespace, _, rest = qualified_name.partition("::")
    name, _, overload_name = rest.partition(".")
    with InterruptHold():  # torch takes any RuntimeError for a missing name
        try:
            return getattr(getattr(getattr(torch.ops, namespace), name), overload_name or "default")
        except AttributeError:
            return None


def _read(overload: Any, index: int) -> Operator:
    schema = overload._schema
    hidden = _HIDDEN_WRITES.get(schema.name, ())
    parameters = tuple(_parameter(schema.name, argument, hidden) for argument in schema.arguments)
    returns = [str(value.type) for value in schema.returns]
    tags = set(overload.tags)
    dynamic = torch.Tag.dynamic_output_shape in tags or torch.Tag.data_dependent_output in tags
    return Operator(
        index=index,
        overload=overload,
        graph_name=str(overload),
        parameters=parameters,
        returns_parameter=_returned(schema),
        single=returns == ["Tensor"],
        returns_list=returns == ["List[Tensor]"],
        recordable=(
            (not dynamic or schema.name == "aten::index")
            and not any(parameter.kind is Kind.UNSUPPORTED for parameter in parameters)
            and (returns == ["List[Tensor]"] or all(kind == "Tensor" for kind in returns))
            and not any(argument.is_out for argument in schema.arguments)
        ),
        random=torch.Tag.nondeterministic_seeded in tags,
        pending_bits=schema.name.removeprefix("aten::") in _WITH_PENDING_BITS,
    )


def _parameter(operator: str, argument: Any, hidden: tuple[str, ...]) -> Parameter:
    kind_name = str(argument.type)
    optional = kind_name.startswith("Optional[")
    if optional:
        kind_name = kind_name[len("Optional[") : -1]
    kind = _KINDS.get(kind_name, Kind.UNSUPPORTED)
    if kind is Kind.TENSOR and optional:
        kind = Kind.OPTIONAL_TENSOR
    if argument.name in _IGNORED_NAMES:
        kind = Kind.IGNORED
    if kind is Kind.SCALAR and (operator in _SHAPED_BY_SCALARS or not operator.startswith(_OWN_NAMESPACES)):
        kind = Kind.FIXED_SCALAR
    has_default = argument.has_default_value()
    written = (argument.alias_info is not None and argument.alias_info.is_write) or argument.name in hidden
    return Parameter(
        name=argument.name,
        kind=kind,
        keyword_only=argument.kwarg_only,
        has_default=has_default,
        default=argument.default_value if has_default else None,
        written=written,
        overwritten=written and operator in _OVERWRITING,
    )


def _returned(schema: Any) -> int:
    if len(schema.returns) != 1 or str(schema.returns[0].type) != "Tensor":
        return -1
    alias = schema.returns[0].alias_info
    if alias is None or not alias.is_write:
        return -1
    for position, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.before_set == alias.before_set:
            return position
    return -1


def call_directly(name: str, kernel: Callable[..., Any]) -> None:
    """Let graphs call the CPU kernel of an operator, such as `neurontools::all_gather`, without torch's dispatcher."""
    _own_kernels[name] = kernel


def function_of(overload: Any) -> Any:
    """Return the function that runs an operator overload."""
    own = _own_kernels.get(overload._schema.name)
    if own is not None:
        return own
    namespace, _, name = overload._schema.name.partition("::")
    overload_name = overload._schema.overload_name
    if namespace == "aten" and (f"{name}.{overload_name}" if overload_name else name) in BOUND_OVERLOADS:
        for functions in (torch._C._VariableFunctions, torch._C._nn):
            function = getattr(functions, name, None)
            if function is not None:
                return function
    return overload._op
