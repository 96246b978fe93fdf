"""torch_neuronx on the simulated device: traced models, their placement, custom operators."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from neurontools.compat.dependency import torch
from neurontools.compat.import_only import ImportOnlyModule, stand_in
from neurontools.compat.missing import missing_name
from neurontools.xla import api

api.activate()

from neurontools.compat.bucketing import BucketModelConfig, bucket_model_trace  # noqa: E402
from neurontools.compat.core_placement import (  # noqa: E402
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
from neurontools.compat.data_parallel import DataParallel  # noqa: E402
from neurontools.compat.operator_support import VERSION, analyze  # noqa: E402
from neurontools.compat.tracing import trace  # noqa: E402

__all__ = [
    "BucketModelConfig",
    "DataParallel",
    "analyze",
    "async_load",
    "bucket_model_trace",
    "dynamic_batch",
    "lazy_load",
    "move_trace_to_device",
    "multicore_context",
    "neuron_cores_context",
    "replace_weights",
    "set_multicore",
    "set_neuron_cores",
    "torch",
    "trace",
]
__version__ = VERSION
torch.classes.neuron = ImportOnlyModule("torch.classes.neuron")  # libraries name its classes in annotations


def __getattr__(name: str) -> Any:
    if name in {"experimental", "profiling", "utils", "xla_impl"}:
        return import_module(f"torch_neuronx.{name}")
    return stand_in(__name__, name) or missing_name(__name__, name)
