"""`torch.neuron`: what the native device has beside the functions that torch expects of any device."""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import Any, NoReturn

import torch

from neurontools.base.text import suggest
from neurontools.base.units import format_size
from neurontools.errors import NoMachineError
from neurontools.native.cores import core_count
from neurontools.native.names import ALIASES, INSTEAD, SUBMODULES, missing_name_error


def install(module: ModuleType) -> None:
    """Add functions to `torch.neuron`, and an error for names that it lacks."""
    module.__doc__ = __doc__
    additions = {
        "OutOfMemoryError": torch.OutOfMemoryError,
        "device_count": device_count,
        "is_available": is_available,
        "memory_stats": memory_stats,
        "memory_stats_as_nested_dict": memory_stats_as_nested_dict,
        "memory_summary": memory_summary,
        **{name: getattr(module, other) for name, other in ALIASES.items()},
    }
    _fill(module, additions)
    for name, functions in SUBMODULES.items():
        submodule = ModuleType(f"{module.__name__}.{name}", f"The functions of `torch.neuron` about {name}.")
        _fill(submodule, {function: getattr(module, function) for function in functions})
        sys.modules[submodule.__name__] = submodule
        setattr(module, name, submodule)


def device_count() -> int:
    """Return the number of NeuronCores that this process may use; claims none, so that workers still can."""
    return core_count(os.environ)


def is_available() -> bool:
    """Return whether a machine runs, or can be started, that has at least one NeuronCore with the native device."""
    try:
        return device_count() > 0
    except NoMachineError:
        return False


def memory_stats(device: Any = None) -> dict[str, Any]:
    """Return `torch.accelerator.memory_stats`: what is counted here, and 0 for the blocks of other allocators."""
    return dict(torch.accelerator.memory_stats(torch.neuron.Stream(device).device_index))


def memory_stats_as_nested_dict(device: Any = None) -> dict[str, Any]:
    """Return `memory_stats` with a dictionary for each part of a name between dots."""
    nested: dict[str, Any] = {}
    for name, value in torch.neuron.memory_stats(device).items():
        *groups, last = name.split(".")
        inner = nested
        for group in groups:
            inner = inner.setdefault(group, {})
        inner[last] = value
    return nested


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """Return a device's memory as text; `abbreviated` leaves out the device's name and size."""
    used, peak = torch.neuron.memory_allocated(device), torch.neuron.max_memory_allocated(device)
    free, total = torch.neuron.mem_get_info(device)
    lines = [f"allocated  {format_size(used)}", f"peak       {format_size(peak)}"]
    if not abbreviated:
        index = torch.neuron.Stream(device).device_index
        lines.insert(
            0,
            f"neuron:{index}, {torch.neuron.get_device_name(device)}, {format_size(total)} of device memory",
        )
        lines.append(f"free       {format_size(free)}")
    return "\n".join(lines)


def _fill(module: ModuleType, contents: dict[str, Any]) -> None:
    """Put names into a module, and an error for those that it lacks."""

    def missing(name: str) -> NoReturn:
        raise missing_name_error(module.__name__, name, _hint(module, name), sys._getframe(1))  # noqa: SLF001

    vars(module).update(contents, __getattr__=missing)


def _hint(module: ModuleType, name: str) -> str:
    if name.startswith("__"):
        return ""
    near: Any = INSTEAD.get(name) or suggest(name, [known for known in vars(module) if known[0] != "_"])
    return f": not simulated; nearest supported name: {near}" if near else ": not simulated"
