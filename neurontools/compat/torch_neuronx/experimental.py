"""torch_neuronx.experimental: the older home of the placement functions."""

from __future__ import annotations

from typing import NoReturn

from neurontools.compat.core_placement import (
    multicore_context,
    neuron_cores_context,
    set_multicore,
    set_neuron_cores,
)
from neurontools.compat.missing import missing_name

__all__ = ["multicore_context", "neuron_cores_context", "set_multicore", "set_neuron_cores"]


def __getattr__(name: str) -> NoReturn:
    missing_name(__name__, name)
