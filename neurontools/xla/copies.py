"""Copies between host and device, and the values that they bring back."""

# ruff: noqa: ARG001, SLF001
# Torch's signatures, torch's private API.

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch

from neurontools.xla import metrics
from neurontools.xla.buffers import buffer_of, geometry_of, layout_geometry
from neurontools.xla.interp import host_execution
from neurontools.xla.operators import Operator, operator_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.xla.kernels import Kernel
    from neurontools.xla.recorder import Recorder


def copy_kernels(
    record: Callable[[Operator], Kernel], recorder_for: Callable[[Any], Recorder]
) -> dict[str, Kernel]:
    """Return the kernels by operator name.

    Args:
        record: makes the kernel that records an operator.
        recorder_for: finds the recorder of a device argument.
    """
    copy_on_device = record(operator_of(torch.ops.aten.copy_.default))
    convert_on_device = record(operator_of(torch.ops.aten._to_copy.default))

    def copy_(self: torch.Tensor, src: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        if self.device == src.device:
            return copy_on_device(self, src)
        if src.device.type == "xla":
            host = _download(src)
            if self.device.type == "xla":
                return _upload_into(self, host, copy_on_device)
            with host_execution():
                return self.copy_(host)
        return _upload_into(self, src, copy_on_device)

    def _copy_from(self: torch.Tensor, dst: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        return copy_(dst, self)

    def _to_copy(
        self: torch.Tensor, *, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None,
        non_blocking: bool = False, memory_format: Any = None,
    ) -> torch.Tensor:  # fmt: skip
        if self.device.type != "xla":
            return _to_device(self, dtype, device, memory_format)
        source = buffer_of(self).recorder
        if device is None or (device.type == "xla" and recorder_for(device) is source):
            return convert_on_device(self, dtype=dtype, memory_format=memory_format)
        host = _download(self)
        if device.type == "xla":
            return _to_device(host, dtype, device, memory_format)
        with host_execution():
            return host.to(
                device, dtype or self.dtype, memory_format=memory_format or torch.preserve_format, copy=True
            )

    def _to_device(host: torch.Tensor, dtype: Any, device: Any, memory_format: Any) -> torch.Tensor:
        with host_execution():
            copied = host.to(
                dtype=dtype or host.dtype, memory_format=memory_format or torch.preserve_format, copy=True
            )
        return _uploaded(recorder_for(device), copied)

    def _local_scalar_dense(self: torch.Tensor) -> Any:
        metrics.count("aten::_local_scalar_dense")
        return _download(self).item()

    return {
        "copy_": copy_,
        "_copy_from": _copy_from,
        "_to_copy": _to_copy,
        "_local_scalar_dense": _local_scalar_dense,
    }


def _download(tensor: torch.Tensor) -> torch.Tensor:
    start_ns = time.perf_counter_ns()
    host = buffer_of(tensor).recorder.read(tensor, "copy to the CPU")
    metrics.sample("TransferFromDeviceTime", time.perf_counter_ns() - start_ns)
    metrics.sample("InboundData", host.numel() * host.itemsize, "")
    return host


def _uploaded(recorder: Recorder, host: torch.Tensor) -> torch.Tensor:
    start_ns = time.perf_counter_ns()
    tensor = recorder.adopt(host)
    metrics.sample("TransferToDeviceTime", time.perf_counter_ns() - start_ns)
    metrics.sample("OutboundData", host.numel() * host.itemsize, "")
    return tensor


def _upload_into(target: torch.Tensor, host: torch.Tensor, copy_on_device: Kernel) -> torch.Tensor:
    start_ns = time.perf_counter_ns()
    buffer = buffer_of(target)
    recorder = buffer.recorder
    with recorder.lock, host_execution():
        geometry = geometry_of(target)
        whole = buffer.epoch is not recorder.epoch and layout_geometry(buffer.layout_id) == geometry
        if whole:
            fresh = torch.empty_strided(geometry[1], geometry[2], dtype=geometry[0])
            fresh.copy_(host)
            recorder.fill(buffer, fresh)
        else:
            uploaded = recorder.adopt(host.to(target.dtype, copy=True))
    metrics.sample("TransferToDeviceTime", time.perf_counter_ns() - start_ns)
    metrics.sample("OutboundData", host.numel() * host.itemsize, "")
    return target if whole else copy_on_device(target, uploaded)
