"""torch.autocast("xla"): the operators that torch's CPU autocast lowers or keeps in float32, with the same lists."""

# ruff: noqa: SLF001
# Torch's private API.

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_map

from neurontools.xla.operators import find_overload

if TYPE_CHECKING:
    from collections.abc import Callable

_KEY = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)
_LOWERED = (
    "conv1d", "conv1d.padding", "conv2d", "conv2d.padding", "conv3d", "conv3d.padding", "conv_tbc",
    "conv_transpose1d", "conv_transpose2d.input", "conv_transpose3d.input", "bmm", "mm", "linalg_vecdot", "baddbmm",
    "addmm", "addbmm", "linear", "_convolution", "matmul", "scaled_dot_product_attention",
)  # fmt: skip
_FLOAT32 = (
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "mse_loss", "cosine_embedding_loss", "nll_loss",
    "nll_loss2d", "hinge_embedding_loss", "poisson_nll_loss", "smooth_l1_loss", "cross_entropy_loss", "l1_loss",
    "huber_loss", "margin_ranking_loss", "soft_margin_loss", "triplet_margin_loss", "multi_margin_loss",
    "ctc_loss.IntList", "ctc_loss.Tensor", "kl_div", "multilabel_margin_loss", "prod", "prod.dim_int", "quantile",
    "nanquantile", "trace", "grid_sampler", "polar", "linalg_inv_ex", "linalg_matrix_norm", "linalg_cond",
)  # fmt: skip


def autocast_kernels() -> dict[str, Callable[..., Any]]:
    """Return the autocast kernels by operator name without the namespace."""
    kernels = {name: _casting(name, lower=True) for name in _LOWERED if find_overload(f"aten::{name}")}
    return kernels | {
        name: _casting(name, lower=False) for name in _FLOAT32 if find_overload(f"aten::{name}")
    }


def _casting(name: str, *, lower: bool) -> Callable[..., Any]:
    overload = find_overload(f"aten::{name}")

    def kernel(*args: Any, **kwargs: Any) -> Any:
        dtype = torch.get_autocast_dtype("xla") if lower else torch.float32

        def cast(value: Any) -> Any:
            if not isinstance(value, torch.Tensor) or not value.is_floating_point():
                return value
            return value if value.dtype == torch.float64 else value.to(dtype)

        with torch._C._ExcludeDispatchKeyGuard(_KEY):
            cast_args, cast_kwargs = tree_map(cast, (args, kwargs))
            return overload(*cast_args, **cast_kwargs)

    return kernel
