"""libneuronxla on the simulated machine: the compile cache, and names that scripts call at their start."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from neurontools.compat.unsupported import missing_name

if TYPE_CHECKING:
    from collections.abc import Callable

__version__ = "2.2.0"


def __getattr__(name: str) -> Any:
    if name == "neuron_cc_cache":
        return import_module("libneuronxla.neuron_cc_cache")
    if name in {"neuron_xla_compile", "neuron_xla_wlo_compile"}:
        return getattr(import_module("neurontools.compat.model_builder.recording"), name)
    return missing_name(__name__, name)


def register_hlo_snapshot_callback(callback: Callable[[str, int, int], str]) -> None:
    """Do nothing: there is no HLO here, so no snapshots are written that a callback could choose.

    Args:
        callback: takes the name of a graph, the device's index and the number of the execution.

    Source: AWS Neuron documentation, "PyTorch NeuronX debugging".
    """
