"""`torch.neuron`: what the native device has beside the functions that torch expects of any device."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NoReturn

from neurontools.base.text import suggest
from neurontools.native.cores import core_count
from neurontools.native.names import ALIASES, INSTEAD

if TYPE_CHECKING:
    from types import ModuleType


def install(module: ModuleType) -> None:
    """Add functions to `torch.neuron`, and an error for names that it lacks."""

    def missing(name: str) -> NoReturn:
        raise AttributeError(
            f"module 'torch.neuron' has no attribute {name!r}{_hint(module, name)}", name=name
        )

    module.__doc__ = __doc__
    additions = {
        "device_count": device_count,
        "is_available": is_available,
        **{name: getattr(module, other) for name, other in ALIASES.items()},
        "__getattr__": missing,
    }
    for name, value in additions.items():
        setattr(module, name, value)


def device_count() -> int:
    """Return the number of NeuronCores that this process may use; claims none, so that workers still can."""
    return core_count(os.environ)


def is_available() -> bool:
    """Return whether the machine has at least one NeuronCore with the native device."""
    return device_count() > 0


def _hint(module: ModuleType, name: str) -> str:
    if name.startswith("__"):
        return ""
    near: Any = INSTEAD.get(name) or suggest(name, [known for known in vars(module) if known[0] != "_"])
    return f": not simulated; nearest supported name: {near}" if near else ": not simulated"
