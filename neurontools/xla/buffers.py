"""Device buffers, the plain torch tensors that stand for them, and views that their memory does not allow.

A device tensor is a tensor of PrivateUse1 whose storage has a size but holds no bytes. The buffer is attached to the
storage's Python object, which lives exactly as long as the storage: views, detached tensors and saved tensors share one
buffer, and it ends with the last of them.

Tensors of the real torch_xla have no strides, so `view` never fails there. Here it returns a copy, which a later
in-place operator would change alone: that is reported.
"""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Any, Protocol

import torch

from neurontools.base.interrupts import is_of_handler
from neurontools.compiler.options import CompileError
from neurontools.xla.accelerator import LostValueError
from neurontools.xla.debugging.compile_log import current_source
from neurontools.xla.device_guard import storage_sizer
from neurontools.xla.device_name import XLA, device_name
from neurontools.xla.geometry import META, geometry_of, is_dense, layout_geometry
from neurontools.xla.stores import TensorStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.compiler.graph import Node
    from neurontools.xla.call_sites import CallSites


# ruff: noqa: SLF001
# Torch's private API.


NEVER = object()
LACKING = frozenset({"_neuron_buffer", "untyped_storage"})
"""Attributes that values which are not device tensors lack: an AttributeError of another name has another cause."""


class BufferOwner(TensorStore, Protocol):
    """The recorder of a device, as its buffers and the calls on them use it."""

    call_sites: CallSites
    epoch: object
    slots: list[DeviceBuffer]
    scalars: list[float]

    def calls(self) -> tuple[Node, ...]:
        """Return the operators that are recorded so far."""

    def bind(self, buffer: DeviceBuffer) -> int:
        """Make a buffer an input of the recording and return its part of the key."""

    def bind_overwritten(self, buffer: DeviceBuffer, values: tuple[Any, ...]) -> int:
        """Make the buffer of the first argument of a call, which is overwritten, an input of the recording."""

    def forget(self, buffer: DeviceBuffer) -> None:
        """Release the memory of a buffer; called from its finalizer."""


class DeviceBuffer:
    """The contents behind one storage.

    Args:
        recorder: the device.
        epoch: the recording in which `slot` counts; NEVER when no operator has used the buffer; the error of the operator
            that the compiler has refused if its contents depend on that.
        slot: the number in that recording.
        nbytes: size of the storage.
        layout_id: number of the geometry that `host` has, see `intern_layout`.

    `host` is the CPU tensor with the contents, or None while a recorded operator is still to compute it. `charged`
    is whether its device memory is accounted for.
    """

    __slots__ = ("epoch", "host", "layout_id", "nbytes", "recorder", "slot")

    def __init__(self, recorder: BufferOwner, epoch: object, slot: int, nbytes: int, layout_id: int) -> None:
        self.recorder = recorder
        self.epoch = epoch
        self.slot = slot
        self.nbytes = nbytes
        self.layout_id = layout_id
        self.host: torch.Tensor | None = None

    charged = False

    @property
    def is_blank(self) -> bool:
        """Whether it was neither written nor read: its contents are not set."""
        return self.host is None and self.epoch is NEVER

    def mark_charged(self) -> None:
        """Say that its device memory is accounted for: its end releases that."""
        self.__class__ = ChargedBuffer


class ChargedBuffer(DeviceBuffer):
    """A buffer whose device memory is accounted for. Only it has a finalizer: most buffers of a step never have memory."""

    __slots__ = ()
    charged = True

    def __del__(self) -> None:
        self.recorder.forget(self)


def lost_value(buffer: DeviceBuffer) -> LostValueError:
    """Return the error of a use of a buffer whose contents are lost."""
    reason, remedy = "the graph that computes it did not finish", "compute it again"
    if isinstance(buffer.epoch, CompileError):
        reason, remedy = buffer.epoch.message, buffer.epoch.remedy
    return LostValueError(f"a tensor on {buffer.recorder.device} has no value: {reason}", remedy)


def buffer_of(tensor: torch.Tensor) -> DeviceBuffer:
    """Return the buffer behind a device tensor.

    Raises:
        AttributeError: the tensor is not on the lazy device.
    """
    buffer: DeviceBuffer = tensor.untyped_storage()._neuron_buffer
    return buffer


def attach(handle: torch.Tensor, buffer: DeviceBuffer) -> None:
    """Attach a buffer to the storage of a new device tensor."""
    storage = handle.untyped_storage()
    storage._neuron_buffer = buffer
    _sizer()(storage, buffer.nbytes)


_sizer = functools.cache(storage_sizer)


def is_replaced(buffer: DeviceBuffer, target: torch.Tensor, *others: Any) -> bool:
    """Return whether a tensor covers all of a buffer that no other argument reads."""
    return layout_geometry(buffer.layout_id) == geometry_of(target) and not any(
        isinstance(other, torch.Tensor) and other.device == target.device and buffer_of(other) is buffer
        for other in others
    )


# ruff: noqa: SLF001
# Torch's private API.


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
        if device_name() != XLA or is_dense(tensor) or is_of_handler(error):
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
