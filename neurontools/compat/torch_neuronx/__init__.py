"""torch_neuronx on the simulated device: traced models, their placement, custom operators; `torch.neuron` under its name."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

from neurontools.compat.dependency import torch
from neurontools.compat.unsupported import ImportOnlyModule, missing_name, stand_in
from neurontools.native.activation import activate, is_active
from neurontools.native.selection import NEURON, chosen_device
from neurontools.xla import api

if not api.is_active() and chosen_device(os.environ, sys.argv, sys.orig_argv) == NEURON:
    activate()  # torch has not: TORCH_DEVICE_BACKEND_AUTOLOAD=0
elif not is_active():
    api.activate()

from neurontools.compat.bucketing import BucketModelConfig, bucket_model_trace
from neurontools.compat.core_placement import (
    async_load,
    dynamic_batch,
    lazy_load,
    move_trace_to_device,
    multicore_context,
    neuron_cores_context,
    replace_weights,
    set_multicore,
    set_neuron_cores,
)
from neurontools.compat.model_builder.spmd_model import Runtime, spmd_model
from neurontools.compat.operator_support import VERSION, analyze
from neurontools.compat.torch_neuronx.xla_impl.data_parallel import DataParallel
from neurontools.compat.tracing import PartitionerConfig, trace

__all__ = [
    "BucketModelConfig",
    "DataParallel",
    "PartitionerConfig",
    "analyze",
    "async_load",
    "bucket_model_trace",
    "dynamic_batch",
    "lazy_load",
    "move_trace_to_device",
    "multicore_context",
    "neuron_cores_context",
    "nki_op",
    "replace_weights",
    "set_multicore",
    "set_neuron_cores",
    "torch",
    "trace",
]
__version__ = VERSION
torch.classes.neuron = ImportOnlyModule("torch.classes.neuron")  # libraries name its classes in annotations
torch.classes.neuron.SPMDModel = spmd_model
torch.classes.neuron.Runtime = Runtime


def nki_op(
    name: str, function: Callable[..., Any] | None = None, /, *, mutates_args: str | Iterable[str] = ()
) -> Any:
    """Register a function that calls NKI kernels as an operator: a `torch.library.custom_op`, or a decorator for one.

    For the shapes of its results torch.compile runs the function on fake tensors, unless `register_fake` of the
    operator gives another one. `register_autograd` gives it a gradient.

    Source: AWS Neuron documentation, "About Neuron Kernel Interface (NKI)".
    """

    def register(function: Callable[..., Any]) -> Any:
        operator = torch.library.custom_op(name, function, mutates_args=mutates_args)
        operator.register_fake(function)
        return operator

    return register if function is None else register(function)


def wrap_nki(kernel: Callable[..., Any]) -> Any:
    """Return a kernel of NKI, of either generation, for calls with tensors: `wrap_nki(kernel)[cores](...)`.

    Source: AWS Neuron documentation, "About Neuron Kernel Interface (NKI)".
    """
    from neurontools.nki.launch import jit

    return kernel if hasattr(kernel, "on_grid") else jit(kernel)


def __getattr__(name: str) -> Any:
    if name in {"contexts", "experimental", "proto", "pyhlo", "profiling", "testing", "utils", "xla_impl"}:
        return import_module(f"torch_neuronx.{name}")
    if name == "nki":
        return import_module("nki")
    if name == "nki_jit":  # until release 2.24
        return import_module("neuronxcc.nki").trace
    if is_active() and hasattr(torch.neuron, name):
        return getattr(torch.neuron, name)
    return stand_in(__name__, name) or missing_name(__name__, name)
