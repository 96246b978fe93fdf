"""The operators that a NEFF of another process may call, by name, with the reason; all others are refused.

The list has operators that compute new tensors or change tensors of the graph in place, do nothing else, and check
their arguments. These are missing on purpose: operators on files, processes, storages, sizes or Python (`from_file`,
`set_`, `resize_`, `_print`), uninitialised memory (`empty`), other gradients and packed formats, whose kernels trust
the results of another operator (`max_pool2d_with_indices_backward`, `_nested_view_from_buffer`, `fbgemm_*`,
`linalg_lu_solve`), polynomials and series whose length is part of the data, views, which graphs have no calls for,
operators whose results torch cannot state in advance, and sparse, quantized and complex tensors, which the device does
not have. An operator of a new torch release is refused until it is listed here. `neff_kernels` checks what the kernels
do not.
"""

from __future__ import annotations

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
_REDUCTIONS = """
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
        "reduces or scans a dimension": _REDUCTIONS,
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
