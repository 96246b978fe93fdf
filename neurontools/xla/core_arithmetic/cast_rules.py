"""The properties of operators for device numerics: which only move values, which run on the matrix engine."""

# ruff: noqa: SLF001
# Torch's private API.

from __future__ import annotations

import functools
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from neurontools.xla.operators import Kind

if TYPE_CHECKING:
    from neurontools.xla.operators import Operator

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
