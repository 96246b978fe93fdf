"""Kernels of layers that torch leaves to the device: attention, convolution, dropout, LSTM and GRU cells."""

# ruff: noqa: A002, ARG001, SLF001
# Torch's signatures and private API.
# Torch's signatures.

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.nested._internal import ops
from torch.nested._internal.nested_tensor import nested_view_from_values_offsets
from torch.utils._python_dispatch import _disable_current_modes

from neurontools.xla import fallback
from neurontools.xla.device_name import device_name
from neurontools.xla.operators import operator_of

if TYPE_CHECKING:
    from neurontools.xla.operators import Kernel
    from neurontools.xla.stores import TensorStores

    Tensors = tuple[Any, ...]

_LARGEST_TRIAL = 1 << 32  # bytes: tensors of the meta device may be larger than the memory of this computer
_FLASH = 1
_LENGTH, _DIMENSIONS = 2, 4  # of a jagged query: batch, heads, length, which differs by sequence, depth
_choices: dict[Any, int] = {}
_HALF = frozenset({torch.float16, torch.bfloat16})


def layer_kernels(engine: TensorStores) -> dict[str, Kernel]:
    """Return the kernels by operator name."""
    aten = torch.ops.aten
    convolution = engine.kernel(operator_of(aten.convolution.default))
    convolution_backward = engine.kernel(operator_of(aten.convolution_backward.default))
    index = engine.kernel(operator_of(aten.index.Tensor))
    histc = engine.kernel(operator_of(aten.histc.default))
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
        return (
            fallback.run_on_cpu(engine, index_operator, (self, indices)) if masked else index(self, indices)
        )

    # torch's device dropout scales after masking; the CPU's multiplies with a scaled mask. The CPU's is done here, so
    # that a model gives the same bits on both.
    def native_dropout(input: torch.Tensor, p: float, train: bool | None) -> Any:
        if train is False or p == 0:
            return input.clone(), torch.ones_like(input, dtype=torch.bool)
        noise = (
            torch.empty_like(input).fill_(0)
            if p == 1
            else torch.empty_like(input).bernoulli_(1 - p).div_(1 - p)
        )
        return input * noise, noise != 0

    def native_dropout_backward(grad_output: torch.Tensor, mask: torch.Tensor, scale: float) -> torch.Tensor:
        noise = mask.to(torch.result_type(grad_output, scale))  # of integers too, as on the CPU
        return grad_output * (noise.div_(1 / scale) if scale else noise.zero_())

    # Integers are counted too, as on CUDA: models with experts choose by device.
    def histc_of(self: torch.Tensor, bins: int = 100, min: Any = 0, max: Any = 0) -> torch.Tensor:
        if self.is_floating_point():
            return histc(self, bins, min, max)
        return histc(self.double(), bins, min, max).to(self.dtype)

    def is_left_aligned(t: torch.Tensor, mask: torch.Tensor) -> bool:
        # Keeps nn.TransformerEncoder off nested tensors, which the device does not have.
        return False

    return {
        "convolution_overrideable": convolution_overrideable,
        "convolution_backward_overrideable": convolution_backward_overrideable,
        "_nested_tensor_from_mask_left_aligned": is_left_aligned,
        "histc": histc_of,
        "index.Tensor": index_tensor,
        "native_dropout": native_dropout,
        "native_dropout_backward": native_dropout_backward,
    }


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Compute attention; the composite kernel of aten::scaled_dot_product_attention on this device."""
    choice = _choice(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill(~attn_mask, float("-inf"))
    if choice == _FLASH:
        result: torch.Tensor = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale
        )[0]
        return result
    unfused: torch.Tensor = torch.ops.aten._scaled_dot_product_attention_math(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )[0]
    return unfused


def install_jagged_attention() -> None:
    """Let torch compute attention of jagged tensors of the device sequence by sequence: its own way is by C++ tensors."""
    compute = ops.jagged_scaled_dot_product_attention

    def by_sequence(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: Any = None, dropout_p: float = 0.0,
        is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
    ) -> torch.Tensor:  # fmt: skip
        jagged = [
            x.is_nested and x._ragged_idx == _LENGTH and x.dim() == _DIMENSIONS for x in (query, key, value)
        ]
        if query.device.type != device_name() or attn_mask is not None or is_causal or not all(jagged):
            other: torch.Tensor = compute(
                query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa
            )
            return other
        parts = [
            F.scaled_dot_product_attention(q[None], k[None], v[None], None, dropout_p, scale=scale, enable_gqa=enable_gqa)
            for q, k, v in zip(query.unbind(), key.unbind(), value.unbind(), strict=True)
        ]  # fmt: skip
        values = torch.cat(parts, _LENGTH)[0].transpose(0, 1)
        return nested_view_from_values_offsets(values, query.offsets()).transpose(1, _LENGTH)

    ops.jagged_scaled_dot_product_attention = by_sequence


def _choice(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> int:
    tensors = (query, key, value, attn_mask)
    signature = tuple(
        None if t is None else (t.dtype, tuple(t.shape), tuple(t.stride()), t.requires_grad) for t in tensors
    )
    situation = (signature, dropout_p > 0, is_causal, scale is None, enable_gqa, torch.is_grad_enabled())
    choice = _choices.get(situation)
    if choice is None:
        # Not with what torch.compile traces, nor within a transform of torch.func.
        with temporarily_clear_interpreter_stack(), _disable_current_modes():
            hosts = [None if t is None else _like(t) for t in tensors]
            choice = _choices[situation] = torch._fused_sdp_choice(
                *hosts, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
            )
    return choice


def _like(tensor: torch.Tensor) -> torch.Tensor:
    batch, *others = tensor.shape
    if tensor.nbytes > _LARGEST_TRIAL:
        batch = min(batch, 2)
    host = torch.empty_strided([batch, *others], tensor.stride(), dtype=tensor.dtype)
    return host.requires_grad_(tensor.requires_grad)


def lstm_cell(
    input_gates: torch.Tensor,
    hidden_gates: torch.Tensor,
    cx: torch.Tensor,
    input_bias: torch.Tensor | None = None,
    hidden_bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return hidden state, cell state and an unused workspace."""
    gates = _biased(input_gates, input_bias) + _biased(hidden_gates, hidden_bias)
    entering, forgetting, cell, leaving = gates.chunk(4, 1)
    cy = forgetting.sigmoid() * cx + entering.sigmoid() * cell.tanh()
    return leaving.sigmoid() * cy.tanh(), cy, gates.detach()


def gru_cell(
    input_gates: torch.Tensor,
    hidden_gates: torch.Tensor,
    hx: torch.Tensor,
    input_bias: torch.Tensor | None = None,
    hidden_bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return hidden state and an unused workspace."""
    from_input = _biased(input_gates, input_bias).chunk(3, 1)
    from_hidden = _biased(hidden_gates, hidden_bias).chunk(3, 1)
    reset = (from_hidden[0] + from_input[0]).sigmoid()
    update = (from_hidden[1] + from_input[1]).sigmoid()
    new = (from_input[2] + from_hidden[2] * reset).tanh()
    return (hx - new) * update + new, reset.detach()


def _biased(gates: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return gates if bias is None else gates + bias


def synchronized_norm_kernels() -> dict[str, Kernel]:
    """Return the kernels by operator name."""
    return {
        "batch_norm_stats": _stats,
        "batch_norm_gather_stats_with_counts": _gather_stats,
        "batch_norm_elemt": _normalize,
        "batch_norm_backward_reduce": _reduce_gradients,
        "batch_norm_backward_elemt": _gradient_of_input,
    }


def _stats(input: torch.Tensor, eps: float) -> Tensors:
    variance, mean = torch.var_mean(_wide(input), _other_dimensions(input), correction=0)
    return mean, torch.rsqrt(variance + eps)


def _gather_stats(
    input: torch.Tensor,
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
    input: torch.Tensor,
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
    input: torch.Tensor,
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
    input: torch.Tensor,
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
