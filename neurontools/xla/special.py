"""Kernels that are more than one recorded call: storage, copies, views, and operators that devices bring themselves."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from neurontools.xla import fallback, metrics
from neurontools.xla.buffers import (
    META,
    buffer_of,
    default_strides,
    form_geometry,
    geometry_of,
    restride,
)
from neurontools.xla.engine import DeviceError
from neurontools.xla.guard import host_execution
from neurontools.xla.operators import Operator, find_overload, operator_of
from neurontools.xla.recorder import Recorder

Kernel = Callable[..., Any]
RecorderFor = Callable[[Any], Recorder]
VIEWS = ("as_strided", "view", "_reshape_alias", "unfold", "view_as_real", "view_as_complex")
_METADATA = (
    "set_.source_Tensor",
    "set_.source_Storage_storage_offset",
    "set_.source_Storage",
)


def special_kernels(record: Callable[[Operator], Kernel], recorder_for: RecorderFor) -> dict[str, Kernel]:
    """Return the kernels by operator name without the namespace.

    Args:
        record: makes the kernel that records an operator.
        recorder_for: finds the recorder of a device argument.
    """
    kernels: dict[str, Kernel] = {}
    for name in (*VIEWS, *_METADATA):
        kernels[name] = _redispatch(find_overload(f"aten::{name}"))
    kernels |= _storage_kernels(recorder_for)
    kernels |= _copy_kernels(record, recorder_for)
    kernels |= _layer_kernels(record)
    return kernels


def _redispatch(overload: Any) -> Kernel:
    redispatch = overload.redispatch

    def kernel(*args: Any, **kwargs: Any) -> Any:
        return redispatch(META, *args, **kwargs)

    return kernel


def _storage_kernels(recorder_for: RecorderFor) -> dict[str, Kernel]:
    def empty(
        size: Any, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None,
        memory_format: Any = None,
    ) -> torch.Tensor:  # fmt: skip
        shape = tuple(size)
        strides = default_strides(shape)
        if memory_format not in {None, torch.contiguous_format}:
            strides = torch.empty(shape, device="meta", memory_format=memory_format).stride()
        return recorder_for(device).empty(shape, strides, dtype or torch.get_default_dtype())

    def empty_strided(
        size: Any, stride: Any, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None
    ) -> torch.Tensor:  # fmt: skip
        return recorder_for(device).empty(tuple(size), tuple(stride), dtype or torch.get_default_dtype())

    def resize_(self: torch.Tensor, size: Any, memory_format: Any = None) -> torch.Tensor:
        if tuple(size) != tuple(self.size()):
            replacement = torch.empty(size, dtype=self.dtype, device=self.device)
            kept = min(self.numel(), replacement.numel())
            if kept:
                replacement.view(-1)[:kept].copy_(self.reshape(-1)[:kept])
            torch.ops.aten.set_.source_Tensor.redispatch(META, self, replacement)
        return self

    def as_strided_(self: torch.Tensor, size: Any, stride: Any, storage_offset: Any = None) -> torch.Tensor:
        offset = self.storage_offset() if storage_offset is None else storage_offset
        view = restride(self, (self.dtype, tuple(size), tuple(stride), offset))
        return torch.ops.aten.set_.source_Tensor.redispatch(META, self, view)

    return {
        "as_strided_": as_strided_,
        "empty.memory_format": empty,
        "empty_strided": empty_strided,
        "resize_": resize_,
    }


def _copy_kernels(record: Callable[[Operator], Kernel], recorder_for: RecorderFor) -> dict[str, Kernel]:
    copy_on_device = record(operator_of(torch.ops.aten.copy_.default))
    convert_on_device = record(operator_of(torch.ops.aten._to_copy.default))  # noqa: SLF001

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
        whole = buffer.epoch is not recorder.epoch and form_geometry(buffer.form) == geometry
        if whole:
            fresh = torch.empty_strided(geometry[1], geometry[2], dtype=geometry[0])
            fresh.copy_(host)
            recorder.fill(buffer, fresh)
        else:
            uploaded = recorder.adopt(host.to(target.dtype, copy=True))
    metrics.sample("TransferToDeviceTime", time.perf_counter_ns() - start_ns)
    metrics.sample("OutboundData", host.numel() * host.itemsize, "")
    return target if whole else copy_on_device(target, uploaded)


def _layer_kernels(record: Callable[[Operator], Kernel]) -> dict[str, Kernel]:
    aten = torch.ops.aten
    convolution = record(operator_of(aten.convolution.default))
    convolution_backward = record(operator_of(aten.convolution_backward.default))
    index = record(operator_of(aten.index.Tensor))
    index_operator = operator_of(aten.index.Tensor)

    def convolution_overrideable(*args: Any, **kwargs: Any) -> Any:
        return convolution(*args, **kwargs)

    def convolution_backward_overrideable(
        grad_output: Any, input: Any, weight: Any, stride: Any, padding: Any, dilation: Any, transposed: Any,
        output_padding: Any, groups: Any, output_mask: Any,
    ) -> Any:  # fmt: skip
        sizes = [weight.size(1) * groups if transposed else weight.size(0)]
        return convolution_backward(
            grad_output, input, weight, sizes, stride, padding, dilation, transposed, output_padding, groups, output_mask
        )  # fmt: skip

    def index_tensor(self: torch.Tensor, indices: Any) -> Any:
        masked = any(i is not None and i.dtype in {torch.bool, torch.uint8} for i in indices)
        return fallback.run_on_cpu(index_operator, (self, indices)) if masked else index(self, indices)

    # torch's device dropout scales after masking; the CPU's masks with a scaled mask. The CPU's is done here, so that
    # a model gives the same bits on both, and the scaled mask travels in the place of the boolean one.
    def native_dropout(input: torch.Tensor, p: float, train: bool | None) -> Any:
        if train is False or p == 0:
            return input.clone(), torch.ones_like(input)
        noise = (
            torch.empty_like(input).fill_(0)
            if p == 1
            else torch.empty_like(input).bernoulli_(1 - p).div_(1 - p)
        )
        return input * noise, noise

    def native_dropout_backward(grad_output: torch.Tensor, mask: torch.Tensor, scale: float) -> torch.Tensor:
        return grad_output * mask

    return {
        "convolution_overrideable": convolution_overrideable,
        "convolution_backward_overrideable": convolution_backward_overrideable,
        "index.Tensor": index_tensor,
        "native_dropout": native_dropout,
        "native_dropout_backward": native_dropout_backward,
    }


def out_kernel(overload: Any, record: Callable[[Operator], Kernel]) -> Kernel:
    """Return the kernel of an `out=` overload: the functional overload, then a copy into the outputs.

    Raises:
        DeviceError: when it is called and no functional overload fits.
    """
    schema = overload._schema  # noqa: SLF001
    names = [argument.name for argument in schema.arguments if argument.is_out]
    wanted = [argument.name for argument in schema.arguments if not argument.is_out]
    functional = _functional(overload, wanted)
    if functional is None:

        def refuse(*args: Any, **kwargs: Any) -> Any:
            raise DeviceError(f"{overload} is not available on the xla device", "call it without out=")

        return refuse
    compute = record(operator_of(functional))
    extra = {argument.name for argument in functional._schema.arguments} - set(wanted)  # noqa: SLF001

    def kernel(*args: Any, **kwargs: Any) -> Any:
        outputs = [kwargs.pop(name, None) for name in names]
        if outputs[0] is None:
            outputs, args = list(args[-len(names) :]), args[: -len(names)]
        if "dtype" in extra:
            kwargs["dtype"] = outputs[0].dtype
        if "device" in extra:
            kwargs["device"] = outputs[0].device
        results = compute(*args, **kwargs)
        results = results if isinstance(results, (list, tuple)) else (results,)
        for output, result in zip(outputs, results, strict=True):
            _put(output, result)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    return kernel


def _put(output: torch.Tensor, result: torch.Tensor) -> None:
    if output.shape == result.shape:
        output.copy_(result)
    else:
        torch.ops.aten.set_.source_Tensor.redispatch(META, output, result.to(output.dtype))


def _functional(overload: Any, wanted: list[str]) -> Any:
    packet = overload.overloadpacket
    for name in packet.overloads():
        candidate = getattr(packet, name)
        arguments = candidate._schema.arguments  # noqa: SLF001
        names = [argument.name for argument in arguments]
        if any(argument.is_out or argument.alias_info is not None for argument in arguments):
            continue
        if set(wanted) <= set(names) <= {*wanted, "dtype", "layout", "device", "pin_memory"}:
            return candidate
    return None
