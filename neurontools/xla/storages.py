"""Storages of the device outside of torch's operators: how they grow, which are the same; none is shared or exported.

torch would take the address of their memory, or share it, but they hold no bytes.
"""

# ruff: noqa: SLF001
# Torch's private API.

from __future__ import annotations

import copy
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any

import torch
from torch.multiprocessing import reductions

from neurontools.xla.accelerator import DeviceError
from neurontools.xla.device_guard import resize_storage
from neurontools.xla.device_name import device_name
from neurontools.xla.geometry import META, layout_geometry

if TYPE_CHECKING:
    from collections.abc import Callable

_SET = torch.ops.aten.set_.source_Storage_storage_offset
_SHARED = "shared with another process"
_SEND_COPY = "send tensor.cpu(), and move it to the device in the other process"


def install() -> None:
    """Let torch refuse to share device storages, and tell them apart."""
    torch.UntypedStorage.share_memory_ = _refusing(torch.UntypedStorage.share_memory_)
    torch.UntypedStorage._new_shared = classmethod(_refusing_new(torch.UntypedStorage._new_shared.__func__))
    torch.UntypedStorage.resize_ = _resizing(torch.UntypedStorage.resize_)
    torch.UntypedStorage._set_from_file = _reading_on_host(torch.UntypedStorage._set_from_file)
    torch.TypedStorage._data_ptr = _identify(torch.TypedStorage._data_ptr)
    torch.Tensor.__dlpack__ = _refusing(torch.Tensor.__dlpack__, "exported by DLPack", "export tensor.cpu()")
    torch.to_dlpack = torch.utils.dlpack.to_dlpack = _refusing(
        torch.to_dlpack, "exported by DLPack", "export tensor.cpu()"
    )
    torch.Tensor.__copy__ = _copy
    for kind in (torch.Tensor, torch.nn.Parameter):
        ForkingPickler.register(kind, _refusing(reductions.reduce_tensor))


def extend_contents(storage: torch.UntypedStorage) -> None:
    """Extend the contents of a storage to its size: the tensors that share it keep theirs, and what is new is not set."""
    buffer, nbytes = getattr(storage, "_neuron_buffer", None), storage.nbytes()
    if buffer is None or nbytes <= buffer.nbytes:  # a DTensor has none: its parts do
        return
    dtype = layout_geometry(buffer.layout_id)[0]
    if nbytes % dtype.itemsize or buffer.nbytes % dtype.itemsize:
        dtype = torch.uint8
    extended = torch.empty(nbytes // dtype.itemsize, dtype=dtype, device=storage.device)
    if buffer.nbytes and not buffer.is_blank:
        before = torch.empty(0, dtype=dtype, device=storage.device)
        _SET.redispatch(META, before, storage, 0, [buffer.nbytes // dtype.itemsize], [1])
        extended[: before.numel()].copy_(before)
    storage._neuron_buffer = extended.untyped_storage()._neuron_buffer


def _resizing(resize: Callable[[Any, int], Any]) -> Callable[[Any, int], Any]:
    """Return a function that resizes storages, also those of the device.

    FSDP empties the storage of a gathered parameter, gives it its size back before it gathers the parameter again, and
    finds out by the size which of the two is due. On the device, the memory is freed with the last tensor instead.
    """

    def resize_any(storage: torch.UntypedStorage, size: int) -> Any:
        if storage.device.type != device_name():
            return resize(storage, size)
        resize_storage(storage, size)
        extend_contents(storage)
        return storage

    return resize_any


def _copy(tensor: torch.Tensor) -> Any:
    """Return a tensor that shares its storage with another, for `copy.copy`: torch would pickle the contents."""
    kind = type(tensor)
    if (
        tensor.device.type != device_name()
        or kind.__reduce_ex__ is not torch.Tensor.__reduce_ex__
        or tensor.is_nested
    ):
        return copy._reconstruct(tensor, None, *tensor.__reduce_ex__(4))  # type: ignore[attr-defined]
    with torch.no_grad():
        shared = tensor.as_strided(tensor.size(), tensor.stride()).detach()
    shared.requires_grad_(tensor.requires_grad)
    shared = shared if kind is torch.Tensor else shared.as_subclass(kind)
    return torch._utils._set_obj_state(shared, torch._utils._get_obj_state(tensor))


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
