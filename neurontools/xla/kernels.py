"""Dispatcher kernels that record: straight-line Python generated per signature, because this runs for every operator.

A kernel builds the edge key of the trace cache from its arguments; on a hit it makes the results without running
anything, on a miss it hands over to the recorder, which learns the call by executing it.
"""

# ruff: noqa: S102, SLF001
# Text written here, never stored, torch's private API.

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from neurontools.xla import fallback
from neurontools.xla.buffers import LACKING, DeviceBuffer
from neurontools.xla.device_guard import storage_sizer
from neurontools.xla.device_name import device_name
from neurontools.xla.operators import Kind, Operator, find_overload, is_constant, operator_of
from neurontools.xla.recorder_lock import CALL

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.xla.operators import Kernel
    from neurontools.xla.stores import TensorStores

SOURCE_NAME = "<neurontools kernel>"
_GEOMETRY = "{0}.dtype, {0}.size(), {0}.stride(), {0}.storage_offset()"

_SCALAR_OVERLOADS = {"Tensor": "Scalar", "Tensor_mode": "Scalar_mode", "Tensor_Tensor": "Tensor_Scalar"}


class _Field(NamedTuple):
    name: str
    kind: Kind
    keyword_only: bool
    has_default: bool
    omits_default: bool
    is_changed_list: bool
    overwritten: bool


def kernel_for(operator: Operator, stores: TensorStores) -> Kernel:
    """Return the kernel that records an operator, or that runs it on the CPU if it cannot be recorded.

    `stores` are the recorders of the engine.
    """
    kinds = {parameter.kind for parameter in operator.parameters}
    if not operator.recordable or not kinds & {Kind.TENSOR, Kind.TENSOR_LIST, Kind.DEVICE}:
        return fallback.kernel_for(stores, operator)
    fields = tuple(
        _Field(
            p.name if p.keyword_only else f"a{position}",
            p.kind,
            p.keyword_only,
            p.has_default,
            p.kind is Kind.SCALAR and p.has_default and is_constant(p.default),
            p.kind is Kind.TENSOR_LIST and p.written,
            p.overwritten,
        )
        for position, p in enumerate(operator.parameters)
    )
    defaults = [tuple(p.default) if isinstance(p.default, list) else p.default for p in operator.parameters]
    scalar_overload = find_scalar_overload(operator)
    overload_keywords = (
        None if scalar_overload is None else tuple(p.keyword_only for p in scalar_overload.parameters)
    )
    make = _factory(fields, operator.returns_parameter, overload_keywords, operator.pending_bits)
    overload_kernel = None if scalar_overload is None else kernel_for(scalar_overload, stores)
    slowly = functools.partial(fallback.record_slowly, stores)
    kernel: Kernel = make(
        operator, defaults, slowly, stores.store, DeviceBuffer, storage_sizer(), overload_kernel
    )
    return kernel


def find_scalar_overload(operator: Operator) -> Operator | None:
    """Find the overload that takes a number as the second argument: torch hands numbers to the tensor overload."""
    schema = operator.overload._schema
    scalar_overload = find_overload(f"{schema.name}.{_SCALAR_OVERLOADS.get(schema.overload_name, '?')}")
    if (
        scalar_overload is None
        or len(operator.parameters) < 2
        or operator.parameters[1].kind is not Kind.TENSOR
    ):
        return None
    found = operator_of(scalar_overload)
    same = [p.name for p in found.parameters] == [p.name for p in operator.parameters]
    return found if same and found.parameters[1].kind is Kind.SCALAR else None


@functools.cache
def _factory(
    fields: tuple[_Field, ...], returned: int, overload_keywords: tuple[bool, ...] | None, pending_bits: bool
) -> Callable[..., Kernel]:
    namespace: dict[str, Any] = {
        "_increment_version": torch._C._increment_version,
        "_CALL": CALL,
        "_LACKING": LACKING,
    }
    text = "\n".join(_Writer(fields, returned, overload_keywords, pending_bits).lines())
    exec(compile(text, SOURCE_NAME, "exec"), namespace)
    factory: Callable[..., Kernel] = namespace["make"]
    return factory


class _Writer:
    """Writes the source text of a kernel factory for one signature."""

    def __init__(
        self,
        fields: tuple[_Field, ...],
        returned: int,
        overload_keywords: tuple[bool, ...] | None,
        pending_bits: bool,
    ) -> None:
        self._fields = fields
        self._pending_bits = pending_bits
        self._overload_keywords = overload_keywords
        self._returned = returned
        self._leader = next(
            (i for i, field in enumerate(fields) if field.kind in {Kind.TENSOR, Kind.TENSOR_LIST}), None
        )
        self._all = "(" + "".join(f"{field.name}, " for field in fields) + ")"

    def lines(self) -> list[str]:
        head = [
            "def make(_operator, defaults, _slowly, _recorder_for, _Buffer, _set_size, _scalar_overload):",
            *(f"    d{i} = defaults[{i}]" for i, field in enumerate(self._fields) if field.has_default),
            "    _index = _operator.index",
            f"    def kernel({self._declaration()}):",
        ]
        body = [
            *self._try_scalar_overload(),
            *(f"_increment_version({field.name})" for field in self._fields if field.is_changed_list),
            *self._find_buffers(),
            f"_recorder = {self._recorder()}",
            "_lock = _recorder.lock",
            "_lock.taken",
            "try:",
            "    if _recorder.unfinished is not None:",
            "        _recorder.settle()",
            "    _recorder.unfinished = _CALL",
            "    _epoch = _recorder.epoch",
            "    _slots = _recorder.slots",
            *(f"    {line}" for line in self._key()),
            "    _child = _recorder.node.edges.get(_key)",
            "    if _recorder.slots is not _slots:",
            f"        _result = _recorder.repeat(_operator, {self._all})",
            "    elif _child is None:",
            f"        _result = _recorder.learn(_operator, _key, {self._all})",
            *(f"    {line}" for line in self._result()),
            "    _recorder.unfinished = None",
            "    _lock.released",
            "    return _result",
            "except BaseException:",
            "    _lock.released",
            "    raise",
        ]
        return [*head, *(f"        {line}" for line in body), "    return kernel"]

    def _declaration(self) -> str:
        parts = []
        starred = False
        for position, field in enumerate(self._fields):
            if field.keyword_only and not starred:
                parts.append("*")
                starred = True
            parts.append(f"{field.name}=d{position}" if field.has_default else field.name)
        return ", ".join(parts)

    def _try_scalar_overload(self) -> list[str]:
        if self._overload_keywords is None:
            return []
        arguments = [
            f"{field.name}={field.name}" if keyword else field.name
            for field, keyword in zip(self._fields, self._overload_keywords, strict=True)
        ]
        second = self._fields[1].name
        return [
            f"if {second}.__class__ is float or {second}.__class__ is int or {second}.__class__ is bool:",
            f"    return _scalar_overload({', '.join(arguments)})",
        ]

    def _find_buffers(self) -> list[str]:
        gets = []
        for position, field in enumerate(self._fields):
            get = "{}.untyped_storage()._neuron_buffer"
            match field.kind:
                case Kind.TENSOR:
                    gets.append(f"    b{position} = {get.format(field.name)}")
                case Kind.OPTIONAL_TENSOR:
                    absent = f"None if {field.name} is None else "
                    gets.append(f"    b{position} = {absent}{get.format(field.name)}")
                case Kind.TENSOR_LIST:
                    element = f"None if t is None else {get.format('t')}"
                    gets.append(f"    b{position} = [{element} for t in {field.name}]")
        slowly = f"    return _slowly(_operator, {self._all})"
        caught = ["except AttributeError as error:", "    if error.name not in _LACKING:", "        raise"]
        lines = ["try:", *gets, *caught, slowly] if gets else []
        conditions = self._slow_conditions()
        return [*lines, f"if {' or '.join(conditions)}:", slowly] if conditions else lines

    def _slow_conditions(self) -> list[str]:
        conditions = []
        for field in self._fields:
            if field.kind is Kind.TENSOR and self._pending_bits:
                conditions.append(f"{field.name}.is_conj() or {field.name}.is_neg()")
            if field.kind is Kind.GENERATOR:
                conditions.append(f"{field.name} is not None")
            if field.kind is Kind.DEVICE and self._leader is not None:
                conditions.append(f"({field.name} is not None and {field.name}.type != {device_name()!r})")
        if self._leader is not None and self._fields[self._leader].kind is Kind.TENSOR_LIST:
            conditions.append(f"not b{self._leader} or b{self._leader}[0] is None")
        return conditions

    def _recorder(self) -> str:
        if self._leader is None:
            name = next(field.name for field in self._fields if field.kind is Kind.DEVICE)
            return f"_recorder_for({name})"
        item = "[0]" if self._fields[self._leader].kind is Kind.TENSOR_LIST else ""
        return f"b{self._leader}{item}.recorder"

    def _key(self) -> list[str]:
        lines = []
        parts = ["_index"]
        for position, (name, kind, _, _, omits_default, _, overwritten) in enumerate(self._fields):
            bind = f"bind_overwritten(b{position}, {self._all})" if overwritten else f"bind(b{position})"
            slot = f"b{position}.slot if b{position}.epoch is _epoch else _recorder.{bind}"
            part = f"k{position}"
            match kind:
                case Kind.TENSOR:
                    lines.append(f"{part} = {slot}")
                    part = f"{part}, {_GEOMETRY.format(name)}"
                case Kind.OPTIONAL_TENSOR:
                    value = f"({slot}, {_GEOMETRY.format(name)})"
                    lines.append(f"{part} = None if b{position} is None else {value}")
                case Kind.TENSOR_LIST:
                    lines.append(f"{part} = _recorder.describe({name}, b{position})")
                case Kind.SCALAR:
                    shortcut = f"None if {name} is d{position} else " if omits_default else ""
                    lines.append(f"{part} = {shortcut}_recorder.scalar({name})")
                case Kind.SCALAR_LIST:
                    lines.append(f"{part} = tuple([_recorder.scalar(v) for v in {name}])")
                case Kind.LIST:
                    lines.append(f"{part} = None if {name} is None else tuple({name})")
                case Kind.CONSTANT:
                    part = name
                case Kind.FIXED_SCALAR:
                    part = f"{name}.__class__, {name}"
                case _:
                    continue
            parts.append(part)
        return [*lines, f"_key = ({', '.join(parts)},)"]

    def _result(self) -> list[str]:
        if self._returned >= 0:
            returned = self._fields[self._returned].name
            return ["else:", "    _recorder.node = _child", f"    _result = {returned}"]
        tensors = "".join(
            f"{'*' if field.kind is Kind.TENSOR_LIST else ''}{field.name}, "
            for field in self._fields
            if field.kind in {Kind.TENSOR, Kind.OPTIONAL_TENSOR, Kind.TENSOR_LIST}
        )
        return [
            "elif (_fast_result := _child.fast_result) is None:",
            f"    _result = _recorder.produce(_child, ({tensors}), {self._all})",
            "else:",
            "    _result = _recorder.make(_fast_result[0], _fast_result[1])",
            "    _buffer = _Buffer(_recorder, _epoch, len(_slots), _fast_result[2], _fast_result[3])",
            "    _storage = _result.untyped_storage()",
            "    _set_size(_storage, _fast_result[2])",
            "    _storage._neuron_buffer = _buffer",
            "    _slots.append(_buffer)",
            "    if _recorder.slots is _slots:",
            "        _recorder.node = _child",
            "    else:",
            f"        _result = _recorder.repeat(_operator, {self._all})",
        ]
