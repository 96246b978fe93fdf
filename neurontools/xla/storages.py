"""Storages of the device outside of torch's operators: which are the same, and none can be shared or exported.

torch would take the address of their memory, or share it, but they hold no bytes.
"""

# ruff: noqa: SLF001
# Torch's private API.

from __future__ import annotations

from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any

import torch
from torch.multiprocessing import reductions

from neurontools.xla.accelerator import DeviceError
from neurontools.xla.device_name import device_name

if TYPE_CHECKING:
    from collections.abc import Callable

_SHARED = "shared with another process"
_SEND_COPY = "send tensor.cpu(), and move it to the device in the other process"


def install() -> None:
    """Let torch refuse to share device storages, and tell them apart."""
    torch.UntypedStorage.share_memory_ = _refusing(torch.UntypedStorage.share_memory_)
    torch.UntypedStorage._new_shared = classmethod(_refusing_new(torch.UntypedStorage._new_shared.__func__))
    torch.UntypedStorage.resize_ = _keeping_contents(torch.UntypedStorage.resize_)
    torch.UntypedStorage._set_from_file = _reading_on_host(torch.UntypedStorage._set_from_file)
    torch.TypedStorage._data_ptr = _identify(torch.TypedStorage._data_ptr)
    torch.Tensor.__dlpack__ = _refusing(torch.Tensor.__dlpack__, "exported by DLPack", "export tensor.cpu()")
    torch.to_dlpack = torch.utils.dlpack.to_dlpack = _refusing(
        torch.to_dlpack, "exported by DLPack", "export tensor.cpu()"
    )
    for kind in (torch.Tensor, torch.nn.Parameter):
        ForkingPickler.register(kind, _refusing(reductions.reduce_tensor))


def _keeping_contents(resize: Callable[[Any, int], Any]) -> Callable[[Any, int], Any]:
    """Return a function that only notes the new size of a storage of the device, and resizes others.

    FSDP empties the storage of a gathered parameter, gives it its size back before it gathers the parameter again, and
    finds out by the size which of the two is due. On the device, the memory is freed with the last tensor instead.
    """

    def resize_or_keep(storage: torch.UntypedStorage, size: int) -> Any:
        if storage.device.type != device_name():
            return resize(storage, size)
        buffer = getattr(storage, "_neuron_buffer", None)  # a DTensor has none: its parts do
        if buffer is not None and size > buffer.nbytes:
            raise DeviceError(f"a storage on {storage.device} cannot grow", "make a larger tensor instead")
        storage._neuron_size = size
        return storage

    return resize_or_keep


def _reading_on_host(read: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that fills storages from old checkpoint files, those of the device by way of the host."""

    def read_or_upload(storage: torch.UntypedStorage, *args: Any) -> Any:
        if storage.device.type != device_name():
            return read(storage, *args)
        size = storage._neuron_buffer.nbytes
        host = torch.empty(size, dtype=torch.uint8)
        read(host.untyped_storage(), *args)
        whole = torch.empty(0, dtype=torch.uint8, device=storage.device)
        whole.set_(storage, 0, (size,), (1,)).copy_(host)
        return storage

    return read_or_upload


def _identify(data_ptr: Callable[[Any], int]) -> Callable[[Any], int]:
    """Return a function that gives storages of the device a number each: torch.load takes those without as different."""

    def number(storage: torch.TypedStorage) -> int:
        untyped = storage._untyped_storage
        return int(untyped._cdata) if untyped.device.type == device_name() else data_ptr(storage)

    return number


def _refusing_new(make: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that makes shared storages on the CPU only: workers of a DataLoader put their batches there."""

    def make_or_refuse(kind: Any, size: int, *, device: Any = "cpu") -> Any:
        if torch.device(device).type == device_name():
            raise DeviceError(f"a tensor on {device} cannot be {_SHARED}", _SEND_COPY)
        return make(kind, size, device=device)

    return make_or_refuse


def _refusing(share: Callable[..., Any], what: str = _SHARED, remedy: str = _SEND_COPY) -> Callable[..., Any]:
    """Return a function that refuses tensors and storages of the device, and calls `share` for others."""

    def share_or_refuse(value: Any, *args: Any, **kwargs: Any) -> Any:
        if value.device.type == device_name():
            raise DeviceError(f"a tensor on {value.device} cannot be {what}", remedy)
        return share(value, *args, **kwargs)

    return share_or_refuse
