"""Operators that are not recorded: run at once on the CPU, counted, and warned about once per operator."""

# ruff: noqa: SLF001
# Torch's private API.

from __future__ import annotations

import logging
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_map

from neurontools.cache.extraction import RecordKind, record
from neurontools.xla import metrics
from neurontools.xla.buffers import buffer_of, maybe_buffer, storage_of
from neurontools.xla.call_capture import call_arguments
from neurontools.xla.compile_log import current_source
from neurontools.xla.execution import host_execution
from neurontools.xla.operators import Kind, Operator, Parameter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from neurontools.xla.buffers import BufferOwner

_log = logging.getLogger("neurontools.xla")
_warned: set[str] = set()
# The real device counts these as fallbacks too, but reading a value is not worth a warning.
_EXPECTED = {"aten::_local_scalar_dense", "aten::equal"}
_TAKES_CPU_TENSORS = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}


def kernel_for(operator: Operator, recorder_for: Callable[[Any], BufferOwner]) -> Callable[..., Any]:
    """Return a dispatcher kernel that runs an operator on the CPU; `recorder_for` finds the recorder of a device."""

    def kernel(*args: Any, **kwargs: Any) -> Any:
        return run_on_cpu(operator, args, kwargs, recorder_for)

    return kernel


def record_slowly(
    recorder_for: Callable[[Any], BufferOwner], operator: Operator, values: tuple[Any, ...]
) -> Any:
    """Record a call some of whose arguments (one per parameter) are not device tensors, or run it on the CPU.

    CPU scalars, and CPU indices where torch takes them, are uploaded first, as torch does for other devices.

    Raises:
        RuntimeError: a tensor is on the CPU that torch does not take from there.
    """
    if operator.pending_bits and any(map(has_pending_bits, _tensors(values))):
        return _record_resolved(operator, values)
    recorder = _recorder_in(values)
    if recorder is None or not _can_move(operator, values):
        return run_on_cpu(operator, *call_arguments(operator, values), recorder_for)
    upload = _Upload(operator, recorder, values)
    moved = [upload(parameter, value) for parameter, value in zip(operator.parameters, values, strict=True)]
    args, kwargs = call_arguments(operator, moved)
    return operator.overload(*args, **kwargs)


def has_pending_bits(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is a conjugate or negative view, whose values are not those in memory."""
    return bool(tensor.is_conj() or tensor.is_neg())


def resolve_bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's values in memory of their own if it is a conjugate or negative view, else the tensor."""
    if tensor.is_conj():
        tensor = torch.ops.aten._conj_physical(tensor.conj())
    return torch.neg(torch._neg_view(tensor)) if tensor.is_neg() else tensor


def _record_resolved(operator: Operator, values: tuple[Any, ...]) -> Any:
    """Record a call on the values of its conjugate and negative views; what it writes goes through the view."""
    resolved = [resolve_bits(value) if isinstance(value, torch.Tensor) else value for value in values]
    args, kwargs = call_arguments(operator, resolved)
    outcome = operator.overload(*args, **kwargs)
    for parameter, view, value in zip(operator.parameters, values, resolved, strict=True):
        if parameter.written and view is not value:
            view.copy_(value)
    return outcome if operator.returns_parameter < 0 else values[operator.returns_parameter]


def run_on_cpu(
    operator: Operator,
    args: Sequence[Any],
    kwargs: dict[str, Any] | None = None,
    recorder_for: Callable[[Any], BufferOwner] | None = None,
) -> Any:
    """Run an operator on the CPU and return its results on the device; cuts what its arguments wait for.

    `recorder_for` finds the recorder of a device argument, for operators without tensors.
    """
    _count(operator)
    values = (*args, *(kwargs or {}).values())
    recorder = _recorder_in(values)
    device = next((v for v in values if isinstance(v, torch.device) and v.type == "xla"), None)
    if recorder is None and recorder_for is not None and device is not None:
        recorder = recorder_for(device)
    handles: dict[int, torch.Tensor] = {}

    def down(value: Any) -> Any:
        if isinstance(value, torch.device) and value.type == "xla":
            return torch.device("cpu")
        if maybe_buffer(value) is None:
            return value
        host = buffer_of(value).recorder.read(value, operator.name)
        handles[storage_of(host)] = value
        return host

    def up(value: Any) -> Any:
        if recorder is None or not isinstance(value, torch.Tensor):
            return value
        same = handles.get(storage_of(value))
        if same is not None and same.shape == value.shape:
            return same
        return recorder.adopt(value if same is None else value.clone())

    draws = recorder is not None and operator.random
    with recorder.lock if recorder is not None else nullcontext():
        if draws and recorder is not None:
            recorder.finish_draws()
        host_args, host_kwargs = tree_map(down, (list(args), kwargs or {}))
        with host_execution(), recorder.generator.scope() if draws and recorder else nullcontext():
            outcome = operator.overload(*host_args, **host_kwargs)
        return tree_map(up, outcome)


def _count(operator: Operator) -> None:
    metrics.count(operator.name)
    if operator.name not in _EXPECTED and operator.name not in _warned:
        _warned.add(operator.name)
        record(RecordKind.ON_CPU, operator.name, current_source())
        _log.warning("%s is not recorded on the xla device: it runs on the CPU", operator.name)


class _Upload:
    def __init__(self, operator: Operator, recorder: BufferOwner, values: Sequence[Any]) -> None:
        self._operator = operator
        self._recorder = recorder
        self._first = next(_tensors(values))

    def __call__(self, parameter: Parameter, value: Any) -> Any:
        if parameter.kind is Kind.TENSOR_LIST and value is not None:
            return [self._one(parameter, item) for item in value]
        if parameter.kind in {Kind.TENSOR, Kind.OPTIONAL_TENSOR}:
            return self._one(parameter, value)
        return value

    def _one(self, parameter: Parameter, value: Any) -> Any:
        if value is None:
            return None
        if not isinstance(value, torch.Tensor):
            with host_execution():
                return self._recorder.adopt(torch.tensor(value, dtype=torch.result_type(self._first, value)))
        if value.device.type == "xla":
            return value
        if parameter.written or (value.dim() and self._operator.name not in _TAKES_CPU_TENSORS):
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, "
                f"{self._recorder.device} and {value.device}!"
            )
        with host_execution():
            return self._recorder.adopt(value.clone())


def _tensors(values: Sequence[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def _recorder_in(values: Sequence[Any]) -> BufferOwner | None:
    for tensor in _tensors(values):
        if (buffer := maybe_buffer(tensor)) is not None:
            return buffer.recorder
    return None


def _can_move(operator: Operator, values: Sequence[Any]) -> bool:
    """Return whether everything that keeps a call from being recorded is on the host and can be uploaded."""
    movable = False
    for parameter, value in zip(operator.parameters, values, strict=True):
        if parameter.kind is Kind.GENERATOR and value is not None:
            return False
        if parameter.kind is Kind.DEVICE and value is not None and value.type != "xla":
            return False
        if parameter.kind in {Kind.TENSOR, Kind.OPTIONAL_TENSOR, Kind.TENSOR_LIST}:
            items = value if isinstance(value, (list, tuple)) else (value,)
            movable |= any(_is_on_host(item) for item in items)
    return movable


def _is_on_host(value: Any) -> bool:
    return value is not None and not (isinstance(value, torch.Tensor) and value.device.type == "xla")
