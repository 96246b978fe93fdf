"""Kernels of layers that torch lets every device bring itself."""

# ruff: noqa: A002, ARG001
# Torch's parameter names, torch's signatures.

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from neurontools.xla import fallback
from neurontools.xla.operators import Operator, operator_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.xla.kernels import Kernel


def layer_kernels(record: Callable[[Operator], Kernel]) -> dict[str, Kernel]:
    """Return the kernels by operator name; `record` makes the kernel that records an operator."""
    aten = torch.ops.aten
    convolution = record(operator_of(aten.convolution.default))
    convolution_backward = record(operator_of(aten.convolution_backward.default))
    index = record(operator_of(aten.index.Tensor))
    index_operator = operator_of(aten.index.Tensor)

    def convolution_overrideable(*args: Any, **kwargs: Any) -> Any:
        return convolution(*args, **kwargs)

    def convolution_backward_overrideable(
        grad_output: Any, input: Any, weight: Any, stride: Any, padding: Any, dilation: Any, transposed: Any,
        output_padding: Any, groups: Any, output_mask: Any,
    ) -> Any:  # fmt: skip
        sizes = [weight.size(1) * groups if transposed else weight.size(0)]
        return convolution_backward(
            grad_output, input, weight, sizes, stride, padding, dilation, transposed, output_padding, groups, output_mask
        )  # fmt: skip

    def index_tensor(self: torch.Tensor, indices: Any) -> Any:
        masked = any(i is not None and i.dtype in {torch.bool, torch.uint8} for i in indices)
        return fallback.run_on_cpu(index_operator, (self, indices)) if masked else index(self, indices)

    # torch's device dropout scales after masking; the CPU's masks with a scaled mask. The CPU's is done here, so that
    # a model gives the same bits on both, and the scaled mask travels in the place of the boolean one.
    def native_dropout(input: torch.Tensor, p: float, train: bool | None) -> Any:
        if train is False or p == 0:
            return input.clone(), torch.ones_like(input)
        noise = (
            torch.empty_like(input).fill_(0)
            if p == 1
            else torch.empty_like(input).bernoulli_(1 - p).div_(1 - p)
        )
        return input * noise, noise

    def native_dropout_backward(grad_output: torch.Tensor, mask: torch.Tensor, scale: float) -> torch.Tensor:
        return grad_output * mask

    return {
        "convolution_overrideable": convolution_overrideable,
        "convolution_backward_overrideable": convolution_backward_overrideable,
        "index.Tensor": index_tensor,
        "native_dropout": native_dropout,
        "native_dropout_backward": native_dropout_backward,
    }
