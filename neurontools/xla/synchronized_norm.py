"""Kernels of `nn.SyncBatchNorm`, which torch has for CUDA only: statistics of one worker, of all, and their gradients.

The statistics are those of the channels, the second dimension; half-precision inputs are summed in float32.
"""

# ruff: noqa: ARG001
# Torch's signatures.

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from neurontools.xla.operators import Kernel

    Tensors = tuple[Any, ...]

_HALF = frozenset({torch.float16, torch.bfloat16})


def synchronized_norm_kernels() -> dict[str, Kernel]:
    """Return the kernels by operator name."""
    return {
        "batch_norm_stats": _stats,
        "batch_norm_gather_stats_with_counts": _gather_stats,
        "batch_norm_elemt": _normalize,
        "batch_norm_backward_reduce": _reduce_gradients,
        "batch_norm_backward_elemt": _gradient_of_input,
    }


def _stats(input: torch.Tensor, eps: float) -> Tensors:  # noqa: A002
    variance, mean = torch.var_mean(_wide(input), _other_dimensions(input), correction=0)
    return mean, torch.rsqrt(variance + eps)


def _gather_stats(
    input: torch.Tensor,  # noqa: A002
    mean: torch.Tensor,
    invstd: torch.Tensor,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    momentum: float,
    eps: float,
    counts: torch.Tensor,
) -> Tensors:
    """Return mean and inverse deviation of all workers; `mean` and `invstd` have a row for each."""
    weights = counts.to(mean.dtype).view(-1, 1)
    total = weights.sum()
    whole = (mean * weights).sum(0) / total
    variances = invstd.pow(-2) - eps + (mean - whole).square()
    variance = (variances * weights).sum(0) / total
    if running_mean is not None:
        running_mean.lerp_(whole.to(running_mean.dtype), momentum)
    if running_var is not None:
        unbiased = variance * (total / (total - 1))
        running_var.lerp_(unbiased.to(running_var.dtype), momentum)
    return whole, torch.rsqrt(variance + eps)


def _normalize(
    input: torch.Tensor,  # noqa: A002
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    mean: torch.Tensor,
    invstd: torch.Tensor,
    eps: float,
) -> torch.Tensor:
    shape = _shape_of_channels(input)
    scaled = (_wide(input) - mean.view(shape)) * _scale(invstd, weight).view(shape)
    return (scaled if bias is None else scaled + bias.view(shape)).to(input.dtype)


def _reduce_gradients(
    grad_out: torch.Tensor,
    input: torch.Tensor,  # noqa: A002
    mean: torch.Tensor,
    invstd: torch.Tensor,
    weight: torch.Tensor | None,
    input_g: bool,
    weight_g: bool,
    bias_g: bool,
) -> Tensors:
    gradient, others = _wide(grad_out), _other_dimensions(input)
    sum_dy = gradient.sum(others)
    sum_dy_xmu = (gradient * (_wide(input) - mean.view(_shape_of_channels(input)))).sum(others)
    of_weight = None if weight is None or not weight_g else (sum_dy_xmu * invstd).to(weight.dtype)
    of_bias = None if weight is None or not bias_g else sum_dy.to(weight.dtype)
    return sum_dy, sum_dy_xmu, of_weight, of_bias


def _gradient_of_input(
    grad_out: torch.Tensor,
    input: torch.Tensor,  # noqa: A002
    mean: torch.Tensor,
    invstd: torch.Tensor,
    weight: torch.Tensor | None,
    sum_dy: torch.Tensor,
    sum_dy_xmu: torch.Tensor,
    count: torch.Tensor,
) -> torch.Tensor:
    shape, total = _shape_of_channels(input), count.sum()
    of_mean = (sum_dy / total).view(shape)
    of_deviation = (sum_dy_xmu / total * invstd.square()).view(shape)
    centred = _wide(grad_out) - of_mean - (_wide(input) - mean.view(shape)) * of_deviation
    return (centred * _scale(invstd, weight).view(shape)).to(input.dtype)


def _scale(invstd: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
    return invstd if weight is None else invstd * weight


def _wide(values: torch.Tensor) -> torch.Tensor:
    return values.float() if values.dtype in _HALF else values


def _other_dimensions(values: torch.Tensor) -> list[int]:
    return [0, *range(2, values.dim())]


def _shape_of_channels(values: torch.Tensor) -> list[int]:
    return [1, -1, *[1] * (values.dim() - 2)]
