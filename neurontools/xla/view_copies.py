"""`view` on the device `xla` of a tensor whose memory does not allow it.

Tensors of the real torch_xla have no strides, so `view` never fails there. Here it returns a copy, which a later
in-place operator would change alone: that is reported.
"""

# ruff: noqa: SLF001
# Torch's private API.

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch

from neurontools.base.interrupts import is_of_handler
from neurontools.xla.debugging.compile_log import current_source
from neurontools.xla.device_name import XLA, device_name
from neurontools.xla.geometry import META

if TYPE_CHECKING:
    from collections.abc import Sequence

_log = logging.getLogger("neurontools.xla")
_reported: set[str] = set()


def define_copy() -> Any:
    """Define the operator that the kernel of `view` in C++ calls, and return its library."""
    library = torch.library.Library("neurontools", "FRAGMENT")
    library.define("copy_for_view(Tensor self) -> Tensor")
    library.impl("copy_for_view", _copy, "PrivateUse1")
    return library


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    copy = tensor.clone(memory_format=torch.contiguous_format)
    copy.untyped_storage()._neuron_view_copy = True
    return copy


def view(tensor: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
    """Return a view of a device tensor, on the device `xla` of a copy if necessary: the kernel without C++."""
    redispatch = torch.ops.aten.view.default.redispatch
    try:
        return redispatch(META, tensor, size)
    except RuntimeError as error:
        if device_name() != XLA or tensor.is_contiguous() or is_of_handler(error):
            raise
        return redispatch(META, _copy(tensor), size)


def report_write(tensor: torch.Tensor) -> None:
    """Warn about an in-place operator on a copy that stands for a view, once for each line of the program."""
    if not hasattr(tensor.untyped_storage(), "_neuron_view_copy"):
        return
    source = current_source()
    if source not in _reported:
        _reported.add(source)
        _log.warning(
            "an in-place operator at %s changes a copy: the tensor is a view() of one whose memory is not contiguous, "
            "and which does not change with it; call contiguous() before view()",
            source or "an unknown line",
        )
