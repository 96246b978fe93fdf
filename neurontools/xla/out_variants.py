"""Kernels that wrap other operators: `out=` overloads and autocast."""

# ruff: noqa: ARG001, SLF001
# Torch's signatures and private API.

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_map

from neurontools.xla.accelerator import DeviceError
from neurontools.xla.buffers import META
from neurontools.xla.operators import Operator, find_overload, operator_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.xla.kernels import Kernel


def out_kernel(overload: Any, record: Callable[[Operator], Kernel]) -> Kernel:
    """Return the kernel of an `out=` overload: the functional overload, then a copy into the outputs.

    Raises:
        DeviceError: when it is called and no functional overload fits.
    """
    schema = overload._schema
    names = [argument.name for argument in schema.arguments if argument.is_out]
    wanted = [argument.name for argument in schema.arguments if not argument.is_out]
    functional = _functional(overload, wanted)
    if functional is None:

        def refuse(*args: Any, **kwargs: Any) -> Any:
            raise DeviceError(f"{overload} is not available on the xla device", "call it without out=")

        return refuse
    compute = record(operator_of(functional))
    extra = {argument.name for argument in functional._schema.arguments} - set(wanted)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        outputs = [kwargs.pop(name, None) for name in names]
        if outputs[0] is None:
            outputs, args = list(args[-len(names) :]), args[: -len(names)]
        if "dtype" in extra:
            kwargs["dtype"] = outputs[0].dtype
        if "device" in extra:
            kwargs["device"] = outputs[0].device
        results = compute(*args, **kwargs)
        results = results if isinstance(results, (list, tuple)) else (results,)
        for output, result in zip(outputs, results, strict=True):
            _put(output, result)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    return kernel


def _put(output: torch.Tensor, result: torch.Tensor) -> None:
    if output.shape == result.shape:
        output.copy_(result)
    else:
        torch.ops.aten.set_.source_Tensor.redispatch(META, output, result.to(output.dtype))


def _functional(overload: Any, wanted: list[str]) -> Any:
    packet = overload.overloadpacket
    for name in packet.overloads():
        candidate = getattr(packet, name)
        arguments = candidate._schema.arguments
        names = [argument.name for argument in arguments]
        if any(argument.is_out or argument.alias_info is not None for argument in arguments):
            continue
        if set(wanted) <= set(names) <= {*wanted, "dtype", "layout", "device", "pin_memory"}:
            return candidate
    return None


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
