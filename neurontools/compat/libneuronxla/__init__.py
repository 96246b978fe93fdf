"""libneuronxla on the simulated machine: the compile cache."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from neurontools.compat.import_only import stand_in
from neurontools.compat.missing import missing_name

__version__ = "2.2.0"


def __getattr__(name: str) -> Any:
    if name == "neuron_cc_cache":
        return import_module("libneuronxla.neuron_cc_cache")
    return stand_in(__name__, name) or missing_name(__name__, name)
