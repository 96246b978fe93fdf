"""Kernels that make tensors or change how they look at their storage; nothing of it is recorded."""

# ruff: noqa: ARG001
# Torch's signatures.

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from neurontools.xla.buffers import META, default_strides, restride
from neurontools.xla.operators import find_overload

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.xla.kernels import Kernel
    from neurontools.xla.recorder import Recorder

VIEWS = ("as_strided", "view", "_reshape_alias", "unfold", "view_as_real", "view_as_complex")
_METADATA = (
    "set_.source_Tensor",
    "set_.source_Storage_storage_offset",
    "set_.source_Storage",
)


def _redispatch(overload: Any) -> Kernel:
    redispatch = overload.redispatch

    def kernel(*args: Any, **kwargs: Any) -> Any:
        return redispatch(META, *args, **kwargs)

    return kernel


def storage_kernels(recorder_for: Callable[[Any], Recorder]) -> dict[str, Kernel]:
    """Return the kernels by operator name; `recorder_for` finds the recorder of a device argument."""
    kernels = {name: _redispatch(find_overload(f"aten::{name}")) for name in (*VIEWS, *_METADATA)}

    def empty(
        size: Any, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None,
        memory_format: Any = None,
    ) -> torch.Tensor:  # fmt: skip
        shape = tuple(size)
        strides = default_strides(shape)
        if memory_format not in {None, torch.contiguous_format}:
            strides = torch.empty(shape, device="meta", memory_format=memory_format).stride()
        return recorder_for(device).empty(shape, strides, dtype or torch.get_default_dtype())

    def empty_strided(
        size: Any, stride: Any, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None
    ) -> torch.Tensor:  # fmt: skip
        return recorder_for(device).empty(tuple(size), tuple(stride), dtype or torch.get_default_dtype())

    def resize_(self: torch.Tensor, size: Any, memory_format: Any = None) -> torch.Tensor:
        if tuple(size) != tuple(self.size()):
            replacement = torch.empty(size, dtype=self.dtype, device=self.device)
            kept = min(self.numel(), replacement.numel())
            if kept:
                replacement.view(-1)[:kept].copy_(self.reshape(-1)[:kept])
            torch.ops.aten.set_.source_Tensor.redispatch(META, self, replacement)
        return self

    def as_strided_(self: torch.Tensor, size: Any, stride: Any, storage_offset: Any = None) -> torch.Tensor:
        offset = self.storage_offset() if storage_offset is None else storage_offset
        view = restride(self, (self.dtype, tuple(size), tuple(stride), offset))
        return torch.ops.aten.set_.source_Tensor.redispatch(META, self, view)

    return kernels | {
        "as_strided_": as_strided_,
        "empty.memory_format": empty,
        "empty_strided": empty_strided,
        "resize_": resize_,
    }
