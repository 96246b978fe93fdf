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
from neurontools.xla.neff_operators import ATEN

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Values = Mapping[str, Any]

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
