"""The fastest Python function that runs an operator on tensors of the CPU.

Operators whose kernel is a Python function of this package are that function: torch's dispatcher would only call it.

`overload._op` converts its arguments by the operator's schema, anew in each call. torch's own bindings have a parser
made for their arguments and take about half as long. They choose the overload by the types of the arguments, so only
overloads are listed here that the arguments of a graph always lead to.
"""

# ruff: noqa: SLF001
# Torch's private API.

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

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
            found = getattr(functions, name, None)
            if found is not None:
                return found
    return overload._op
