"""Moves modules to the device and saves tensors as with any other device.

torch replaces the parameters of a module that moves to a PrivateUse1 device, and with them what optimizers and tied
layers refer to. The guard in C++ gives them their new contents instead. Without it they are swapped, unless an autograd
graph holds one of them.

`torch.save` and pickle write the bytes of storages and the name of the device. So `map_location` works in all its forms,
and tensors that share a storage share it again after `torch.load`.
"""

# ruff: noqa: SLF001
# Torch's private API.

from __future__ import annotations

import copy
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from neurontools.base.interrupts import is_of_handler
from neurontools.errors import NeuronToolsError
from neurontools.native.patches import replace
from neurontools.native.selection import NEURON
from neurontools.xla.accelerator import DeviceError
from neurontools.xla.device_guard import GUARD_REMEDY, is_registered, take_contents

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Convert = Callable[[torch.Tensor], torch.Tensor]

_BEFORE_TORCHS_OWN = 5  # its tags for storages of the CPU have 10


def install() -> None:
    """Let modules keep their parameters when they move to the device or away, and torch save and pickle tensors."""
    replace(nn.Module, "_apply", _convert_module)
    torch.Tensor.data = _assigned_across_devices(torch.Tensor.data)
    replace(torch.Tensor, "_reduce_ex_internal", _reduce)
    replace(torch, "save", _save)
    replace(torch.jit, "load", _load_script)
    for kind in (torch.jit.ScriptModule, torch.jit.RecursiveScriptModule, torch.jit.ScriptFunction):
        for name in ("save", "save_to_buffer"):
            replace(kind, name, _save_script)
    torch.serialization.register_package(
        _BEFORE_TORCHS_OWN, lambda storage: getattr(storage, "_neuron_location", None), lambda *_: None
    )


def _assigned_across_devices(data: Any) -> property:
    """Return `Tensor.data` that takes tensors of the device on others, and the reverse, as between GPU and CPU.

    FSDP with CPU offload moves a parameter to the CPU and back between its forward and its backward pass.
    """

    def assign(tensor: torch.Tensor, value: torch.Tensor) -> None:
        if (tensor.device.type == NEURON) == (value.device.type == NEURON) or take_contents(tensor, value):
            data.__set__(tensor, value)  # gives autograd the new device too
        elif tensor._use_count() > 1:
            raise DeviceError(
                "an autograd graph refers to this tensor: assigning data of another device would lose its gradient",
                GUARD_REMEDY,
            )
        else:
            torch._C._swap_tensor_impl(tensor, value.detach().requires_grad_(tensor.requires_grad))

    return property(data.__get__, assign, doc=data.__doc__)


def _convert_module(
    apply: Callable[..., nn.Module], module: nn.Module, convert: Convert, *args: Any, **kwargs: Any
) -> nn.Module:
    future = torch.__future__
    if isinstance(module, torch.jit.ScriptModule):
        return _convert_script_module(module, convert, {})
    if future.get_swap_module_params_on_conversion() or not _crosses(module, convert):
        return apply(module, convert, *args, **kwargs)
    _move_lazy(module, convert)
    if is_registered():
        with _assigning_data():
            return apply(module, convert, *args, **kwargs)
    tied = _owners_of_tied(module)
    try:
        future.set_swap_module_params_on_conversion(True)
        apply(module, convert, *args, **kwargs)
    except RuntimeError as error:
        if "Couldn't swap" not in str(error) or is_of_handler(error):
            raise
    else:
        _attach_hooks(module)
        return module
    finally:
        future.set_swap_module_params_on_conversion(False)
    apply(module, convert, *args, **kwargs)
    for (first, name), *others in tied:
        for owner, other_name in others:
            owner._parameters[other_name] = first._parameters[name]
    return module


@contextmanager
def _assigning_data() -> Iterator[None]:
    """Let modules assign `data` of another device, as from the CPU to a GPU: a parameter keeps its attributes and hooks."""
    are_compatible = torch._has_compatible_shallow_copy_type
    torch._has_compatible_shallow_copy_type = lambda *_: True
    try:
        yield
    finally:
        torch._has_compatible_shallow_copy_type = are_compatible


def _convert_script_module(module: Any, convert: Convert, converted: dict[int, torch.Tensor]) -> Any:
    """Convert the tensors of a TorchScript module by replacing them; `converted` are those of other modules before it."""
    for child in module.children():
        _convert_script_module(child, convert, converted)
    for tensors in (module._parameters, module._buffers):
        for name, tensor in tensors.items():
            if tensor._cdata not in converted:
                with torch.no_grad():
                    converted[tensor._cdata] = convert(tensor).requires_grad_(tensor.requires_grad)
            module._c.setattr(name, converted[tensor._cdata])
    return module


def _crosses(module: nn.Module, convert: Convert) -> bool:
    """Return whether a conversion moves the parameters of a module between the device and another one."""
    parameter = next(module.parameters(), None)
    if parameter is None or parameter.device.type == "meta":
        return False
    with torch.no_grad():
        try:
            kinds = {
                parameter.device.type,
                convert(torch.empty(0, dtype=parameter.dtype, device=parameter.device)).device.type,
            }
        except NeuronToolsError:
            raise
        except Exception as error:
            if is_of_handler(error):
                raise
            return False
    return len(kinds) == 2 and NEURON in kinds


def _attach_hooks(module: nn.Module) -> None:
    """Let autograd call the hooks of parameters again: it knows them by the contents that were swapped."""
    for parameter in module.parameters():
        for name in ("_backward_hooks", "_post_accumulate_grad_hooks"):
            hooks = getattr(parameter, name)
            if hooks:
                setattr(parameter, name, hooks)


def _move_lazy(module: nn.Module, convert: Convert) -> None:
    """Move parameters without a shape, as in `nn.LazyLinear`: torch would make empty parameters of it."""
    for owner in module.modules():
        for values in (owner._parameters, owner._buffers):
            for name, value in values.items():
                if is_lazy(value):
                    kind: Any = type(value)
                    like = convert(torch.empty(0, dtype=value.dtype, device=value.device))
                    values[name] = kind(value.requires_grad, like.device, like.dtype)


def _owners_of_tied(module: nn.Module) -> list[list[tuple[nn.Module, str]]]:
    """Return the modules and names of each parameter that has several."""
    owners: dict[int, list[tuple[nn.Module, str]]] = {}
    for owner in module.modules():
        for name, parameter in owner._parameters.items():
            if parameter is not None:
                owners.setdefault(id(parameter), []).append((owner, name))
    return [sharing for sharing in owners.values() if len(sharing) > 1]


class _Saving(threading.local):
    """The copies that a running `torch.save` has made of device storages, by the identity of the storage."""

    copies: dict[int, tuple[Any, torch.Tensor]] | None = None


_saving = _Saving()


def _save(save: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    outer = _saving.copies
    _saving.copies = {} if outer is None else outer
    try:
        save(*args, **kwargs)
    finally:
        _saving.copies = outer


def _save_script(save: Callable[..., Any], module: Any, *args: Any, **kwargs: Any) -> Any:
    """Save TorchScript code with its tensors on the CPU: torch reads storages of the device itself."""
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


def _load_script(
    load: Callable[..., Any], f: Any, map_location: Any = None, *args: Any, **kwargs: Any
) -> Any:
    """Load on the CPU what goes to the device: torch cannot make its storages."""
    if map_location is None or torch.device(map_location).type != NEURON:
        return load(f, map_location, *args, **kwargs)
    return load(f, "cpu", *args, **kwargs).to(map_location)


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


def _reduce(reduce: Callable[..., Any], tensor: torch.Tensor, protocol: int) -> Any:
    if tensor.device.type != NEURON or is_traceable_wrapper_subclass(tensor):  # such as a DTensor
        return reduce(tensor, protocol)
    return reduce(_on_host(tensor, {} if _saving.copies is None else _saving.copies), protocol)


def _on_host(tensor: torch.Tensor, copies: dict[int, tuple[Any, torch.Tensor]]) -> torch.Tensor:
    """Return a host tensor with the same view of a copy of the same storage; the copy knows the device."""
    storage, plain = tensor.untyped_storage(), tensor.detach()
    saved = copies.get(storage._cdata)
    if saved is None or saved[1].dtype != tensor.dtype:
        count = storage.nbytes() // tensor.element_size()
        is_whole = tensor.is_contiguous() and tensor.numel() == count
        saved = storage, (plain if is_whole else plain.as_strided((count,), (1,), 0)).cpu()
        saved[1].untyped_storage()._neuron_location = str(tensor.device)
        copies[storage._cdata] = saved
    return (
        saved[1]
        .as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        .requires_grad_(tensor.requires_grad)
    )
