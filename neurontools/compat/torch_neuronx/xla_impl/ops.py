"""torch_neuronx.xla_impl.ops: operators that the device has by themselves, and functions that build HLO."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from neurontools.compat.model_builder.hlo_functions import (
    Argmax,
    ConcatenateOp,
    RmsNorm,
    Softmax,
    TopK,
    xla_hlo_call,
)
from neurontools.compat.unsupported import missing_name

xla_call = xla_hlo_call
__all__ = ["Argmax", "ConcatenateOp", "RmsNorm", "Softmax", "TopK", "xla_call", "xla_hlo_call"]


def __getattr__(name: str) -> Any:
    return import_module("neuronxcc.nki").trace if name == "nki_jit" else missing_name(__name__, name)
