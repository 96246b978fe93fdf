"""Recording of a function on torch's meta device, as the graph that the device `xla` would record.

Operators arrive through torch's dispatcher. What the device records as a call, views or takes apart is decided by the
device's own rules (`xla.registry`, `xla.operators`), and a call becomes a node by its own code (`xla.call_capture`).
"""

# ruff: noqa: SLF001
# Torch's private API.

from __future__ import annotations

import functools
import sys
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.nn.functional as F  # noqa: N812
from torch.utils._python_dispatch import TorchDispatchMode, _pop_mode_temporarily

from neurontools.compiler.graph import Graph, Lifted, Slot, View
from neurontools.errors import NeuronToolsError
from neurontools.xla.buffers import NEVER, DeviceBuffer
from neurontools.xla.call_capture import Call
from neurontools.xla.geometry import geometry_of, intern_layout, storage_of
from neurontools.xla.graph_values import view_from
from neurontools.xla.kernels import find_scalar_overload
from neurontools.xla.layers import attention
from neurontools.xla.learning import HELD_BY_RECORDER
from neurontools.xla.operators import Kind, Operator, operator_of
from neurontools.xla.registry import is_recorded_whole, out_kernel
from neurontools.xla.trie import Fresh

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from neurontools.compiler.graph import Arg, Node
    from neurontools.xla.geometry import Geometry
    from neurontools.xla.operators import Parameter

_EMPTY = frozenset({"aten::empty", "aten::empty_strided", "aten::resize_"})
_OF_DEVICE = frozenset({"aten::copy_", "aten::_to_copy", "aten::convolution", "aten::convolution_backward"})
"""Operators that the device records whole, though torch has a kernel that takes them apart on other devices."""

_CONVOLUTIONS, _DIM_OF_ROWS = {"aten::convolution": 3, "aten::convolution_backward": 4}, 3

_EXPLICIT_KEYS = (
    torch._C.DispatchKey.CompositeExplicitAutograd,
    torch._C.DispatchKey.CompositeImplicitAutograd,
)


class UnrecordableError(NeuronToolsError):
    """A model cannot be recorded without its values."""


def record(function: Callable[..., Any], *arguments: Any) -> Graph:
    """Return the graph of a function on meta tensors, whose outputs are the buffers that its results use or it changes."""
    recording = _Recording()
    with as_on_device(), recording:
        results = function(*arguments)
    graph = recording.graph()
    del results
    return graph


@contextmanager
def as_on_device() -> Iterator[None]:
    """Compute attention as the device does, which torch would take apart before it is dispatched, and allow autocast."""
    compute, autocast = F.scaled_dot_product_attention, torch.autocast

    def autocast_of(device_type: str, *args: Any, **kwargs: Any) -> Any:
        return autocast("cpu" if device_type == "meta" else device_type, *args, **kwargs)

    F.scaled_dot_product_attention, torch.autocast = attention, autocast_of  # type: ignore[assignment]
    try:
        yield
    finally:
        F.scaled_dot_product_attention, torch.autocast = compute, autocast


class _NoSites:
    """Source lines and layers of calls, which an estimate does not need."""

    def current(self, _recording: Any) -> tuple[str, str]:
        return "", ""


class _MetaCall(Call):
    """A call whose meta tensors are its host values too."""

    def _tensor(self, parameter: Parameter, tensor: torch.Tensor | None) -> tuple[Arg, torch.Tensor | None]:
        self.tensors.append(tensor)
        if tensor is None:
            return None, None
        slot = self._recorder.bind(_buffer(self._recorder, tensor))
        self._storages.setdefault(storage_of(tensor), len(self.tensors) - 1)
        if parameter.written:
            self.written.append(slot)
        return view_from(slot, geometry_of(tensor)), tensor

    def signature(self, scalars: Sequence[float]) -> tuple[Any, ...]:
        """Return what the geometry of the results follows from."""

        def of(arg: Arg) -> Any:
            match arg:
                case View():
                    return arg.dtype, arg.shape, arg.strides, arg.offset
                case tuple():
                    return tuple(map(of, arg))
                case Lifted():
                    return type(scalars[arg.index])
            return type(arg), arg

        keywords = tuple((name, of(arg)) for name, arg in self._kwargs)
        return self.operator.index, tuple(map(of, self._args)), keywords


class _Recording(TorchDispatchMode):  # type: ignore[misc]
    """The operators of a program, in the terms of `xla.call_capture`."""

    device = "meta"

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch would import its compiler to keep it away

    def __init__(self) -> None:
        super().__init__()
        self.call_sites: Any = _NoSites()
        self.epoch = object()
        self.slots: list[DeviceBuffer] = []
        self.scalars: list[float] = []
        self._inputs: list[int] = []
        self._nodes: list[Node] = []
        self._visible: set[int] = set()

    def graph(self) -> Graph:
        """Return the recorded graph, whose outputs are the results that a tensor still refers to."""
        count, slots = sys.getrefcount, self.slots
        live = [slot for slot in sorted(self._visible) if count(slots[slot]) > HELD_BY_RECORDER]
        sizes = tuple(Slot(buffer.nbytes) for buffer in slots)
        return Graph(sizes, tuple(self._inputs), len(self.scalars), tuple(self._nodes), tuple(live))

    def bind(self, buffer: DeviceBuffer) -> int:
        """Return the slot of a buffer, a new input if it has none."""
        if buffer.epoch is not self.epoch:
            self._inputs.append(len(self.slots))
            self._own(buffer)
        return buffer.slot

    def _own(self, buffer: DeviceBuffer) -> None:
        buffer.epoch, buffer.slot = self.epoch, len(self.slots)
        self.slots.append(buffer)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name, operator = func._schema.name, operator_of(func)
        if func.is_view or name in _EMPTY or not _is_on_device(args, kwargs):
            return func(*args, **kwargs)
        if func is torch.ops.aten.index_put.default and args[3:4] == (True,):
            with self:  # torch's gradient of an index, which it takes only under a mode such as this
                return torch.ops.aten._index_put_impl_(*args[:4], True)
        if name in _CONVOLUTIONS and args[1].dim() == _DIM_OF_ROWS:
            with self:
                return _on_image(func, args, _CONVOLUTIONS[name])
        if not _is_whole(func):
            with self:
                return func._op_dk(_composite_key(func), *args, **kwargs)
        if any(argument.is_out for argument in func._schema.arguments):
            with self:
                return out_kernel(func, self._kernel)(*args, **kwargs)
        return self._call(operator, args, kwargs)

    def _kernel(self, operator: Operator) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            with _pop_mode_temporarily():
                return self._call(operator, args, kwargs)

        return call

    def _call(self, operator: Operator, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        if not operator.recordable:
            raise UnrecordableError(
                f"the model reads values of tensors while it runs ({operator.overload}), which an estimate does not have",
                "describe it in YAML, or capture a run and estimate its profile: --from PROFILE",
            )
        values = _values(operator, args, kwargs)
        if len(values) > 1 and type(values[1]) in {bool, int, float}:
            operator = _scalar_form(operator) or operator
        return self._record(operator, tuple(map(_uploaded, operator.parameters, values)))

    def _record(self, operator: Operator, values: tuple[Any, ...]) -> Any:
        call = _MetaCall(cast("Any", self), operator, values)
        call.read()
        key = call.signature(self.scalars)
        recipes = _known_results.get(key)
        if recipes is None:
            outcome = operator.overload(*call.host_args, **_with_device(operator, call.host_kwargs))
            if operator.name == "aten::native_layer_norm":
                outcome = _statistics_as_on_cpu(outcome, call.tensors)
            recipes, hosts = call.recipes(outcome)
            if all(isinstance(recipe, Fresh) and _is_whole_storage(recipe) for recipe in recipes):
                _known_results[key] = recipes
        else:
            first = len(self.slots)
            recipes = tuple(replace(recipe, slot=first + number) for number, recipe in enumerate(recipes))
            hosts = tuple(_empty(recipe.geometry) for recipe in recipes)
        self._nodes.append(call.node(recipes))
        self._visible.update(call.written)
        for recipe, host in zip(recipes, hosts, strict=True):
            if isinstance(recipe, Fresh) and host is not None:
                buffer = _buffer(self, host)
                self._own(buffer)
                self._visible.add(buffer.slot)
        return call.returned(list(hosts))


def _on_image(convolution: Any, args: Sequence[Any], at: int) -> Any:
    """Convolve rows as images of height 1, as torch does for the device; `at` is the place of the strides."""
    values = [v.unsqueeze(2) if isinstance(v, torch.Tensor) and v.dim() == _DIM_OF_ROWS else v for v in args]
    for place, first in ((at, 1), (at + 1, 0), (at + 2, 1), (at + 4, 0)):
        values[place] = [first, *values[place]]
    made = convolution(*values)
    results = tuple(
        v.squeeze(2) if v is not None and v.dim() > _DIM_OF_ROWS else v
        for v in (made if isinstance(made, tuple) else (made,))
    )
    return results if isinstance(made, tuple) else results[0]


_known_results: dict[tuple[Any, ...], tuple[Any, ...]] = {}
"""Results of calls by their signatures: layers repeat, and torch takes long to find shapes on the meta device."""


def _empty(geometry: Geometry) -> torch.Tensor:
    return torch.empty_strided(geometry[1], geometry[2], dtype=geometry[0], device="meta")


def _is_whole_storage(recipe: Fresh) -> bool:
    return recipe.geometry[3] == 0 and _empty(recipe.geometry).untyped_storage().nbytes() == recipe.nbytes


def _statistics_as_on_cpu(
    outcome: tuple[torch.Tensor, ...], operands: Sequence[torch.Tensor | None]
) -> tuple[torch.Tensor, ...]:
    """Return results of a layer norm, whose statistics are wide on GPUs, and on the CPU only beside wide weights."""
    weight = next((tensor for tensor in operands[1:] if tensor is not None), outcome[0])
    return (outcome[0], *(statistic.to(weight.dtype) for statistic in outcome[1:]))


def _buffer(recorder: Any, tensor: torch.Tensor) -> DeviceBuffer:
    storage = tensor.untyped_storage()
    buffer: DeviceBuffer | None = getattr(storage, "_neuron_buffer", None)
    if buffer is None:
        nbytes = storage.nbytes()
        buffer = DeviceBuffer(recorder, NEVER, 0, nbytes, intern_layout(nbytes, geometry_of(tensor)))
        storage._neuron_buffer = buffer
    return buffer


def _is_on_device(args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Return whether a call uses or makes a meta tensor; others run on the host."""
    for value in (*args, *kwargs.values()):
        for item in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(item, torch.Tensor):
                if item.is_meta:
                    return True
            elif isinstance(item, torch.device) and item.type == "meta":
                return True
    return False


@functools.cache
def _is_whole(overload: Any) -> bool:
    name = overload.name()
    return name in _OF_DEVICE or is_recorded_whole(name)


@functools.cache
def _composite_key(overload: Any) -> Any:
    return next(key for key in _EXPLICIT_KEYS if overload.has_kernel_for_dispatch_key(key))


_scalar_form = functools.cache(find_scalar_overload)


def _uploaded(parameter: Parameter, value: Any) -> Any:
    """Return a number as a tensor where an operator takes no number: the device uploads it."""
    if parameter.kind is not Kind.TENSOR or type(value) not in {bool, int, float}:
        return value
    return torch.empty((), dtype=torch.tensor(value, device="cpu").dtype, device="meta")


def _values(operator: Operator, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Return one value per parameter."""
    rest = operator.parameters[len(args) :]
    return (*args, *(kwargs.get(parameter.name, parameter.default) for parameter in rest))


def _with_device(operator: Operator, kwargs: dict[str, Any]) -> dict[str, Any]:
    has_device = any(parameter.kind is Kind.DEVICE for parameter in operator.parameters)
    return {**kwargs, "device": "meta"} if has_device else kwargs
