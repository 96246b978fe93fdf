"""Kernels of tensors and storages: creation, copies, views, reading, resizing."""

# ruff: noqa: ARG001, SLF001
# Torch's signatures and private API.
# Torch's private API.

from __future__ import annotations

import copy
import ctypes
import time
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch
from torch.multiprocessing import reductions

from neurontools.compiler.graph_nodes import contiguous_strides
from neurontools.runtime.host_activity import HostEvent, observers
from neurontools.xla import buffers
from neurontools.xla.accelerator import DeviceError
from neurontools.xla.debugging import metrics
from neurontools.xla.debugging.compile_log import COPY, ITEM
from neurontools.xla.device_guard import register_views, resize_storage
from neurontools.xla.device_name import device_name
from neurontools.xla.execution import host_execution, is_host_execution
from neurontools.xla.fallback import has_pending_bits, resolve_bits
from neurontools.xla.geometry import META, layout_geometry, restride, storage_of
from neurontools.xla.host_events import report_copy
from neurontools.xla.operators import find_overload, operator_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.xla.operators import Kernel
    from neurontools.xla.stores import TensorStore, TensorStores

T = TypeVar("T")
VIEWS = ("as_strided", "view", "_reshape_alias", "unfold", "view_as_real", "view_as_complex")
_METADATA = (
    "set_",
    "set_.source_Tensor",
    "set_.source_Storage_storage_offset",
    "set_.source_Storage",
)
_SET_TENSOR = torch.ops.aten.set_.source_Tensor
_SET_STORAGE = torch.ops.aten.set_.source_Storage_storage_offset
_EXTERNAL_DEVICE = 12
_FLOAT, _INT, _UINT, _BFLOAT, _COMPLEX, _BOOL = 2, 0, 1, 4, 5, 6
_immortal: dict[int, _Description] = {}
_SET = torch.ops.aten.set_.source_Storage_storage_offset
_SHARED = "shared with another process"
_SEND_COPY = "send tensor.cpu(), and move it to the device in the other process"


def _redispatch(overload: Any) -> Kernel:
    redispatch = overload.redispatch

    def kernel(*args: Any, **kwargs: Any) -> Any:
        return redispatch(META, *args, **kwargs)

    return kernel


def set_view(self: torch.Tensor, *source: Any) -> torch.Tensor:
    """Make a device tensor a view of a tensor's or a storage's contents; the arguments are those of aten::set_.

    Raises:
        RuntimeError: the storage is on another device.
    """
    if not source:
        source = (torch.empty(0, dtype=self.dtype, device=self.device),)
    if isinstance(source[0], torch.Tensor):
        _SET_TENSOR.redispatch(META, self, source[0])
        return self
    # torch leaves out the strides of a tensor without dimensions.
    storage, offset, size, stride = (*source, ())[:4] if len(source) > 1 else _whole(self, source[0])
    _SET_STORAGE.redispatch(META, self, storage, offset, size, stride)
    extend_contents(storage)
    return self


def _whole(tensor: torch.Tensor, storage: torch.UntypedStorage) -> tuple[Any, ...]:
    return storage, 0, [storage.nbytes() // tensor.itemsize], [1]


def _strides(shape: tuple[int, ...], memory_format: Any) -> tuple[int, ...]:
    if memory_format in {None, torch.contiguous_format}:
        return contiguous_strides(shape)
    return tuple(torch.empty(shape, device="meta", memory_format=memory_format).stride())


def storage_kernels(stores: TensorStores) -> dict[str, Kernel]:
    """Return the kernels by operator name."""
    in_cpp = register_views()
    kernels = {name: _redispatch(find_overload(f"aten::{name}")) for name in VIEWS if name not in in_cpp}
    if "view" in kernels:
        kernels["view"] = buffers.view
    kernels |= dict.fromkeys(_METADATA, set_view)

    def empty(
        size: Any, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None,
        memory_format: Any = None,
    ) -> torch.Tensor:  # fmt: skip
        shape = tuple(size)
        strides = _strides(shape, memory_format)
        return stores.store(device).empty(shape, strides, dtype or torch.get_default_dtype())

    def empty_strided(
        size: Any, stride: Any, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None
    ) -> torch.Tensor:  # fmt: skip
        return stores.store(device).empty(tuple(size), tuple(stride), dtype or torch.get_default_dtype())

    # torch has tensors of zeros that no operator has to compute; here they are zeros like any others.
    def zeros(
        size: Any, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None
    ) -> torch.Tensor:
        return torch.zeros(size, dtype=dtype, device=device)

    def resize_(self: torch.Tensor, size: Any, memory_format: Any = None) -> torch.Tensor:
        if tuple(size) == tuple(self.size()) and memory_format is None:
            return self
        strides = _strides(tuple(size), memory_format)
        return set_view(self, self.untyped_storage(), self.storage_offset(), size, strides)

    def as_strided_(self: torch.Tensor, size: Any, stride: Any, storage_offset: Any = None) -> torch.Tensor:
        offset = self.storage_offset() if storage_offset is None else storage_offset
        view = restride(self, (self.dtype, tuple(size), tuple(stride), offset))
        return set_view(self, view)

    return kernels | {
        "as_strided_": as_strided_,
        "empty.memory_format": empty,
        "empty_strided": empty_strided,
        "_efficientzerotensor": zeros,
        "resize_": resize_,
    }


class _Device(ctypes.Structure):
    _fields_: ClassVar = [("type", ctypes.c_int32), ("index", ctypes.c_int32)]


class _DataType(ctypes.Structure):
    _fields_: ClassVar = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Description(ctypes.Structure):
    _fields_: ClassVar = [
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    ]


class HandleMaker:
    """Makes handles on one device other than the first."""

    def __init__(self, index: int) -> None:
        self._description = _Description()
        self._description.device = _Device(_EXTERNAL_DEVICE, index)
        self._new_capsule = ctypes.pythonapi.PyCapsule_New
        self._new_capsule.restype = ctypes.py_object
        self._new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]

    def __call__(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return an empty contiguous tensor."""
        # Never freed: torch reads the (absent) deleter when the tensor is freed, possibly after this maker.
        _immortal.setdefault(id(self._description), self._description)
        description = self._description
        sizes = (ctypes.c_int64 * max(len(shape), 1))(*shape)
        description.ndim = len(shape)
        description.shape = sizes
        description.dtype = _DataType(*_code(dtype), 1)
        capsule = self._new_capsule(ctypes.addressof(description), b"dltensor", None)
        tensor: torch.Tensor = torch._C._from_dlpack(capsule)
        resize_storage(
            tensor.untyped_storage(), 0
        )  # as those of the first device: who makes the buffer knows the size
        return tensor


def handle_maker(index: int) -> Any:
    """Return the function that makes an empty contiguous tensor on a device from shape and dtype."""
    return HandleMaker(index) if index else torch._C._acc.create_empty_tensor


def _code(dtype: torch.dtype) -> tuple[int, int]:
    bits = dtype.itemsize * 8
    if dtype == torch.bool:
        return _BOOL, bits
    if dtype == torch.bfloat16:
        return _BFLOAT, bits
    if dtype.is_complex:
        return _COMPLEX, bits
    if dtype.is_floating_point:
        return _FLOAT, bits
    return (_INT if dtype.is_signed else _UINT), bits


def copy_kernels(engine: TensorStores) -> dict[str, Kernel]:
    """Return the kernels by operator name."""
    name = device_name()
    copy_on_device = engine.kernel(operator_of(torch.ops.aten.copy_.default))
    convert_on_device = engine.kernel(operator_of(torch.ops.aten._to_copy.default))

    def copy_(self: torch.Tensor, src: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        if has_pending_bits(self) or has_pending_bits(src):
            return _copy_resolved(self, src)
        if self.device == src.device:
            return self if _is_same_element(self, src) else copy_on_device(self, src)
        source, target = engine.store_of(src), engine.store_of(self)
        if target is not None:
            host = src if source is None else _download(source, src, lambda host: host)
            return _upload_into(target, self, host, copy_on_device)
        assert source is not None
        return _download(source, src, self.copy_)

    def _copy_from(self: torch.Tensor, dst: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        return copy_(dst, self)

    def _to_copy(
        self: torch.Tensor, *, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None,
        non_blocking: bool = False, memory_format: Any = None,
    ) -> torch.Tensor:  # fmt: skip
        source = engine.store_of(self)
        if source is None:
            return _to_device(self, dtype, device, memory_format)
        if device is None or (device.type == name and engine.store(device) is source):
            return convert_on_device(self, dtype=dtype, memory_format=memory_format)
        if device.type == name:
            return _to_device(_download(source, self, lambda host: host), dtype, device, memory_format)
        form = memory_format or torch.preserve_format
        wanted = dtype or self.dtype
        return _download(source, self, lambda host: host.to(device, wanted, memory_format=form, copy=True))

    def _to_device(host: torch.Tensor, dtype: Any, device: Any, memory_format: Any) -> torch.Tensor:
        start_ns = time.monotonic_ns()
        return _uploaded(engine.store(device), _copied(host, dtype, memory_format), start_ns)

    def _local_scalar_dense(self: torch.Tensor) -> Any:
        metrics.count("aten::_local_scalar_dense")
        store = engine.store_of(self)
        assert store is not None
        return _download(store, self, torch.Tensor.item, ITEM)

    return {
        "copy_": copy_,
        "conj_physical_": _conj_physical_,
        "_copy_from": _copy_from,
        "_to_copy": _to_copy,
        "_local_scalar_dense": _local_scalar_dense,
    }


def _is_same_element(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors are one element in memory: of `x[None] = x`, torch's kernel would say that they overlap."""
    return (
        one.numel() == other.numel() == 1
        and storage_of(one) == storage_of(other)
        and (one.dtype, one.storage_offset()) == (other.dtype, other.storage_offset())
    )


def _copied(host: torch.Tensor, dtype: Any, memory_format: Any) -> torch.Tensor:
    """Return a copy of a host tensor, as `to` makes it."""
    if (
        (dtype is None or dtype is host.dtype)
        and memory_format is None
        and host.is_contiguous()
        and not has_pending_bits(host)
    ):
        if is_host_execution():
            return host.clone()  # faster than `to`
        with host_execution():
            return host.clone()
    with host_execution():
        return host.to(
            dtype=dtype or host.dtype, memory_format=memory_format or torch.preserve_format, copy=True
        )


def _copy_resolved(target: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """Copy from and to conjugate and negative views."""
    if target.is_conj():
        target.conj().copy_(source.conj())
    elif target.is_neg():
        torch._neg_view(target).copy_(torch.neg(source))
    else:
        target.copy_(resolve_bits(source))
    return target


def _conj_physical_(self: torch.Tensor) -> torch.Tensor:
    return self.copy_(self.conj().clone()) if self.is_complex() else self


def _download(
    store: TensorStore, tensor: torch.Tensor, copy: Callable[[torch.Tensor], T], cause: str = COPY
) -> T:
    """Return the copy of a tensor's contents that `copy` makes; a recorded value is computed first."""
    start_ns = time.monotonic_ns()
    host = store.read(tensor, cause)
    with host_execution():
        copied = copy(host)
    metrics.sample("TransferFromDeviceTime", time.monotonic_ns() - start_ns)
    metrics.sample("InboundData", host.numel() * host.itemsize, "B")
    if observers:
        report_copy(HostEvent.DOWNLOAD, start_ns, host.numel() * host.itemsize, store.device.index)
    return copied


def _uploaded(store: TensorStore, host: torch.Tensor, start_ns: int) -> torch.Tensor:
    tensor = store.adopt(host)
    metrics.sample("TransferToDeviceTime", time.monotonic_ns() - start_ns)
    metrics.sample("OutboundData", host.nbytes, "B")
    if observers:
        report_copy(HostEvent.UPLOAD, start_ns, host.nbytes, store.device.index)
    return tensor


def _upload_into(
    store: TensorStore, target: torch.Tensor, host: torch.Tensor, copy_on_device: Kernel
) -> torch.Tensor:
    start_ns = time.monotonic_ns()
    with store.lock, host_execution():
        is_whole = store.replace(target, host)
        if not is_whole:
            uploaded = store.adopt(host.to(target.dtype, copy=True))
    metrics.sample("TransferToDeviceTime", time.monotonic_ns() - start_ns)
    metrics.sample("OutboundData", host.numel() * host.itemsize, "B")
    if observers:
        report_copy(HostEvent.UPLOAD, start_ns, host.numel() * host.itemsize, store.device.index)
    return target if is_whole else copy_on_device(target, uploaded)


def install_storages() -> None:
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
