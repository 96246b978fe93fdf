"""Autocast: which operators compute in the lower precision, in float32, or in the widest type of their arguments.

The device `xla` has the conventions of torch's CPU, the device `neuron` those of CUDA. Sources: PyTorch documentation,
"Automatic Mixed Precision package"; AWS Neuron documentation, "Native PyTorch for AWS Trainium".
"""

# ruff: noqa: SLF001
# Torch's private API.

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import torch
from torch.utils._pytree import tree_leaves, tree_map

from neurontools.xla.accelerator import DeviceError
from neurontools.xla.device_name import NEURON, device_name
from neurontools.xla.operators import find_overload

if TYPE_CHECKING:
    from collections.abc import Callable

    Cast = Callable[[tuple[Any, Any]], tuple[Any, Any]]

_KEY = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)
_LOWERED = (
    "conv1d", "conv1d.padding", "conv2d", "conv2d.padding", "conv3d", "conv3d.padding", "conv_tbc",
    "conv_transpose1d", "conv_transpose2d.input", "conv_transpose3d.input", "bmm", "mm", "linalg_vecdot", "baddbmm",
    "addmm", "addbmm", "linear", "_convolution", "matmul", "scaled_dot_product_attention",
)  # fmt: skip
_FLOAT32 = (
    "binary_cross_entropy_with_logits", "mse_loss", "cosine_embedding_loss", "nll_loss", "nll_loss2d",
    "hinge_embedding_loss", "poisson_nll_loss", "smooth_l1_loss", "l1_loss", "huber_loss", "margin_ranking_loss", "soft_margin_loss",
    "triplet_margin_loss", "multi_margin_loss", "kl_div", "multilabel_margin_loss",
    "cross_entropy_loss",
)  # fmt: skip


class _Conventions(NamedTuple):
    """Names of overloads. `in_float32` are those that take the type of their result as an argument."""

    lowered: tuple[str, ...]
    float32: tuple[str, ...]
    in_float32: tuple[str, ...] = ()
    widest: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()


_OF_THE_CPU = _Conventions(
    lowered=_LOWERED,
    float32=(
        *_FLOAT32, "binary_cross_entropy", "ctc_loss.IntList", "ctc_loss.Tensor", "prod",
        "prod.dim_int", "quantile", "nanquantile", "trace", "grid_sampler", "polar", "linalg_inv_ex",
        "linalg_matrix_norm", "linalg_cond",
    ),
)  # fmt: skip
_OF_CUDA = _Conventions(
    lowered=(
        *_LOWERED, "convolution", "prelu", "addmv", "addr", "mv", "chain_matmul", "linalg_multi_dot",
        "_thnn_fused_lstm_cell", "_thnn_fused_gru_cell", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell",
    ),
    float32=(
        *_FLOAT32, "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal",
        "rsqrt", "sinh", "tan", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "softplus", "layer_norm",
        "native_layer_norm", "group_norm", "nuclear_norm", "nuclear_norm.dim", "cosine_similarity",
        "dist", "pdist", "cdist", "renorm", "logsumexp",
    ),
    in_float32=(
        "prod", "prod.dim_int", "softmax.int", "log_softmax.int", "cumprod", "cumsum", "linalg_vector_norm",
        "linalg_matrix_norm", "linalg_matrix_norm.str_ord", "sum", "sum.dim_IntList",
    ),
    widest=(
        "addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "grid_sampler", "index_put", "tensordot",
        "scatter_add",
    ),
    refused=("binary_cross_entropy",),
)  # fmt: skip


def autocast_kernels() -> dict[str, Callable[..., Any]]:
    """Return the autocast kernels by operator name without the namespace."""
    conventions = _OF_CUDA if device_name() == NEURON else _OF_THE_CPU
    casts: list[tuple[tuple[str, ...], Cast]] = [
        (conventions.lowered, _lower),
        (conventions.float32, lambda call: _cast(call, torch.float32)),
        (conventions.widest, _cast_to_widest),
        (conventions.in_float32, _result_in_float32),
    ]
    kernels = {
        name: _kernel(overload, cast)
        for names, cast in casts
        for name in names
        if (overload := find_overload(f"aten::{name}")) is not None
    }
    return kernels | {name: _refusing(name) for name in conventions.refused}


def _kernel(overload: Any, cast: Cast) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_KEY):
            cast_args, cast_kwargs = cast((args, kwargs))
            return overload(*cast_args, **cast_kwargs)

    return kernel


def _cast(call: tuple[Any, Any], dtype: torch.dtype) -> Any:
    return tree_map(lambda value: value.to(dtype) if _is_cast(value) else value, call)


def _lower(call: tuple[Any, Any]) -> Any:
    dtype = torch.get_autocast_dtype(device_name())
    return tree_map(lambda value: _lowered_once(value, dtype) if _is_cast(value) else value, call)


# Leaves by their ids with their casts, as torch keeps for its own devices: a weight that is used several times is cast
# once, and its gradient is the sum in the lower precision.
_lowered_leaves: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}


def _lowered_once(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if not (
        value.requires_grad
        and value.is_leaf
        and value.dtype == torch.float32
        and torch.is_autocast_cache_enabled()
        and torch.is_grad_enabled()
        and not value._is_view()
    ):
        return value.to(dtype)
    leaf, lowered = _lowered_leaves.get(id(value), (None, None))
    if leaf is not value:
        lowered = value.to(dtype)
        _lowered_leaves[id(value)] = value, lowered
    return lowered


def keep_lowered_leaves() -> None:
    """Forget the casts of leaves when torch forgets its own: at the end of the outermost region."""
    clear = torch.clear_autocast_cache

    @functools.wraps(clear)
    def clear_both() -> None:
        _lowered_leaves.clear()
        clear()

    torch.clear_autocast_cache = clear_both


def _cast_to_widest(call: tuple[Any, Any]) -> Any:
    types = {value.dtype for value in tree_leaves(call) if _is_cast(value)}
    return _cast(call, functools.reduce(torch.promote_types, types)) if len(types) > 1 else call


def _result_in_float32(call: tuple[Any, Any]) -> Any:
    args, kwargs = call
    chosen = kwargs.get("dtype") is not None or any(isinstance(value, torch.dtype) for value in args)
    return call if chosen or not _is_cast(args[0]) else (args, {**kwargs, "dtype": torch.float32})


def _is_cast(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.device.type == device_name()
        and value.is_floating_point()
        and value.dtype != torch.float64
    )


def _refusing(name: str) -> Callable[..., NoReturn]:
    def refuse(*args: Any, **kwargs: Any) -> NoReturn:  # noqa: ARG001  the operator's own
        raise DeviceError(
            f"{name} may overflow under autocast", f"use {name}_with_logits, or leave autocast for the loss"
        )

    return refuse
