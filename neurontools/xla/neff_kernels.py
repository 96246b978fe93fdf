"""What torch's CPU kernels do not check of the arguments of listed operators.

With other arguments they read or write outside of their tensors, divide by zero, or do not end.
"""

from __future__ import annotations

import re
from math import prod
from typing import TYPE_CHECKING, Any

import torch

from neurontools.compiler.graph import View
from neurontools.compiler.graph_nodes import contiguous_strides

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Values = Mapping[str, Any]

_ELEMENTWISE = """
    abs acos acosh add addcdiv addcmul angle asin asinh atan atan2 atanh bitwise_and bitwise_left_shift bitwise_not
    bitwise_or bitwise_right_shift bitwise_xor ceil celu clamp clamp_max clamp_min copysign cos cosh deg2rad digamma
    div elu eq erf erfc erfinv exp exp2 expm1 floor floor_divide fmax fmin fmod frac frexp gcd ge gelu glu gt
    hardshrink hardsigmoid hardswish hardtanh heaviside hypot i0 igamma igammac isin isinf isnan isneginf isposinf
    lcm ldexp le leaky_relu lerp lgamma log log10 log1p log2 log_sigmoid_forward logaddexp logaddexp2 logical_and
    logical_not logical_or logical_xor logit lt masked_fill maximum minimum mish mul mvlgamma nan_to_num ne neg
    nextafter polar polygamma pow rad2deg reciprocal relu remainder round rrelu_with_noise rsqrt rsub sgn sigmoid
    sign signbit silu sin sinc sinh softplus softshrink special_airy_ai special_bessel_j0 special_bessel_j1
    special_bessel_y0 special_bessel_y1 special_entr special_erfcx special_i0e special_i1 special_i1e
    special_log_ndtr special_modified_bessel_i0 special_modified_bessel_i1 special_modified_bessel_k0
    special_modified_bessel_k1 special_ndtri special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1
    special_spherical_bessel_j0 special_xlog1py sqrt square sub tan tanh threshold trunc where xlogy conj_physical
    __lshift__ __rshift__ _add_relu _prelu_kernel _to_copy
"""
_REDUCING = """
    all amax amin aminmax any argmax argmin count_nonzero cummax cummin cumprod cumsum dist histc kthvalue
    linalg_vector_norm logcumsumexp logsumexp max mean median min mode nanmedian nansum norm prod std std_mean sum
    trace var var_mean _cdist_forward _euclidean_dist _pdist_forward
"""
_LAYERS = """
    adaptive_max_pool2d adaptive_max_pool3d affine_grid_generator avg_pool2d avg_pool3d binary_cross_entropy
    binary_cross_entropy_with_logits channel_shuffle col2im conv_tbc convolution embedding fractional_max_pool2d
    fractional_max_pool3d grid_sampler_2d grid_sampler_3d huber_loss im2col max_pool2d_with_indices
    max_pool3d_with_indices max_unpool2d max_unpool3d mse_loss multi_margin_loss multilabel_margin_loss_forward
    native_batch_norm native_channel_shuffle native_dropout native_group_norm native_layer_norm nll_loss2d_forward
    nll_loss_forward pixel_shuffle pixel_unshuffle reflection_pad1d reflection_pad2d reflection_pad3d
    replication_pad1d replication_pad2d replication_pad3d renorm smooth_l1_loss soft_margin_loss upsample_bicubic2d
    upsample_bilinear2d upsample_linear1d upsample_nearest1d upsample_nearest2d upsample_nearest3d
    upsample_trilinear3d _adaptive_avg_pool2d _adaptive_avg_pool3d _batch_norm_no_update _convolution _embedding_bag
    _embedding_bag_forward_only _log_softmax _native_batch_norm_legit _native_batch_norm_legit_functional
    _native_batch_norm_legit_no_training _native_multi_head_attention _safe_softmax _softmax
    _transformer_encoder_layer_fwd _upsample_bicubic2d_aa _upsample_bilinear2d_aa _upsample_lanczos2d_aa
    _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d _weight_norm_interface
"""
_LINEAR_ALGEBRA = """
    addbmm addmm addmv addr baddbmm bmm cholesky cholesky_inverse cholesky_solve dot linalg_cholesky_ex linalg_cross
    linalg_householder_product linalg_inv_ex linalg_lu linalg_lu_factor_ex linalg_matrix_exp linalg_pinv linalg_qr
    linalg_solve_triangular mm mv triangular_solve vdot _addmm_activation _int_mm _linalg_check_errors _linalg_det
    _linalg_eigh _linalg_slogdet _linalg_solve_ex _linalg_svd _scaled_mm _trilinear
"""
_GRADIENTS = """
    diagonal_backward elu_backward gelu_backward glu_backward hardshrink_backward hardsigmoid_backward
    hardswish_backward hardtanh_backward huber_loss_backward leaky_relu_backward log_sigmoid_backward logit_backward
    mish_backward mse_loss_backward native_dropout_backward select_backward sigmoid_backward silu_backward
    slice_backward smooth_l1_loss_backward softplus_backward softshrink_backward tanh_backward threshold_backward
    _log_softmax_backward_data _softmax_backward_data
"""
_GUARDED = """
    convolution_backward embedding_dense_backward native_batch_norm_backward native_layer_norm_backward
    nll_loss_backward _scaled_dot_product_flash_attention_for_cpu
    _scaled_dot_product_flash_attention_for_cpu_backward
"""
_FORM = """
    alias_copy as_strided_copy as_strided_scatter block_diag cat clone constant_pad_nd copy detach_copy diag_embed
    diagonal_copy diagonal_scatter expand_copy flip lift lift_fresh_copy narrow_copy permute_copy repeat roll rot90
    select_copy select_scatter slice_copy slice_scatter split_copy split_with_sizes_copy squeeze_copy stack t_copy
    transpose_copy tril triu unbind_copy unfold_copy unsafe_split unsafe_split_with_sizes unsqueeze_copy view_copy
    _chunk_cat _reshape_copy _stack _unsafe_view
"""
_INDEXED = """
    bucketize gather index index_add index_copy index_fill index_put index_reduce index_select masked_scatter
    nonzero_static put scatter scatter_add scatter_reduce searchsorted sort take topk _index_put_impl _unsafe_index
"""
_FACTORIES = """
    arange bartlett_window blackman_window eye fill full full_like hamming_window hann_window kaiser_window linspace
    logspace new_full new_ones new_zeros ones ones_like range scalar_tensor tril_indices triu_indices zero zeros
    zeros_like
"""
_RANDOM = """
    bernoulli cauchy exponential geometric log_normal multinomial normal normal_functional poisson rand rand_like
    randint randint_like randn randn_like random randperm uniform _standard_gamma
"""
ATEN = {
    name: reason
    for reason, names in {
        "computes each element from its own": _ELEMENTWISE,
        "reduces or scans a dimension": _REDUCING,
        "is a layer or a loss": _LAYERS,
        "multiplies or factorizes matrices": _LINEAR_ALGEBRA,
        "is a gradient that checks its arguments": _GRADIENTS,
        "has its arguments checked before": _GUARDED,
        "changes the form, within its storage": _FORM,
        "checks its indices": _INDEXED,
        "fills a new tensor": _FACTORIES,
        "draws from torch's generator": _RANDOM,
    }.items()
    for name in names.split()
}
"""The reason why a torch operator is safe, by name. Its in-place variant, with a trailing underscore, is safe, too, and so
is its `_foreach_` variant, which calls it for each tensor of a list."""
COLLECTIVES = frozenset({
    "all_gather", "all_reduce_", "all_to_all", "all_to_all_uneven_", "broadcast_", "collective_permute", "recv_",
    "reduce_scatter", "send",
})  # fmt: skip
"""Operators of the namespace neurontools; they reach only the workers of this run. None sets random number states."""
_GROUPS = r"\{\{\d{1,9}(,\d{1,9})*\}(,\{\d{1,9}(,\d{1,9})*\})*\}"
TEXTS = {
    "approximate": "none|tanh",
    "api_name": r"[a-z_.]+",
    "driver": "gesvd|gesvdj|gesvda",
    "mode": "reduced|complete|r",
    "pairs": _GROUPS,
    "reduce": "add|max|mean|min|multiply|prod|sum|amax|amin",
    "reduce_type": "and|max|min|mul|or|sum",
    "replica_groups": _GROUPS,
    "rounding_mode": "floor|trunc",
    "side": "left|right",
    "UPLO": "L|U|l|u",
}
"""String parameters, and their valid values as regular expressions."""
_ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"
_FORWARD_NORMS = (
    "native_batch_norm _batch_norm_no_update _native_batch_norm_legit _native_batch_norm_legit_functional "
    "_native_batch_norm_legit_no_training"
)
_STATISTICS = ("running_mean", "running_var", "save_mean", "save_invstd")
_FUSED_LAYERS = "_native_multi_head_attention _transformer_encoder_layer_fwd"
_SCALE = re.compile(r"scales(_[dhw])?")
_REDUCTIONS = range(3)
_MOST_STEPS = 1000
_LARGEST_SCALE = 1 << 24


def fits_kernel(name: str, values: Values) -> bool:
    """Return whether the kernel of an operator stays within its tensors and ends.

    Args:
        name: of the operator, without the underscore of its in-place variant.
        values: its arguments by name; tensors are views, numbers have their values.

    """
    rule = _RULES.get(name)
    return values.get("reduction", 0) in _REDUCTIONS and (rule is None or rule(values))


def true_results(name: str, values: Values, made: Sequence[Any]) -> list[Any]:
    """Return the results of the CPU kernel as meta tensors, where they differ from those of the meta kernel.

    Args:
        name: of the operator.
        values: its arguments by name.
        made: the results of the meta kernel.
    """
    if name in _FORWARD_NORMS.split():
        return _norm_results(values, made)
    if name == "native_layer_norm":
        dtype = _statistics_type(values)
        return [made[0], *(item.to(dtype) for item in made[1:])]
    return list(made)


def _norm_results(values: Values, made: Sequence[Any]) -> list[Any]:
    trains = values.get("training", values.get("train", False))
    channels = values["input"].shape[1] if trains else 0
    saved = torch.empty(channels, dtype=_statistics_type(values), device="meta")
    return [made[0], saved, saved, *made[3:]]


def _statistics_type(values: Values) -> torch.dtype:
    """Return the data type of saved statistics: the scale's where it is wider than the input's."""
    given = (values.get(name) for name in ("weight", "running_mean", "bias"))
    types = [getattr(torch, view.dtype) for view in given if view is not None]
    dtype: torch.dtype = getattr(torch, values["input"].dtype)
    return torch.float32 if dtype.itemsize == 2 and torch.float32 in types else dtype


def _is_whole_division(values: Values) -> bool:
    """Return whether a division cannot divide the smallest integer by -1, which overflows."""
    operands = [value for value in values.values() if isinstance(value, View)]
    if values.get("rounding_mode") != "trunc" or any(
        view.dtype.startswith(("float", "bf")) for view in operands
    ):
        return True
    return not isinstance(values["other"], View) and values["other"] != -1


def _is_norm(values: Values) -> bool:
    """Return whether the statistics of a batch norm, and its scale and shift, have one number per channel."""
    shape = values["input"].shape
    channels = [values[name] for name in ("weight", "bias", *_STATISTICS) if values.get(name) is not None]
    types = {view.dtype for view in channels}
    return (
        len(shape) > 1
        and all(view.shape == (shape[1],) for view in channels)
        and len(types) < 2
        and (values.get("running_mean") is None) == (values.get("running_var") is None)
    )


def _is_norm_without_training(values: Values) -> bool:
    return _is_norm(values) and (bool(values.get("training")) or values.get("running_mean") is not None)


def _is_norm_gradient(values: Values) -> bool:
    used = "save" if values["train"] else "running"
    return (
        _is_norm(values)
        and values["grad_out"].shape == values["input"].shape
        and prod(values["input"].shape) > 0
        and all(values[name] is not None for name in _STATISTICS if name.startswith(used))
    )


def _is_layer_norm_gradient(values: Values) -> bool:
    shape, normalized = values["input"].shape, len(values["normalized_shape"])
    rows = prod(shape[: len(shape) - normalized])
    return values["grad_out"].shape == shape and all(
        prod(view.shape) == rows and view.strides == contiguous_strides(view.shape)
        for view in (values["mean"], values["rstd"])
    )


def _is_softmax_gradient(values: Values) -> bool:
    above, result = values["grad_output"], values["output"]
    return (above.shape, above.dtype) == (result.shape, values["input_dtype"].name)


def _is_convolution_gradient(values: Values) -> bool:
    settings = ("stride", "padding", "dilation", "transposed", "output_padding", "groups")
    tensors = (_empty(values["input"]), _empty(values["weight"]), None)
    made = torch.ops.aten.convolution.default(*tensors, *(values[name] for name in settings))
    channels = values["bias_sizes"]
    return tuple(made.shape) == values["grad_output"].shape and channels in {None, tuple(made.shape[1:2])}


def _is_attention(values: Values) -> bool:
    """Return whether the tensors of attention, or of its gradient, have shapes that fit, and rows without gaps.

    The kernels read rows as if their numbers were next to each other: a row that repeats one number is too short.
    """
    query, key, value = (values[name] for name in ("query", "key", "value"))
    results = [values[name] for name in ("grad_out", "out") if name in values]
    sums, mask = values.get("logsumexp"), values.get("attn_mask")
    return (
        len(query.shape) == len(key.shape) == 4
        and prod(query.shape) > 0
        and prod(key.shape) > 0
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


def _is_fused_layer(values: Values) -> bool:
    """Return whether the fused layers of transformers have heads of equal width, and weights of that layer."""
    source = values.get("query", values.get("src"))
    assert source is not None
    width, heads = values["embed_dim"], values.get("num_head", values.get("num_heads"))
    sizes = {"qkv_weight": (3 * width, width), "qkv_bias": (3 * width,), "proj_weight": (width,) * 2}
    return (
        len(source.shape) == 3
        and prod(source.shape) > 0
        and source.shape[2] == width
        and heads > 0
        and width % heads == 0
        and all(values[name].shape == shape for name, shape in (*sizes.items(), ("proj_bias", (width,))))
    )


def _is_weight_norm(values: Values) -> bool:
    weight, scale, dim = values["v"], values["g"], values["dim"]
    if dim not in {0, len(weight.shape) - 1} or 0 in weight.shape:
        return False
    lengths = tuple(size if position == dim else 1 for position, size in enumerate(weight.shape))
    return scale.shape == lengths and all(
        view.strides == contiguous_strides(view.shape) for view in (weight, scale)
    )


def _is_resizing(values: Values) -> bool:
    """Return whether the stated scales of a resized image lead into it: rows are read at `row / scale`."""
    if "self" not in values:  # another overload, of which torch's programs consist but no graph
        return False
    scales = [value for name, value in values.items() if _SCALE.fullmatch(name)]
    sizes = zip(values["self"].shape[2:], values["output_size"], scales, strict=bool(scales))
    return all(
        scale is None or (before and 0.9 * min(1.0, after / before) <= scale <= _LARGEST_SCALE)
        for before, after, scale in sizes
    )


def _number_rule(name: str, lowest: int, highest: int) -> Callable[[Values], bool]:
    return lambda values: lowest <= values[name] <= highest


def _sampler_rule(modes: int) -> Callable[[Values], bool]:
    return lambda values: 0 <= values["interpolation_mode"] < modes and 0 <= values["padding_mode"] <= 2


_RULES: dict[str, Callable[[Values], bool]] = {
    "_log_softmax_backward_data": _is_softmax_gradient,
    "_softmax_backward_data": _is_softmax_gradient,
    "convolution_backward": _is_convolution_gradient,
    "div": _is_whole_division,
    # The kernels count by index, or read by class, without checking them.
    "embedding_dense_backward": lambda values: values["scale_grad_by_freq"] is False,
    "nll_loss_backward": lambda values: values["reduction"] in {1, 2},
    "grid_sampler_2d": _sampler_rule(3),
    "grid_sampler_3d": _sampler_rule(2),
    "mvlgamma": _number_rule("p", 1, _MOST_STEPS),
    "native_batch_norm_backward": _is_norm_gradient,
    "native_layer_norm_backward": _is_layer_norm_gradient,
    "pixel_unshuffle": lambda values: 0 not in values["self"].shape,  # returns the argument
    "pixel_shuffle": lambda values: 0 not in values["self"].shape,
    "polygamma": _number_rule("n", 0, 1),  # others sum a series whose length depends on the data
    _ATTENTION: _is_attention,
    f"{_ATTENTION}_backward": _is_attention,
    "_weight_norm_interface": _is_weight_norm,
    **dict.fromkeys(_FORWARD_NORMS.split(), _is_norm_without_training),
    **dict.fromkeys(_FUSED_LAYERS.split(), _is_fused_layer),
    **dict.fromkeys((name for name in ATEN if "upsample" in name), _is_resizing),
}


def _empty(view: View) -> torch.Tensor:
    return torch.empty_strided(view.shape, view.strides, dtype=getattr(torch, view.dtype), device="meta")
