"""Storages of the device for programs that look at them: address and copy; their size too without the guard in C++.

They hold no bytes, so torch says 0 of all addresses, and refuses copies. Programs compare addresses to find
tensors that share memory, as safetensors does, and copy storages when they copy optimizers.
"""

# ruff: noqa: SLF001
# Torch's private API.

from __future__ import annotations

import functools
import itertools
from typing import TYPE_CHECKING, Any

import torch

from neurontools.native.selection import NEURON
from neurontools.xla.device_guard import is_registered

if TYPE_CHECKING:
    from collections.abc import Callable

_FIRST = 1 << 40
_RANGE = 1 << 40  # more than a device has
_numbers = itertools.count()


def install() -> None:
    """Let storages and tensors of the device answer as those of other devices."""
    storage = torch.UntypedStorage
    for kind, name, answer in (
        (storage, "data_ptr", _address),
        (storage, "clone", _clone),
        (torch.Tensor, "data_ptr", _address_of_tensor),
    ):
        setattr(kind, name, _on_device(answer, getattr(kind, name)))
    if not is_registered():
        storage.nbytes = _on_device(_size, storage.nbytes)
    storage.copy_ = _copying(storage.copy_)


def _on_device(answer: Callable[[Any], Any], method: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(method)
    def answer_or_call(value: Any) -> Any:
        return answer(value) if value.device.type == NEURON else method(value)

    return answer_or_call


def _address(storage: torch.UntypedStorage) -> int:
    if not _size(storage):
        return 0
    found: int | None = getattr(storage, "_neuron_address", None)
    if found is None:
        found = storage._neuron_address = _FIRST + next(_numbers) * _RANGE
    return found


def _address_of_tensor(tensor: torch.Tensor) -> int:
    address = _address(tensor.untyped_storage())
    return address and int(address + tensor.storage_offset() * tensor.element_size())


def _size(storage: torch.UntypedStorage) -> int:
    buffer = getattr(storage, "_neuron_buffer", None)  # a DTensor has none: its parts do
    return 0 if buffer is None else storage.nbytes() if is_registered() else int(buffer.nbytes)


def _clone(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    return _bytes(storage).clone().untyped_storage()


def _copying(copy: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that copies storages, those of the device by way of tensors."""

    @functools.wraps(copy)
    def copy_or_transfer(storage: torch.UntypedStorage, source: Any, *args: Any, **kwargs: Any) -> Any:
        if NEURON not in {storage.device.type, source.device.type}:
            return copy(storage, source, *args, **kwargs)
        _bytes(storage).copy_(_bytes(source))
        return storage

    return copy_or_transfer


def _bytes(storage: torch.UntypedStorage) -> torch.Tensor:
    whole = torch.empty(0, dtype=torch.uint8, device=storage.device)
    nbytes = _size(storage) if storage.device.type == NEURON else storage.nbytes()
    return whole.set_(storage, 0, (nbytes,), (1,))
