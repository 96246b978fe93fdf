"""Device buffers and the plain torch tensors that stand for them.

A device tensor is a tensor of PrivateUse1 whose storage holds no bytes. The buffer is attached to the storage's Python
object, which lives exactly as long as the storage: views, detached tensors and saved tensors share one buffer, and it
ends with the last of them.
"""

# ruff: noqa: SLF001
# Torch's private API.

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import torch

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from neurontools.xla.rng import DeviceGenerator

META = torch._C.DispatchKeySet(torch._C.DispatchKey.Meta)
NEVER = object()
Geometry = tuple[torch.dtype, tuple[int, ...], tuple[int, ...], int]

_layout_ids: dict[tuple[int, Geometry], int] = {}
_layouts: list[tuple[int, Geometry]] = []


class BufferOwner(Protocol):
    """The interface of a device's recorder that buffers use."""

    device: torch.device
    epoch: object
    slots: list[DeviceBuffer]
    scalars: list[float]
    generator: DeviceGenerator

    @property
    def lock(self) -> AbstractContextManager[Any]:
        """Held while the recording changes."""
        ...

    def bind(self, buffer: DeviceBuffer) -> int:
        """Make a buffer an input of the recording and return its part of the key."""
        ...

    def adopt(self, host: torch.Tensor) -> torch.Tensor:
        """Return a device tensor whose contents are a host tensor; the caller gives up the host tensor."""
        ...

    def fill(self, buffer: DeviceBuffer, host: torch.Tensor) -> None:
        """Give a buffer its contents."""
        ...

    def read(self, tensor: torch.Tensor, cause: str) -> torch.Tensor:
        """Return the host view of a device tensor."""
        ...

    def forget(self, buffer: DeviceBuffer) -> None:
        """Release a buffer; called from its finalizer."""
        ...

    def finish_draws(self) -> None:
        """Run what is recorded if it draws random numbers."""
        ...


class DeviceBuffer:
    """The contents behind one storage.

    Args:
        recorder: the device.
        epoch: the recording in which `slot` counts; NEVER when no operator has used the buffer.
        slot: the number in that recording.
        nbytes: size of the storage.
        layout_id: number of the geometry that `host` has, see `intern_layout`.

    `host` is the CPU tensor with the contents, or None while a recorded operator is still to compute it. `charged`
    is whether its device memory is accounted for.
    """

    __slots__ = ("charged", "epoch", "host", "layout_id", "nbytes", "recorder", "slot")

    def __init__(self, recorder: BufferOwner, epoch: object, slot: int, nbytes: int, layout_id: int) -> None:
        self.recorder = recorder
        self.epoch = epoch
        self.slot = slot
        self.nbytes = nbytes
        self.layout_id = layout_id
        self.host: torch.Tensor | None = None
        self.charged = False

    def __del__(self) -> None:
        # `charged` is missing if __init__ was interrupted.
        if hasattr(self, "charged"):
            self.recorder.forget(self)


def geometry_of(tensor: torch.Tensor) -> Geometry:
    """Return dtype, shape, strides and offset."""
    return (tensor.dtype, tuple(tensor.size()), tuple(tensor.stride()), tensor.storage_offset())


def intern_layout(nbytes: int, geometry: Geometry) -> int:
    """Return the number of a storage size with a geometry; numbers keep the keys of the trace cache short."""
    key = (nbytes, geometry)
    layout_id = _layout_ids.get(key)
    if layout_id is None:
        layout_id = _layout_ids[key] = len(_layouts)
        _layouts.append(key)
    return layout_id


def layout_geometry(layout_id: int) -> Geometry:
    """Return the geometry of a layout."""
    return _layouts[layout_id][1]


def layout_bytes(layout_id: int) -> int:
    """Return the storage size of a layout, in bytes."""
    return _layouts[layout_id][0]


def view_of(host: torch.Tensor, geometry: Geometry) -> torch.Tensor:
    """Return a host tensor's storage seen through a geometry."""
    dtype, shape, strides, offset = geometry
    if host.dtype != dtype:
        flat = torch.empty(0, dtype=dtype)
        flat.set_(host.untyped_storage(), offset, shape, strides)
        return flat
    return torch.as_strided(host, shape, strides, offset)


def buffer_of(tensor: torch.Tensor) -> DeviceBuffer:
    """Return the buffer behind a device tensor.

    Raises:
        AttributeError: the tensor is not on the lazy device.
    """
    buffer: DeviceBuffer = tensor.untyped_storage()._neuron_buffer
    return buffer


def storage_of(tensor: torch.Tensor) -> int:
    """Return a number that identifies the storage of a tensor."""
    number: int = tensor.untyped_storage()._cdata
    return number


def attach(handle: torch.Tensor, buffer: DeviceBuffer) -> None:
    """Attach a buffer to the storage of a new device tensor."""
    handle.untyped_storage()._neuron_buffer = buffer


def maybe_buffer(value: Any) -> DeviceBuffer | None:
    """Return the buffer behind a value, None if it is not a tensor of the lazy device."""
    if isinstance(value, torch.Tensor) and value.device.type == "xla":
        return buffer_of(value)
    return None


def default_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of a contiguous tensor."""
    strides = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def restride(tensor: torch.Tensor, geometry: Geometry) -> torch.Tensor:
    """Return a device tensor's storage seen through a geometry of the same dtype; nothing is recorded."""
    return torch.ops.aten.as_strided.default.redispatch(
        META, tensor, list(geometry[1]), list(geometry[2]), geometry[3]
    )
