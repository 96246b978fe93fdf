"""Chooses a kernel for each operator and registers it with torch's dispatcher."""

# ruff: noqa: ARG001, SLF001
# Torch's signatures, torch's private API.

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from neurontools.xla.copies import copy_kernels
from neurontools.xla.kernels import Kernel, kernel_for
from neurontools.xla.layers import attention, gru_cell, layer_kernels, lstm_cell
from neurontools.xla.operators import Operator, find_overload, operator_of
from neurontools.xla.out_variants import autocast_kernels, out_kernel
from neurontools.xla.tensor_kernels import VIEWS, storage_kernels

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.xla.recorder import Recorder

_KEY = "PrivateUse1"
# These have decompositions in torch that devices without kernels would take; recorded whole they make shorter graphs.
_WHOLE = {
    "ones", "zeros", "full", "arange", "linspace", "logspace", "eye", "rand", "randn", "randint", "randperm",
    "scalar_tensor", "tril_indices", "triu_indices", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like",
    "randint_like", "new_zeros", "new_ones", "new_full", "bernoulli", "clone", "repeat", "stack", "embedding",
    "select_backward", "slice_backward", "diagonal_backward", "constant_pad_nd", "masked_fill", "masked_scatter",
    "select_scatter", "slice_scatter", "index_put", "native_group_norm", "rsub", "binary_cross_entropy_with_logits",
}  # fmt: skip


_COMPOSITES: dict[str, Kernel] = {
    "scaled_dot_product_attention": attention,
    "_thnn_fused_lstm_cell": lstm_cell,
    "_thnn_fused_gru_cell": gru_cell,
}


class Registry:
    """The kernels of the device, kept alive for as long as the process runs."""

    def __init__(self, recorder_for: Callable[[Any], Recorder]) -> None:
        self._recorder_for = recorder_for
        self._everything = torch.library.Library("_", "IMPL")
        self._aten = torch.library.Library("aten", "IMPL")
        self._others: dict[str, Any] = {}

    def install(self) -> None:
        """Register every kernel."""
        specials = (
            storage_kernels(self._recorder_for)
            | copy_kernels(self.record, self._recorder_for)
            | layer_kernels(self.record)
        )
        for name, kernel in specials.items():
            self._aten.impl(name, kernel, _KEY)
        for qualified in torch._C._dispatch_get_all_op_names():
            name = qualified.removeprefix("aten::")
            if name == qualified or name in specials or not _wanted(qualified, name):
                continue
            overload = find_overload(qualified)
            if overload is not None:
                self._aten.impl(name, self._kernel(overload), _KEY)
        self._aten.impl("is_pinned", _is_pinned, "CPU")
        self._aten.impl("_pin_memory", _pin_memory, "CPU")
        self._everything.fallback(self._first_sight, _KEY)
        self._everything.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
        for name, kernel in autocast_kernels().items():
            self._aten.impl(name, kernel, "AutocastPrivateUse1")
        for key in ("AutogradPrivateUse1", _KEY):
            for name, kernel in _COMPOSITES.items():
                self._aten.impl(name, kernel, key)

    def record(self, operator: Operator) -> Kernel:
        """Return the kernel that records an operator."""
        return kernel_for(operator, self._recorder_for)

    def _kernel(self, overload: Any) -> Kernel:
        if any(argument.is_out for argument in overload._schema.arguments):
            return out_kernel(overload, self.record)
        return self.record(operator_of(overload))

    def _first_sight(self, overload: Any, *args: Any, **kwargs: Any) -> Any:
        """Register a kernel for an operator that has none yet, such as a custom operator, and call it."""
        kernel = self._kernel(overload)
        namespace = overload.namespace
        library = self._others.get(namespace)
        if library is None:
            library = self._others[namespace] = torch.library.Library(namespace, "IMPL")
        library.impl(overload, kernel, _KEY)
        return kernel(*args, **kwargs)


def _wanted(qualified: str, name: str) -> bool:
    plain = name.partition(".")[0]
    if plain in VIEWS:
        return False
    if plain.startswith("_foreach_") or plain in _WHOLE:
        return True
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(qualified, "CPU"))


def _is_pinned(self: torch.Tensor, device: Any = None) -> bool:
    return False


def _pin_memory(self: torch.Tensor, device: Any = None) -> torch.Tensor:
    return self.clone()
