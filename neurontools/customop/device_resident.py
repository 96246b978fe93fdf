"""Tensors in the simulated device memory: workers read them in place, without a copy."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from neurontools.customop.arena import Block, holds, process_arena
from neurontools.customop.marshalling import import_torch

if TYPE_CHECKING:
    import torch


def device_resident(tensor: torch.Tensor) -> torch.Tensor:
    """Return a dense CPU copy of a tensor in device memory, or the tensor itself if it is there already.

    Operators read it in place, through a read-only mapping, if the kernel takes a `const torch::Tensor&`. Their results
    are in device memory too. Forked children share it, like tensors of `share_memory_()`.

    Raises:
        CustomOpLibraryError: device memory is full.
        MissingDependencyError: torch is not installed.
    """
    if is_device_resident(tensor) and tensor.is_contiguous():
        return tensor
    dense = tensor.detach().cpu().contiguous()
    nbytes = dense.nbytes
    if nbytes == 0:
        return dense
    block = process_arena().allocate(nbytes, held=True)
    copy = tensor_in(block, tuple(dense.shape), dense.dtype, nbytes)
    copy.copy_(dense)
    return copy


def is_device_resident(tensor: torch.Tensor) -> bool:
    """Return whether a tensor's bytes are in device memory."""
    return tensor.device.type == "cpu" and holds(tensor.data_ptr())


def tensor_in(block: Block, sizes: tuple[int, ...], dtype: torch.dtype, nbytes: int) -> torch.Tensor:
    """Return a tensor at the end of a block; the tensor's storage keeps the block alive."""
    flat: Any = _frombuffer()(block, dtype=dtype, offset=block.nbytes - nbytes)
    return flat.view(*sizes) if sizes else flat.view(())


@cache
def _frombuffer() -> Any:
    return import_torch().frombuffer
