"""Turns torch's PrivateUse1 into the device: name, guard, hooks, device module. All private API is used here."""

# ruff: noqa: SLF001
# Torch's private API.

from __future__ import annotations

import functools
import itertools
import logging
import os
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import torch
from torch.utils._pytree import tree_leaves, tree_map

from neurontools.errors import NeuronToolsError
from neurontools.xla.accelerator import DeviceError
from neurontools.xla.device_guard import is_registered, register_guard
from neurontools.xla.device_name import NEURON, XLA, device_name
from neurontools.xla.geometry import is_dense
from neurontools.xla.operators import find_overload
from neurontools.xla.rng import Generator

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from neurontools.xla.device_guard import GuardedDevices

    Cast = Callable[[tuple[Any, Any]], tuple[Any, Any]]

_NEEDED = (
    "create_empty_tensor",
    "register_python_privateuseone_device_guard",
    "register_python_privateuseone_hook",
    "DeviceGuard",
    "PrivateUse1Hooks",
)
_UNNAMED = "privateuseone"
_BEFORE_TORCHS_OWN = 19  # its own function for PrivateUse1, 23, makes bare storages
_FRAMES = torch._C._dynamo.eval_frame
_LEAVE_ALONE = _FRAMES._FrameExecStrategy(_FRAMES._FrameAction.SKIP, _FRAMES._FrameAction.SKIP)
_log = logging.getLogger("neurontools.xla")
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


def check_torch() -> None:
    """Check that this torch has what a device in Python needs.

    Raises:
        DeviceError: a private function is missing, or PrivateUse1 has another name.
    """
    missing = [
        name for name in _NEEDED if not hasattr(getattr(getattr(torch, "_C", None), "_acc", None), name)
    ]
    if missing:
        raise DeviceError(
            f"torch {torch.__version__} lacks {', '.join(missing)}, which the device is built on",
            "install torch 2.13",
        )


def rename() -> None:
    """Give PrivateUse1 the name of the device.

    Raises:
        DeviceError: another device has taken it in this process.
    """
    name, current = device_name(), torch._C._get_privateuse1_backend_name()
    if current not in {_UNNAMED, name}:
        raise DeviceError(
            f"torch's PrivateUse1 device is already called {current!r} in this process, so it cannot be {name!r}",
            "use one of the two packages per process",
        )
    if current == _UNNAMED:
        torch.utils.rename_privateuse1_backend(name)


def install_guard(devices: Callable[[], GuardedDevices]) -> None:
    """Register the device guard: the one in C++, or torch's in Python where that cannot be compiled.

    Args:
        devices: returns what the guard asks.
    """
    try:
        register_guard(os.path.dirname(torch.__file__), devices)
    except NeuronToolsError as error:
        # torch's own guard calls Python where an exception is on its way already: the process ends with SIGABRT.
        _log.warning(
            "no device guard in C++ (%s; %s): an exception or Ctrl-C in a backward pass aborts the process, and "
            "torch.accelerator can neither synchronize nor select a device",
            error.message,
            error.remedy,
        )
        acc = torch._C._acc
        acc.register_python_privateuseone_device_guard(_python_guard(acc))


def install(module: ModuleType) -> None:
    """Register hooks and the module `torch.xla`."""
    acc = torch._C._acc
    torch._register_device_module(device_name(), module)
    if not is_registered():
        acc.register_python_privateuseone_hook(_hooks(acc))
    torch.Generator = Generator
    torch.accelerator.empty_host_cache = lambda: None  # torch follows a null pointer
    torch.serialization.register_package(_BEFORE_TORCHS_OWN, lambda _: None, _restore)
    _default_to_bfloat16()
    keep_lowered_leaves()
    if device_name() == XLA:
        torch.Tensor.is_xla = property(lambda tensor: tensor.device.type == XLA)
        torch.Tensor.is_contiguous = _is_contiguous
    # A device's backward pass would otherwise hop to a thread per device: three times the cost on small models.
    torch.autograd.set_multithreading_enabled(False)


def _is_contiguous(
    tensor: torch.Tensor, memory_format: torch.memory_format = torch.contiguous_format
) -> bool:
    # As in torch_xla, whose tensors have no strides: `view` never fails there.
    return bool(tensor.device.type == XLA or is_dense(tensor, memory_format=memory_format))


def _restore(storage: Any, location: str) -> Any:
    """Upload a storage that torch.load maps to this device, None for another one."""
    if location.partition(":")[0] != device_name():
        return None
    return torch.empty(0, dtype=torch.uint8).set_(storage).to(location).untyped_storage()


def keep_from_compiler(function: Any) -> None:
    """Keep `torch.compile` away from a function that torch calls, and from all that this function calls.

    TorchDynamo compiles every Python frame that runs while compiled code does, kernels of this device included.
    """
    _FRAMES.set_code_exec_strategy(function.__code__, _LEAVE_ALONE)


def self_test() -> None:
    """Create a device tensor and check it, so that an unsupported torch fails here with a reason.

    Raises:
        DeviceError: tensors of this device do not behave as the engine needs it.
    """
    tensor = torch._C._acc.create_empty_tensor((2, 3), torch.float32)
    marker = object()
    tensor.untyped_storage()._neuron_buffer = marker
    meta = torch._C.DispatchKeySet(torch._C.DispatchKey.Meta)
    view = torch.ops.aten.as_strided.default.redispatch(meta, tensor, [3], [1], 0)
    del tensor
    storage = view.untyped_storage()
    if view.device.type != device_name() or getattr(storage, "_neuron_buffer", None) is not marker:
        raise DeviceError(
            f"torch {torch.__version__} does not keep views on the {device_name()} device",
            "install torch 2.13",
        )
    del storage._neuron_buffer


def _default_to_bfloat16() -> None:
    """Make bfloat16 the type of `torch.autocast` on the device: torch keeps float16 for devices, anew in every thread."""
    autocast = torch.amp.autocast_mode.autocast
    start = autocast.__init__

    @functools.wraps(start)
    def start_in_bfloat16(self: Any, device_type: str, dtype: Any = None, *args: Any, **kwargs: Any) -> None:
        if dtype is None and device_type == device_name():
            dtype = torch.bfloat16
        start(self, device_type, dtype, *args, **kwargs)

    autocast.__init__ = start_in_bfloat16
    torch.set_autocast_dtype(device_name(), torch.bfloat16)


def _hooks(acc: Any) -> Any:
    answers = dict.fromkeys(("is_available", "is_built", "has_primary_context"), lambda *_: True)
    return type("Hooks", (acc.PrivateUse1Hooks,), answers)()


def _python_guard(acc: Any) -> Any:
    # torch asks for the type some eighty times in a small training step: this answers without a Python frame.
    device_type = itertools.repeat(torch._C._autograd.DeviceType.PrivateUse1)
    return type("Guard", (acc.DeviceGuard,), {"type_": device_type.__next__})()


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
