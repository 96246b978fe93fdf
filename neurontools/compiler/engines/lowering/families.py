"""The family of an operator, which decides how it is lowered."""

from __future__ import annotations

from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING

from neurontools.compiler.engines.placement import is_attention, is_collective, is_custom, split_name

if TYPE_CHECKING:
    from neurontools.compiler.graph import Node


class OperatorFamily(StrEnum):
    """A family of operators that are lowered alike."""

    MATMUL = "matmul"
    CONVOLUTION = "convolution"
    ATTENTION = "attention"
    FUSED_BLOCK = "fused_block"
    ELEMENTWISE = "elementwise"
    SOFTMAX = "softmax"
    NORM = "norm"
    BATCH_NORM = "batch_norm"
    REDUCTION = "reduction"
    POOLING = "pooling"
    GATHER = "gather"
    SCATTER = "scatter"
    TRANSFER = "transfer"
    FILL = "fill"
    IOTA = "iota"
    SORT = "sort"
    SCAN = "scan"
    COLLECTIVE = "collective"
    CUSTOM = "custom"
    UNKNOWN = "unknown"


_NAMES = {
    OperatorFamily.MATMUL: """
        mm addmm bmm baddbmm addbmm mv addmv dot vdot linear matmul _int_mm _scaled_mm _addmm_activation
        _grouped_mm _scaled_grouped_mm
        """,
    OperatorFamily.CONVOLUTION: """
        convolution convolution_overrideable _convolution conv1d conv2d conv3d conv_transpose2d mkldnn_convolution
        """,
    OperatorFamily.FUSED_BLOCK: "_transformer_encoder_layer_fwd _native_multi_head_attention",
    OperatorFamily.SOFTMAX: """
        _softmax softmax _log_softmax log_softmax _safe_softmax _softmax_backward_data _log_softmax_backward_data
        logsumexp
        """,
    OperatorFamily.NORM: "native_layer_norm native_group_norm _fused_rms_norm rms_norm layer_norm group_norm",
    OperatorFamily.BATCH_NORM: """
        native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training
        _native_batch_norm_legit_functional _batch_norm_with_update batch_norm cudnn_batch_norm
        batch_norm_elemt
        """,
    OperatorFamily.REDUCTION: """
        sum mean nansum amax amin aminmax max min argmax argmin any all prod norm linalg_vector_norm var std
        var_mean std_mean count_nonzero median equal nll_loss_forward nll_loss2d_forward nll_loss nll_loss2d mse_loss l1_loss
        smooth_l1_loss huber_loss binary_cross_entropy binary_cross_entropy_with_logits kl_div
        """,
    OperatorFamily.POOLING: """
        max_pool2d_with_indices avg_pool2d _adaptive_avg_pool2d adaptive_max_pool2d max_pool2d adaptive_avg_pool2d
        """,
    OperatorFamily.GATHER: """
        gather index index_select embedding _embedding_bag take take_along_dim masked_select bincount searchsorted
        bucketize grid_sampler_2d upsample_nearest2d upsample_bilinear2d
        """,
    OperatorFamily.SCATTER: """
        scatter scatter_add scatter_reduce index_put _index_put_impl index_add index_copy index_fill put
        masked_scatter embedding_dense histc
        """,
    OperatorFamily.SORT: "sort argsort topk kthvalue msort unique _unique2 multinomial randperm nonzero nonzero_static argwhere",
    OperatorFamily.SCAN: "cumsum cumprod logcumsumexp cummax cummin",
    OperatorFamily.IOTA: "arange range linspace logspace tril triu tril_indices triu_indices",
    OperatorFamily.FILL: "zero fill zeros ones full eye scalar_tensor zeros_like ones_like full_like new_zeros new_ones new_full",
    OperatorFamily.TRANSFER: """
        copy _copy_from _copy_from_and_resize _to_copy to clone contiguous cat stack _local_scalar_dense
        constant_pad_nd reflection_pad2d replication_pad2d repeat roll flip rot90 slice_scatter select_scatter
        diagonal_scatter as_strided_scatter slice_backward select_backward diagonal_backward unfold_backward
        get_rng_state set_rng_state shard_rng_state im2col col2im pixel_shuffle pixel_unshuffle channel_shuffle
        convert_element_type repeat_interleave
        """,
}
_KINDS = {name: kind for kind, names in _NAMES.items() for name in names.split()}


class Passes:
    """Instructions over all elements that an elementwise operator takes.

    Args:
        pairs: with two tensors (Vector).
        singles: with one tensor and numbers (Vector, or Scalar where it is free).
        activations: a function of a table (Scalar).
    """

    __slots__ = ("activations", "pairs", "singles")

    def __init__(self, pairs: float, singles: float, activations: float) -> None:
        self.pairs = pairs
        self.singles = singles
        self.activations = activations


_PASSES = {
    (1, 0, 0): """
        add sub mul div rsub maximum minimum fmax fmin atan2 remainder fmod floor_divide bitwise_and bitwise_or
        bitwise_xor logical_and logical_or logical_xor eq ne lt le gt ge where masked_fill threshold_backward
        hypot copysign native_dropout_backward hardtanh_backward heaviside true_divide
        """,
    (0, 1, 0): """
        relu relu6 neg abs clamp clamp_min clamp_max square sign floor ceil round trunc frac logical_not
        bitwise_not isnan isinf isfinite threshold hardtanh leaky_relu positive nan_to_num
        """,
    (0, 0, 1): """
        exp exp2 expm1 log log2 log10 log1p gelu tanh sigmoid softplus erf erfc erfinv sqrt rsqrt sin cos tan
        asin acos atan sinh cosh asinh acosh atanh lgamma digamma logit pow elu celu selu mish silu hardswish
        hardsigmoid log_sigmoid log_sigmoid_forward reciprocal
        """,
    (1, 0, 1): "gelu_backward mse_loss_backward glu prelu _prelu_kernel leaky_relu_backward elu_backward",
    (2, 0, 0): "addcmul lerp tanh_backward sigmoid_backward",
    (
        2,
        0,
        1,
    ): "addcdiv silu_backward glu_backward hardswish_backward mish_backward softplus_backward pow_backward",
    (
        1,
        1,
        0,
    ): "native_dropout dropout bernoulli normal uniform random exponential rand randn rand_like randn_like randint",
    (2, 1, 0): "_fused_sgd",
    (6, 2, 1): "_fused_adam _fused_adamw",
    (4, 0, 5): "_thnn_fused_lstm_cell _thnn_fused_gru_cell",
    (8, 0, 3): "_thnn_fused_lstm_cell_backward_impl _thnn_fused_gru_cell_backward",
}
_ELEMENTWISE = {name: Passes(*counts) for counts, names in _PASSES.items() for name in names.split()}
_DEFAULT = Passes(1, 0, 0)


# These change what a tensor looks like, not what memory holds: no instruction comes of them.
_VIEWS = """
view reshape _reshape_alias _unsafe_view as_strided alias detach t transpose permute expand squeeze
unsqueeze narrow slice select unfold flatten unflatten view_as split split_with_sizes chunk unbind
diagonal empty empty_strided empty_like new_empty new_empty_strided lift_fresh movedim view_as_real
view_as_complex
"""
_NO_INSTRUCTION = frozenset(_VIEWS.split())


_FORWARD = frozenset({*_KINDS, *(name for name in _ELEMENTWISE if not name.endswith("_backward"))})


@cache
def family(op: str) -> str:
    """Return the name that stands for an operator and its in-place, list and backward forms."""
    name = plain_name(op)
    if name in _FORWARD or name in _NO_INSTRUCTION:
        return name
    for suffix in ("_backward", "_copy", "_backward_overrideable"):
        base = name.removesuffix(suffix)
        if base != name and (base in _FORWARD or suffix == "_copy"):
            return base if base in _FORWARD else "copy"
    return name


def has_instruction(node: Node) -> bool:
    """Return whether a call becomes an instruction; views and uninitialised buffers do not."""
    return is_custom(node.op) or family(node.op) not in _NO_INSTRUCTION


@cache
def kind_of(op: str) -> OperatorFamily:
    """Return the family of an operator."""
    if is_custom(op):
        return OperatorFamily.CUSTOM
    if is_collective(op):
        return OperatorFamily.COLLECTIVE
    if is_attention(op):
        return OperatorFamily.ATTENTION
    name, base = plain_name(op), family(op)
    for wanted in (name, base):
        if wanted in _KINDS:
            return _KINDS[wanted]
    return OperatorFamily.ELEMENTWISE if {name, base} & _ELEMENTWISE.keys() else OperatorFamily.UNKNOWN


@cache
def plain_name(op: str) -> str:
    """Return the name without namespace, overload, list prefix and in-place suffix; backward forms keep theirs."""
    name = split_name(op)[1].removeprefix("_foreach_")
    return name[:-1] if name.endswith("_") and not name.endswith("__") else name


@cache
def is_backward(op: str) -> bool:
    """Return whether an operator computes gradients."""
    return "_backward" in op


@cache
def passes_of(op: str) -> Passes:
    """Return the passes of an elementwise operator; those of two tensors for other names."""
    return _ELEMENTWISE.get(plain_name(op)) or _ELEMENTWISE.get(family(op)) or _DEFAULT
