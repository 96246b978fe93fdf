"""`torch.save` and pickle of device tensors: the bytes of their storages and the name of the device, as for any device.

So `map_location` works in all its forms, and tensors that share a storage share it again after `torch.load`.
"""

# ruff: noqa: SLF001
# Torch's private API.

from __future__ import annotations

import copy
import functools
import threading
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from neurontools.native.selection import NEURON
from neurontools.xla.accelerator import DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Reduce = Callable[[torch.Tensor, int], Any]

_BEFORE_TORCHS_OWN = 5  # its tags for storages of the CPU have 10


class _Saving(threading.local):
    """The copies that a running `torch.save` has made of device storages, by the identity of the storage."""

    copies: dict[int, tuple[Any, torch.Tensor]] | None = None


_saving = _Saving()


def install() -> None:
    """Let torch save and pickle tensors of the device."""
    torch.Tensor._reduce_ex_internal = _with_device_tensors(torch.Tensor._reduce_ex_internal)
    torch.save = _remembering_copies(torch.save)
    torch.jit.load = _by_way_of_the_host(torch.jit.load)
    for kind in (torch.jit.ScriptModule, torch.jit.RecursiveScriptModule, torch.jit.ScriptFunction):
        for name in ("save", "save_to_buffer"):
            setattr(kind, name, _with_copy_on_host(getattr(kind, name)))
    torch.serialization.register_package(_BEFORE_TORCHS_OWN, _location, lambda *_: None)


def _remembering_copies(save: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(save)
    def save_with_copies(*args: Any, **kwargs: Any) -> None:
        outer = _saving.copies
        _saving.copies = {} if outer is None else outer
        try:
            save(*args, **kwargs)
        finally:
            _saving.copies = outer

    return save_with_copies


def _with_copy_on_host(save: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that saves TorchScript code with its tensors on the CPU: torch reads storages of the device itself."""

    @functools.wraps(save)
    def save_copy(module: Any, *args: Any, **kwargs: Any) -> Any:
        if any(value.device.type == NEURON for value in _constants(module)):
            raise DeviceError(
                "TorchScript code with constant tensors on the device cannot be saved",
                "trace or script it on the CPU",
            )
        if isinstance(module, torch.jit.ScriptFunction):  # has no tensors but constants
            return save(module, *args, **kwargs)
        tensors = (*module.parameters(), *module.buffers())
        on_device = any(tensor.device.type == NEURON for tensor in tensors)
        return save(copy.deepcopy(module).cpu() if on_device else module, *args, **kwargs)

    return save_copy


def _by_way_of_the_host(load: Callable[..., Any]) -> Callable[..., Any]:
    """Return `torch.jit.load` that loads on the CPU what goes to the device: torch cannot make its storages."""

    @functools.wraps(load)
    def load_and_move(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        if map_location is None or torch.device(map_location).type != NEURON:
            return load(f, map_location, *args, **kwargs)
        return load(f, "cpu", *args, **kwargs).to(map_location)

    return load_and_move


def _constants(module: Any) -> Iterator[torch.Tensor]:
    if isinstance(module, torch.jit.ScriptFunction):
        graph = module.inlined_graph  # nodes live no longer than this reference
        for node in graph.findAllNodes("prim::Constant"):
            if node.hasAttribute("value") and node.kindOf("value") == "t":
                yield node.t("value")
        return
    for part in module.modules():
        if hasattr(part, "code_with_constants"):
            constants = part.code_with_constants[1]
            yield from (v for v in constants.const_mapping.values() if isinstance(v, torch.Tensor))


def _with_device_tensors(reduce: Reduce) -> Reduce:
    def reduce_tensor(tensor: torch.Tensor, protocol: int) -> Any:
        if tensor.device.type != NEURON or is_traceable_wrapper_subclass(tensor):  # such as a DTensor
            return reduce(tensor, protocol)
        return reduce(_on_host(tensor, {} if _saving.copies is None else _saving.copies), protocol)

    return reduce_tensor


def _on_host(tensor: torch.Tensor, copies: dict[int, tuple[Any, torch.Tensor]]) -> torch.Tensor:
    """Return a host tensor with the same view of a copy of the same storage; the copy knows the device."""
    storage, plain = tensor.untyped_storage(), tensor.detach()
    found = copies.get(storage._cdata)
    if found is None or found[1].dtype != tensor.dtype:
        count = storage.nbytes() // tensor.element_size()
        is_whole = tensor.is_contiguous() and tensor.numel() == count
        found = storage, (plain if is_whole else plain.as_strided((count,), (1,), 0)).cpu()
        found[1].untyped_storage()._neuron_location = str(tensor.device)
        copies[storage._cdata] = found
    return (
        found[1]
        .as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        .requires_grad_(tensor.requires_grad)
    )


def _location(storage: Any) -> str | None:
    found: str | None = getattr(storage, "_neuron_location", None)
    return found
