"""torch_neuronx.experimental: the older home of the placement functions, and the profiler."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from neurontools.compat.core_placement import (
    multicore_context,
    neuron_cores_context,
    set_multicore,
    set_neuron_cores,
)
from neurontools.compat.unsupported import missing_name

__all__ = ["multicore_context", "neuron_cores_context", "set_multicore", "set_neuron_cores"]


def __getattr__(name: str) -> Any:
    if name == "profiler":
        return import_module("torch_neuronx.experimental.profiler")
    return missing_name(__name__, name)
