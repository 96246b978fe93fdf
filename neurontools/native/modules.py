"""Moves modules to the device as to any other: their parameters stay the same objects.

torch replaces the parameters of a module that moves to a PrivateUse1 device, and with them what optimizers and tied
layers refer to. The guard in C++ gives them their new contents instead. Without it they are swapped, unless an autograd
graph holds one of them.
"""

# ruff: noqa: SLF001
# Torch's private API.

from __future__ import annotations

import functools
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from neurontools.base.interrupts import is_of_handler
from neurontools.errors import NeuronToolsError
from neurontools.native.selection import NEURON
from neurontools.xla.accelerator import DeviceError
from neurontools.xla.device_guard import GUARD_REMEDY, is_registered, take_contents

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Convert = Callable[[torch.Tensor], torch.Tensor]


def install() -> None:
    """Let modules keep their parameters when they move to the device, or away from it."""
    nn.Module._apply = _keeping_parameters(nn.Module._apply)
    torch.Tensor.data = _assigned_across_devices(torch.Tensor.data)


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


def _keeping_parameters(apply: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    future = torch.__future__

    @functools.wraps(apply)
    def convert_module(module: nn.Module, convert: Convert, *args: Any, **kwargs: Any) -> nn.Module:
        if isinstance(module, torch.jit.ScriptModule):
            return _convert_script_module(module, convert, {})
        if future.get_swap_module_params_on_conversion() or not _crosses(module, convert):
            return apply(module, convert, *args, **kwargs)
        _move_lazy(module, convert)
        if is_registered():
            with _assigning_data():
                return apply(module, convert, *args, **kwargs)
        tied = _tied_places(module)
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

    return convert_module


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
    """Move what has no shape yet, as in `nn.LazyLinear`: torch would make empty parameters of it."""
    for owner in module.modules():
        for values in (owner._parameters, owner._buffers):
            for name, value in values.items():
                if is_lazy(value):
                    kind: Any = type(value)
                    like = convert(torch.empty(0, dtype=value.dtype, device=value.device))
                    values[name] = kind(value.requires_grad, like.device, like.dtype)


def _tied_places(module: nn.Module) -> list[list[tuple[nn.Module, str]]]:
    """Return the places of each parameter that has several."""
    places: dict[int, list[tuple[nn.Module, str]]] = {}
    for owner in module.modules():
        for name, parameter in owner._parameters.items():
            if parameter is not None:
                places.setdefault(id(parameter), []).append((owner, name))
    return [found for found in places.values() if len(found) > 1]
