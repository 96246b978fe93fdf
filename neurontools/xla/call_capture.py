"""Capture of an unknown call: its arguments as graph values and host values, and how its results are made on later hits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from neurontools.compiler.graph import Arg, Lifted, Node, View, contiguous_strides
from neurontools.xla.buffers import BufferOwner, buffer_of, lost_value, report_write
from neurontools.xla.fallback import check_layout
from neurontools.xla.geometry import geometry_of, intern_layout, layout_geometry, storage_of, view_of
from neurontools.xla.graph_values import store_constant, view_from
from neurontools.xla.operators import Kind, Operator, Parameter, is_constant
from neurontools.xla.trie import Alias, Fresh, Recipe

if TYPE_CHECKING:
    from collections.abc import Sequence


_RARE_TYPES = frozenset(
    value
    for name, value in vars(torch).items()
    if isinstance(value, torch.dtype) and name.startswith(("complex", "float8"))
)
_IGNORED = frozenset({Kind.IGNORED, Kind.DEVICE})


class Call:
    """A call that is being captured.

    Args:
        recorder: the device; reading the call makes its buffers inputs of the recording.
        operator: what is called.
        values: one value per parameter.

    `host_args` and `host_kwargs` run it on the host; `tensors` are its tensor arguments in order; `written` the slots
    that it changes.
    """

    def __init__(self, recorder: BufferOwner, operator: Operator, values: tuple[Any, ...]) -> None:
        self.operator = operator
        self.tensors: list[torch.Tensor | None] = []
        self.written: list[int] = []
        self.host_args: list[Any] = []
        self.host_kwargs: dict[str, Any] = {}
        self._recorder = recorder
        self._values = values
        self._args: list[Arg] = []
        self._kwargs: list[tuple[str, Arg]] = []
        self._storages: dict[int, int] = {}

    def read(self) -> None:
        """Convert the arguments; those at the end that have their default are left out.

        Raises:
            UnstorableError: a constant cannot be stored in a graph.
        """
        last = _last_positional(self.operator, self._values)
        for position, (parameter, value) in enumerate(
            zip(self.operator.parameters, self._values, strict=True)
        ):
            if _omitted(parameter, value) if parameter.keyword_only else position > last:
                self._skip(parameter, value)
                continue
            ignored = parameter.kind in _IGNORED
            stored, host = self._convert(parameter, parameter.default if ignored else value)
            if parameter.keyword_only:
                self._kwargs.append((parameter.name, stored))
                self.host_kwargs[parameter.name] = host
            else:
                self._args.append(stored)
                self.host_args.append(host)

    def recipes(self, outcome: Any) -> tuple[tuple[Recipe, ...], tuple[torch.Tensor | None, ...]]:
        """Return how to make the results that the host gave, and their host tensors.

        Raises:
            DeviceError: a result is of a layout that the device does not have.
        """
        if self.operator.returns_parameter >= 0 or outcome is None:
            return (), ()
        hosts = tuple(outcome) if isinstance(outcome, (list, tuple)) else (outcome,)
        recipes: list[Recipe] = []
        own: dict[int, int] = {}
        slot = len(self._recorder.slots)
        for position, host in enumerate(hosts):
            recipe = None if host is None else self._recipe(host, own, slot)
            if isinstance(recipe, Fresh):
                own[storage_of(host)] = position
                slot += 1
            recipes.append(recipe)
        return tuple(recipes), hosts

    def returned(self, handles: list[torch.Tensor | None]) -> Any:
        """Return what the operator returns, with device tensors for its results."""
        if self.operator.returns_parameter >= 0:
            return self._values[self.operator.returns_parameter]
        return shape_results(self.operator, handles)

    def node(self, recipes: tuple[Recipe, ...]) -> Node:
        """Return the call in the graph's terms."""
        results: list[View | None] = []
        if self.operator.returns_parameter >= 0:
            returned = self._values[self.operator.returns_parameter]
            results.append(view_from(buffer_of(returned).slot, geometry_of(returned)))
        slots: list[int] = []
        for recipe in recipes:
            match recipe:
                case Fresh():
                    slots.append(recipe.slot)
                case Alias(of_result=True):
                    slots.append(slots[recipe.tensor])
                case Alias():
                    base = self.tensors[recipe.tensor]
                    assert base is not None
                    slots.append(buffer_of(base).slot)
                case _:
                    slots.append(-1)
            results.append(None if recipe is None else view_from(slots[-1], recipe.geometry))
        origin = self._recorder.call_sites.current(self._recorder)
        return Node(self.operator.graph_name, tuple(self._args), tuple(self._kwargs), tuple(results), *origin)

    def _skip(self, parameter: Parameter, value: Any) -> None:
        if parameter.kind is Kind.OPTIONAL_TENSOR:
            self.tensors.append(None)
        elif parameter.kind is Kind.TENSOR_LIST:
            self.tensors += value or ()

    def _recipe(self, host: torch.Tensor, own: dict[int, int], slot: int) -> Recipe:
        check_layout(self.operator, host)
        geometry = geometry_of(host)
        storage = storage_of(host)
        if storage in self._storages:
            return Alias(self._storages[storage], of_result=False, geometry=geometry)
        if storage in own:
            return Alias(own[storage], of_result=True, geometry=geometry)
        contiguous = geometry[3] == 0 and contiguous_strides(geometry[1]) == geometry[2]
        nbytes = host.untyped_storage().nbytes()
        return Fresh(slot, geometry, nbytes, intern_layout(nbytes, geometry), contiguous)

    def _convert(self, parameter: Parameter, value: Any) -> tuple[Arg, Any]:
        match parameter.kind:
            case Kind.TENSOR | Kind.OPTIONAL_TENSOR:
                return self._tensor(parameter, value)
            case Kind.TENSOR_LIST:
                pairs = [self._tensor(parameter, item) for item in value]
                return tuple(stored for stored, _ in pairs), [host for _, host in pairs]
            case Kind.SCALAR:
                return self._scalar(value)
            case Kind.SCALAR_LIST:
                pairs = [self._scalar(item) for item in value]
                return tuple(stored for stored, _ in pairs), [host for _, host in pairs]
        return store_constant(value), value

    def _scalar(self, value: Any) -> tuple[Arg, Any]:
        if is_constant(value):
            return store_constant(value), value
        self._recorder.scalars.append(value)
        return Lifted(len(self._recorder.scalars) - 1), value

    def _tensor(self, parameter: Parameter, tensor: torch.Tensor | None) -> tuple[Arg, torch.Tensor | None]:
        self.tensors.append(tensor)
        if tensor is None:
            return None, None
        buffer = buffer_of(tensor)
        if buffer.epoch is not self._recorder.epoch:
            if parameter.overwritten:
                self._recorder.bind_overwritten(buffer, self._values)
            else:
                self._recorder.bind(buffer)
        geometry = geometry_of(tensor)
        base = buffer.host
        if base is None:
            raise lost_value(buffer)
        host = base if layout_geometry(buffer.layout_id) == geometry else view_of(base, geometry)
        self._storages.setdefault(storage_of(host), len(self.tensors) - 1)
        if parameter.written:
            self.written.append(buffer.slot)
            report_write(tensor)
        return view_from(buffer.slot, geometry), host


def _last_positional(operator: Operator, values: tuple[Any, ...]) -> int:
    for position in reversed(range(len(values))):
        parameter = operator.parameters[position]
        if not parameter.keyword_only and not _omitted(parameter, values[position]):
            return position
    return -1


def _omitted(parameter: Parameter, value: Any) -> bool:
    if parameter.kind in _IGNORED:
        return True
    if not parameter.has_default:
        return False
    if parameter.kind is Kind.SCALAR:
        return value is parameter.default and is_constant(value)
    if isinstance(value, (list, tuple)) and parameter.default is not None:
        return list(value) == list(parameter.default)
    return value.__class__ is parameter.default.__class__ and bool(value == parameter.default)


def has_rare_type(tensors: Sequence[torch.Tensor | None]) -> bool:
    """Return whether one of the tensors has a data type that the compiler may lack."""
    return any(tensor is not None and tensor.dtype in _RARE_TYPES for tensor in tensors)


def fast_result(
    operator: Operator, recipes: tuple[Recipe, ...]
) -> tuple[tuple[int, ...], torch.dtype, int, int] | None:
    """Return shape, dtype, bytes and layout id of a single, new and contiguous result, else None."""
    if operator.single and len(recipes) == 1 and isinstance(recipes[0], Fresh) and recipes[0].contiguous:
        only = recipes[0]
        return (only.geometry[1], only.geometry[0], only.nbytes, only.layout_id)
    return None


def shape_results(operator: Operator | None, handles: list[torch.Tensor | None]) -> Any:
    """Return results as the operator does: one tensor, a list, a tuple, or nothing."""
    assert operator is not None
    if operator.single:
        return handles[0]
    if operator.returns_list:
        return handles
    return tuple(handles) if handles else None
