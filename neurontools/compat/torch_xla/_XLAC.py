"""torch_xla._XLAC: the functions of the real extension module that libraries call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from neurontools.cache.graph_facts import TensorType
from neurontools.compat.unsupported import missing_names
from neurontools.xla import api
from neurontools.xla.debugging import metrics
from neurontools.xla.debugging.debug_analysis import recorded_text
from neurontools.xla.graph_values import dtype_name

_ir_debug = [False]


__getattr__ = missing_names(__name__)


def _xla_get_tensor_id(tensor: torch.Tensor) -> int:
    """Return a number that tensors share exactly when they share memory; valid while they live.

    Raises:
        RuntimeError: the tensor is not on the device.
    """
    if tensor.device.type != "xla":
        raise RuntimeError(f"Input tensor is not an XLA tensor: {tensor.type()}")
    number: int = tensor.untyped_storage()._cdata  # noqa: SLF001
    return number


_xla_get_tensor_view_alias_id = _xla_get_tensor_id


def _xla_get_default_device() -> str:
    return "xla:0"


def _xla_get_default_device_ordinal() -> int:
    return 0


def _xla_get_devices() -> list[str]:
    return [f"NEURON:{index}" for index in range(api.device_count())]


_xla_get_all_devices = _xla_real_devices = _xla_get_devices


def _xla_num_devices() -> int:
    return api.device_count()


def _xla_device_kind(device: str) -> str:
    return api.engine().accelerator.device_kind()


def _xla_sync_multi(tensors: Sequence[torch.Tensor], devices: Sequence[str] = (), **options: Any) -> None:
    api.engine().sync()


def _xla_step_marker(device: str = "", devices: Sequence[str] = (), **options: Any) -> None:
    api.mark_step()


def _xla_wait_device_ops(devices: Sequence[str] = ()) -> None:
    api.wait_device_ops()


def _get_xla_tensors_text(tensors: Sequence[torch.Tensor]) -> str:
    """Return the recorded graph of tensors as text; tensors with values are inputs of it."""
    graph, held = api.engine().recorded_graph(tensors)
    return recorded_text(
        graph, [TensorType(dtype_name(tensor.dtype), tuple(tensor.shape)) for tensor in held]
    )


def _get_ir_debug() -> bool:
    return _ir_debug[0]


def _set_ir_debug(enabled: bool) -> None:
    """Keep the setting: graphs have the lines of the program and the names of layers always."""
    _ir_debug[0] = enabled


_xla_counter_names = metrics.counter_names
_xla_counter_value = metrics.counter_value
_xla_metric_names = metrics.metric_names
_xla_metric_data = metrics.metric_data
_xla_metrics_report = metrics.metrics_report
