"""The arithmetic of a NeuronCore on host tensors: `NEURONTOOLS_NUMERICS=device`.

An operator reads its tensors as float32, computes in float32 and rounds each result once, to the type in which it is
stored. `--auto-cast` also rounds the operands of the operators that it selects. Tensors keep the type that the program
sees; their values are limited to those of the stored type.

Sources: AWS Neuron documentation: "Trainium/Inferentia2 Architecture Guide for NKI" (engines compute in float32 and cast
from and to it; matrix products accumulate in float32), "Neuron Compiler CLI Reference Guide" (`--auto-cast`), "Mixed
Precision and Performance-accuracy Tuning" (inputs and outputs of a graph are not cast), "PyTorch NeuronX Environment
Variables" (stochastic rounding of all casts from FP32). torch_xla: csrc/dtype.cpp (stored types), csrc/aten_xla_type.cpp
and tensor_methods.cpp (a Python number takes the type of the tensor in the same operation).
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_map

from neurontools.numerics import FP8_E4M3, FP32, Format, decode, encode, round_number, round_to
from neurontools.xla.memory import meta_results
from neurontools.xla.numerics_settings import CastMode, NumericsSettings
from neurontools.xla.operators import Kind, Operator, Parameter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from neurontools.compiler.graph import Node

    Types = Sequence[torch.dtype | None]
    Cast = Callable[[torch.Tensor], torch.Tensor]


# ruff: noqa: SLF001
# Torch's private API.


_MOVES = {
    "alias", "cat", "clone", "constant_pad_nd", "copy_", "diagonal_scatter", "embedding", "expand_copy",
    "fill_", "flip", "gather", "index", "index_select", "masked_fill", "masked_fill_", "permute_copy", "repeat",
    "reflection_pad1d", "reflection_pad2d", "replication_pad1d", "replication_pad2d", "roll", "select_scatter",
    "slice_scatter", "split_with_sizes_copy", "stack", "tril", "tril_", "triu", "triu_", "unfold_copy", "where",
    "zero_", "_foreach_copy_", "_foreach_zero_", "_to_copy",
}  # fmt: skip
_OPERANDS = {
    "mm": "self mat2",
    "bmm": "self mat2",
    "addmm": "mat1 mat2",
    "addmm_": "mat1 mat2",
    "_addmm_activation": "mat1 mat2",
    "addbmm": "batch1 batch2",
    "baddbmm": "batch1 batch2",
    "baddbmm_": "batch1 batch2",
    "mv": "self vec",
    "addmv": "mat vec",
    "addmv_": "mat vec",
    "dot": "self tensor",
    "vdot": "self other",
    "linear": "input weight",
    "convolution": "input weight",
    "convolution_backward": "grad_output input weight",
    "_scaled_dot_product_flash_attention_for_cpu": "query key value",
    "_scaled_dot_product_flash_attention_for_cpu_backward": "grad_out query key value",
}
_NUMBERS = frozenset({"number", "Optional[number]", "List[number]"})
_ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"
_BACKWARD = "_backward"


class DeviceNumerics:
    """The arithmetic of one core.

    Args:
        settings: the rounding settings. With stochastic rounding, equal programs draw equal random numbers.
    """

    def __init__(self, settings: NumericsSettings) -> None:
        self.settings = settings
        self.generator: torch.Generator | None = None
        if settings.is_stochastic:
            self.generator = torch.Generator().manual_seed(settings.seed)

    def bind(self, operator: Operator, call: Node | None = None) -> Callable[..., Any]:
        """Return the function that runs an operator on host tensors.

        Args:
            operator: the operator.
            call: its call in a graph, for the types of the results; if None, the types are inferred.
        """
        rule = rule_of(operator)
        if rule.work is ValueUse.OUTSIDE:
            return operator.overload._op  # type: ignore[no-any-return]
        types = None
        if call is not None:
            types = tuple(None if view is None else getattr(torch, view.dtype) for view in call.results)
        return functools.partial(self._run, operator, rule, types)

    def upload(self, host: torch.Tensor) -> torch.Tensor:
        """Return data uploaded by the program, rounded to the nearest value of the stored type."""
        form = self._stored(host.dtype)
        if form is None or form.bits >= host.itemsize * 8:
            return host  # the device reads the bits of float8_e4m3fn as its own format
        return self._narrow(round_to(self._widen(host), form), host.dtype)

    def round_operand(self, values: torch.Tensor) -> torch.Tensor:
        """Return float32 values as an operator that `--auto-cast` selects reads them."""
        form = self.settings.cast_form
        return values if form is None else round_to(values, form, self.generator)

    def _run(self, operator: Operator, rule: CastRule, types: Types | None, *args: Any, **kwargs: Any) -> Any:
        parameters = operator.parameters
        named = {parameter.name: value for parameter, value in zip(parameters, args, strict=False)} | kwargs
        tensors = [tensor for value in named.values() for tensor in _tensors_in(value)]
        if not self._matters(rule, named, tensors):
            return operator.overload(*args, **kwargs)
        if rule.work is ValueUse.MAKES:
            return self._make(operator, named, operator.overload(*args, **kwargs))
        if types is None:
            types = _result_types(operator, args, kwargs)
        execution = _Execution(self, operator, rule, named)
        return execution.run(args, kwargs, types)

    def _matters(self, rule: CastRule, named: Mapping[str, Any], tensors: Sequence[torch.Tensor]) -> bool:
        """Return whether the results of a call may differ from those of torch's kernel."""
        dtypes = {tensor.dtype for tensor in tensors if tensor.is_floating_point()}
        wanted = {value for value in named.values() if isinstance(value, torch.dtype)}
        if rule.work is ValueUse.MOVES and len(dtypes | wanted) == 1 and len(dtypes) == 1:
            return False
        involved = {dtype for dtype in dtypes | wanted if dtype.is_floating_point}
        if involved - self.settings.stored.keys() or any(tensor.is_complex() for tensor in tensors):
            return False
        if self._stored(torch.float32) != FP32 or involved - {torch.float32}:
            return True
        mode = self.settings.cast_mode
        return (mode is CastMode.ALL and rule.work is ValueUse.COMPUTES) or (
            mode is CastMode.MATMULT and bool(rule.operands)
        )

    def _make(self, operator: Operator, named: Mapping[str, Any], outcome: Any) -> Any:
        """Round created or drawn values as uploaded data is rounded."""
        for parameter in operator.parameters:
            if parameter.written:
                for tensor in _tensors_in(named.get(parameter.name)):
                    tensor.copy_(self.upload(tensor))
        if operator.returns_parameter >= 0:
            return outcome
        return tree_map(
            lambda value: self.upload(value) if isinstance(value, torch.Tensor) else value, outcome
        )

    def _stored(self, dtype: torch.dtype) -> Format | None:
        return self.settings.stored.get(dtype)

    def _widen(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor as float32, with the same strides, even if it is expanded."""
        if tensor.dtype == torch.float32:
            return tensor
        strides = tensor.stride()
        if 0 in strides:
            shape = [1 if stride == 0 else size for size, stride in zip(tensor.shape, strides, strict=True)]
            single = torch.as_strided(tensor, shape, strides, tensor.storage_offset())
            return self._widen_dense(single).expand(tensor.shape)
        return self._widen_dense(tensor)

    def _widen_dense(self, tensor: torch.Tensor) -> torch.Tensor:
        if self._stored(tensor.dtype) == FP8_E4M3:
            return decode(tensor.view(torch.uint8), FP8_E4M3)
        return tensor.float()

    def _narrow(self, values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return rounded values as a tensor of the type that the program sees."""
        if self._stored(dtype) == FP8_E4M3:
            return encode(values, FP8_E4M3).to(torch.uint8).view(dtype)
        return values.to(dtype)

    def result_form(self, dtype: torch.dtype) -> Format:
        """Return the format that results of a type are rounded to."""
        stored = self.settings.stored[dtype]
        if stored == FP32 and self.settings.cast_mode is CastMode.ALL and self.settings.cast_form:
            return self.settings.cast_form
        return stored


def numerics_of(settings: NumericsSettings | None) -> DeviceNumerics | None:
    """Return the arithmetic of a core; None for that of the CPU."""
    return None if settings is None else DeviceNumerics(settings)


class _Execution:
    """One call of an operator that computes and rounds."""

    def __init__(
        self, numerics: DeviceNumerics, operator: Operator, rule: CastRule, named: Mapping[str, Any]
    ) -> None:
        self._numerics = numerics
        self._operator = operator
        self._rule = rule
        self._written: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._wide: dict[tuple[int, bool], torch.Tensor] = {}
        self._number_form = self._form_of_numbers(named)

    def run(self, args: Sequence[Any], kwargs: Mapping[str, Any], types: Types) -> Any:
        parameters = {parameter.name: parameter for parameter in self._operator.parameters}
        wide_args = [
            self._read(parameter, value)
            for parameter, value in zip(self._operator.parameters, args, strict=False)
        ]
        wide_kwargs = {name: self._read(parameters[name], value) for name, value in kwargs.items()}
        outcome = self._compute(wide_args, wide_kwargs)
        for tensor, wide in self._written:
            tensor.copy_(self._store(wide, tensor.dtype))
        if self._operator.returns_parameter >= 0:
            return args[self._operator.returns_parameter]
        if isinstance(outcome, torch.Tensor):
            return self._store(outcome, types[0])
        if outcome is None:
            return None
        return [self._store(value, dtype) for value, dtype in zip(outcome, types, strict=True)]

    def _compute(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        numerics = self._numerics
        if numerics.settings.cast_form is not None and is_attention(self._operator):
            return attention_with_casts(self._operator, numerics.round_operand, args, kwargs)
        return self._operator.overload(*args, **kwargs)

    def _read(self, parameter: Parameter, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._read_tensor(parameter, value)
        if isinstance(value, (list, tuple)) and any(isinstance(item, torch.Tensor) for item in value):
            return [None if item is None else self._read_tensor(parameter, item) for item in value]
        if isinstance(value, torch.dtype) and value.is_floating_point:
            return torch.float32
        if parameter.name in self._rule.numbers and self._number_form is not None:
            return tree_map(self._round_number, value)
        return value

    def _read_tensor(self, parameter: Parameter, tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_floating_point():
            return tensor
        numerics = self._numerics
        is_cast = self._is_cast(parameter, tensor)
        key = (id(tensor), is_cast)
        wide = self._wide.get(key)
        if wide is None:
            wide = numerics._widen(tensor)
            if is_cast:
                wide = numerics.round_operand(wide)
            self._wide[key] = wide
        if parameter.written and (
            tensor.dtype != torch.float32 or numerics.result_form(tensor.dtype) != FP32
        ):
            if wide is tensor:
                wide = self._wide[key] = tensor.clone()
            self._written.append((tensor, wide))
        return wide

    def _is_cast(self, parameter: Parameter, tensor: torch.Tensor) -> bool:
        settings = self._numerics.settings
        if settings.stored[tensor.dtype] != FP32 or is_attention(self._operator):
            return False
        if settings.cast_mode is CastMode.MATMULT:
            return parameter.name in self._rule.operands
        return settings.cast_mode is CastMode.ALL and self._rule.work is ValueUse.COMPUTES

    def _form_of_numbers(self, named: Mapping[str, Any]) -> Format | None:
        """Return the format of the Python numbers of a call: that of its tensors, None for float32."""
        forms = {
            self._numerics.settings.stored[tensor.dtype]
            for value in named.values()
            for tensor in _tensors_in(value)
            if tensor.is_floating_point()
        }
        return forms.pop() if len(forms) == 1 and forms != {FP32} else None

    def _round_number(self, value: Any) -> Any:
        if value.__class__ not in {int, float} or self._number_form is None:
            return value
        rounded = round_number(value, self._number_form)
        return value if rounded == value else rounded

    def _store(self, values: torch.Tensor | None, dtype: torch.dtype | None) -> Any:
        if values is None or dtype is None or not dtype.is_floating_point:
            return values
        form = self._numerics.result_form(dtype)
        rounded = round_to(values.float(), form, self._numerics.generator)
        return self._numerics._narrow(rounded, dtype)


def _tensors_in(value: Any) -> Sequence[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return (value,)
    if isinstance(value, (list, tuple)):
        return [item for item in value if isinstance(item, torch.Tensor)]
    return ()


def _result_types(operator: Operator, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Types:
    """Return the types of an operator's results, from torch's meta kernel or, without one, from its CPU kernel."""
    if operator.returns_parameter >= 0 or not operator.overload._schema.returns:
        return ()
    results = meta_results(operator, args, kwargs)
    if results is None:

        def copy(value: Any) -> Any:
            return value.clone() if isinstance(value, torch.Tensor) else value

        copied_args, copied_kwargs = tree_map(copy, (list(args), dict(kwargs)))
        results = operator.overload(*copied_args, **copied_kwargs)
    if isinstance(results, torch.Tensor):
        results = (results,)
    return tuple(None if result is None else result.dtype for result in results)


class ValueUse(Enum):
    """The way in which an operator uses values."""

    OUTSIDE = "views and operators that are not torch's: left as they are"
    MAKES = "creates values or draws them"
    MOVES = "moves values"
    COMPUTES = "computes in float32 and rounds its results"


@dataclass(frozen=True, slots=True)
class CastRule:
    """How an operator takes part in device numerics.

    Args:
        work: its use of values.
        operands: names of the parameters that are operands of the matrix engine.
        numbers: names of the parameters that are Python numbers of the tensors' type.
    """

    work: ValueUse
    operands: frozenset[str]
    numbers: frozenset[str]


@functools.cache
def rule_of(operator: Operator) -> CastRule:
    """Return the rule of an operator."""
    schema = operator.overload._schema
    namespace, _, name = schema.name.partition("::")
    numbers = (argument.name for argument in schema.arguments if str(argument.type) in _NUMBERS)
    operands = _OPERANDS.get(name, "") if namespace == "aten" else ""
    return CastRule(_work(operator, namespace, name), frozenset(operands.split()), frozenset(numbers))


def is_attention(operator: Operator) -> bool:
    """Return whether an operator is fused attention, forward or backward, which contains matrix products."""
    return operator.name.removeprefix("aten::").startswith(_ATTENTION)


def _work(operator: Operator, namespace: str, name: str) -> ValueUse:
    returns = operator.overload._schema.returns
    is_view = any(value.alias_info is not None and not value.alias_info.is_write for value in returns)
    if namespace not in {"aten", "prims"} or is_view:
        return ValueUse.OUTSIDE
    kinds = {parameter.kind for parameter in operator.parameters}
    has_tensors = bool(kinds & {Kind.TENSOR, Kind.TENSOR_LIST, Kind.OPTIONAL_TENSOR})
    if not has_tensors or (operator.random and not is_attention(operator)):
        return ValueUse.MAKES
    return ValueUse.MOVES if name in _MOVES else ValueUse.COMPUTES


def attention_with_casts(
    operator: Operator, cast: Cast, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[torch.Tensor, ...]:
    """Run torch's fused attention for the CPU, or its backward pass, on float32 tensors.

    Args:
        operator: the forward or the backward operator.
        cast: rounds an operand of a matrix product.
        args: its positional arguments.
        kwargs: its keyword arguments.
    """
    names = [parameter.name for parameter in operator.parameters]
    values = dict(zip(names, args, strict=False)) | dict(kwargs)
    if operator.name.endswith(_BACKWARD):
        return _backward(cast, values)
    return _forward(cast, values)


def _forward(cast: Cast, values: Mapping[str, Any]) -> tuple[torch.Tensor, ...]:
    query, key = cast(values["query"]), cast(values["key"])
    scores = _scores(query, key, values)
    logsumexp = scores.logsumexp(-1)
    probabilities = _probabilities(scores, logsumexp)
    out = cast(probabilities) @ cast(values["value"])
    # Here and below, strides match those of torch's kernel, because programs see them.
    return torch.empty_like(query).copy_(out), _with_heads_inside(logsumexp)


def _backward(cast: Cast, values: Mapping[str, Any]) -> tuple[torch.Tensor, ...]:
    query, key = cast(values["query"]), cast(values["key"])
    grad_out = cast(values["grad_out"])
    probabilities = _probabilities(_scores(query, key, values), values["logsumexp"])
    grad_value = cast(probabilities).mT @ grad_out
    grad_probabilities = grad_out @ cast(values["value"]).mT
    correction = (values["grad_out"] * values["out"]).sum(-1, keepdim=True)
    grad_scores = cast(probabilities * (grad_probabilities - correction) * _scale(values))
    grads = (grad_scores @ key, grad_scores.mT @ query, grad_value)
    return tuple(map(_with_heads_inside, grads))


def _scores(query: torch.Tensor, key: torch.Tensor, values: Mapping[str, Any]) -> torch.Tensor:
    scores = query @ key.mT * _scale(values)
    if values.get("is_causal"):
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(hidden, -torch.inf)
    mask = values.get("attn_mask")
    return scores if mask is None else scores + mask


def _probabilities(scores: torch.Tensor, logsumexp: torch.Tensor) -> torch.Tensor:
    # A row without a visible key has a logsumexp of -inf.
    return (scores - logsumexp.unsqueeze(-1)).exp().nan_to_num(0)


def _scale(values: Mapping[str, Any]) -> float:
    scale = values.get("scale")
    return float(1 / math.sqrt(values["query"].size(-1)) if scale is None else scale)


def _with_heads_inside(result: torch.Tensor) -> torch.Tensor:
    """Return a result in the order batch, sequence, head."""
    return result.transpose(1, 2).contiguous().transpose(1, 2)
