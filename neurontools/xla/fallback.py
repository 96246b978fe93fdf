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
from neurontools.runtime.host_activity import HostEvent, observers
from neurontools.xla.accelerator import DeviceError
from neurontools.xla.debugging import metrics
from neurontools.xla.debugging.compile_log import current_source
from neurontools.xla.device_name import device_name
from neurontools.xla.execution import host_execution
from neurontools.xla.geometry import storage_of
from neurontools.xla.host_events import Observed
from neurontools.xla.operators import Kind, Operator, Parameter, call_arguments

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from neurontools.xla.stores import TensorStore, TensorStores


_log = logging.getLogger("neurontools.xla")
_warned: set[str] = set()
# The real device counts these as fallbacks too, but reading a value is not worth a warning.
_EXPECTED = {"aten::_local_scalar_dense", "aten::equal"}
_TAKES_CPU_TENSORS = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}


def kernel_for(stores: TensorStores, operator: Operator) -> Callable[..., Any]:
    """Return a dispatcher kernel that runs an operator on the CPU."""

    def kernel(*args: Any, **kwargs: Any) -> Any:
        return run_on_cpu(stores, operator, args, kwargs)

    return kernel


def record_slowly(stores: TensorStores, operator: Operator, values: tuple[Any, ...]) -> Any:
    """Record a call some of whose arguments (one per parameter) are not device tensors, or run it on the CPU.

    CPU scalars, and CPU indices where torch takes them, are uploaded first, as torch does for other devices.

    Raises:
        RuntimeError: a tensor is on the CPU that torch does not take from there.
    """
    if operator.pending_bits and any(map(has_pending_bits, _tensors(values))):
        return _record_resolved(operator, values)
    store = _store_in(stores, values)
    if store is None or not _can_move(operator, values):
        return run_on_cpu(stores, operator, *call_arguments(operator, values))
    upload = _Upload(operator, store, values)
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
    stores: TensorStores, operator: Operator, args: Sequence[Any], kwargs: dict[str, Any] | None = None
) -> Any:
    """Run an operator on the CPU and return its results on the device; cuts what its arguments wait for."""
    report(operator)
    values = (*args, *(kwargs or {}).values())
    store = _store_in(stores, values)
    device = next((v for v in values if isinstance(v, torch.device) and v.type == device_name()), None)
    if store is None and device is not None:
        store = stores.store(device)
    handles: dict[int, torch.Tensor] = {}

    def down(value: Any) -> Any:
        if isinstance(value, torch.device) and value.type == device_name():
            return torch.device("cpu")
        holder = stores.store_of(value)
        if holder is None:
            return value
        host = holder.read(value, operator.name)
        handles[storage_of(host)] = value
        return host

    def up(value: Any) -> Any:
        if store is None or not isinstance(value, torch.Tensor):
            return value
        check_layout(operator, value)
        same = handles.get(storage_of(value))
        if same is not None and same.shape == value.shape:
            return same
        return store.adopt(value if same is None else value.clone())

    with store.lock if store is not None else nullcontext():
        host_args, host_kwargs = tree_map(down, (list(args), kwargs or {}))
        with (
            host_execution(),
            store.drawing() if store is not None and operator.random else nullcontext(),
            Observed(HostEvent.CPU_OPERATOR, operator.name) if observers else nullcontext(),
        ):
            outcome = operator.overload(*host_args, **host_kwargs)
        return tree_map(up, outcome)


def check_layout(operator: Operator, result: torch.Tensor) -> None:
    """Check that the device can hold a result.

    Raises:
        DeviceError: it is quantized, or of a sparse layout.
    """
    if result.layout is not torch.strided or result.is_quantized:
        kind = "quantized tensor" if result.is_quantized else f"tensor of layout {result.layout}"
        raise DeviceError(
            f"{operator} returns a {kind}, which the {device_name()} device does not support",
            "move its arguments to the CPU first",
        )


def report(operator: Operator) -> None:
    """Count an operator that runs on the CPU, and warn about it the first time."""
    metrics.count(operator.name)
    if operator.name not in _EXPECTED and operator.name not in _warned:
        _warned.add(operator.name)
        record(RecordKind.ON_CPU, operator.name, current_source())
        _log.warning("%s is not recorded on the %s device: it runs on the CPU", operator.name, device_name())


class _Upload:
    def __init__(self, operator: Operator, store: TensorStore, values: Sequence[Any]) -> None:
        self._operator = operator
        self._store = store
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
                return self._store.adopt(torch.tensor(value, dtype=torch.result_type(self._first, value)))
        if value.device.type == device_name():
            return value
        if parameter.written or (value.dim() and self._operator.name not in _TAKES_CPU_TENSORS):
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, "
                f"{self._store.device} and {value.device}!"
            )
        with host_execution():
            return self._store.adopt(value.clone())


def _tensors(values: Sequence[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def _store_in(stores: TensorStores, values: Sequence[Any]) -> TensorStore | None:
    for tensor in _tensors(values):
        if (store := stores.store_of(tensor)) is not None:
            return store
    return None


def _can_move(operator: Operator, values: Sequence[Any]) -> bool:
    """Return whether everything that keeps a call from being recorded is on the host and can be uploaded."""
    movable = False
    for parameter, value in zip(operator.parameters, values, strict=True):
        if parameter.kind is Kind.GENERATOR and value is not None:
            return False
        if parameter.kind is Kind.DEVICE and value is not None and value.type != device_name():
            return False
        if parameter.kind in {Kind.TENSOR, Kind.OPTIONAL_TENSOR, Kind.TENSOR_LIST}:
            items = value if isinstance(value, (list, tuple)) else (value,)
            movable |= any(_is_on_host(item) for item in items)
    return movable


def _is_on_host(value: Any) -> bool:
    return value is not None and not (isinstance(value, torch.Tensor) and value.device.type == device_name())
