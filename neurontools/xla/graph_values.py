"""Tensors in the graph's terms, and back: geometries of views, layouts, data types, constants."""

from __future__ import annotations

import functools
from typing import Any

import torch

from neurontools.compiler.graph import Arg, Symbol, View

# ruff: noqa: SLF001
# Torch's private API.


META = torch._C.DispatchKeySet(torch._C.DispatchKey.Meta)
Geometry = tuple[torch.dtype, tuple[int, ...], tuple[int, ...], int]

_layout_ids: dict[tuple[int, Geometry], int] = {}
_layouts: list[tuple[int, Geometry]] = []


def geometry_of(tensor: torch.Tensor) -> Geometry:
    """Return dtype, shape, strides and offset."""
    return (tensor.dtype, tuple(tensor.size()), tuple(tensor.stride()), tensor.storage_offset())


def intern_layout(nbytes: int, geometry: Geometry) -> int:
    """Return the number of a storage size with a geometry; numbers keep the keys of the trace cache short."""
    key = (nbytes, geometry)
    layout_id = _layout_ids.get(key)
    if layout_id is None:
        layout_id = _layout_ids[key] = len(_layouts)
        _layouts.append(key)
    return layout_id


def layout_geometry(layout_id: int) -> Geometry:
    """Return the geometry of a layout."""
    return _layouts[layout_id][1]


def layout_bytes(layout_id: int) -> int:
    """Return the storage size of a layout, in bytes."""
    return _layouts[layout_id][0]


def view_of(host: torch.Tensor, geometry: Geometry) -> torch.Tensor:
    """Return a host tensor's storage seen through a geometry."""
    dtype, shape, strides, offset = geometry
    if host.dtype != dtype:
        flat = torch.empty(0, dtype=dtype)
        flat.set_(host.untyped_storage(), offset, shape, strides)
        return flat
    return torch.as_strided(host, shape, strides, offset)


def storage_of(tensor: torch.Tensor) -> int:
    """Return a number that identifies the storage of a tensor."""
    number: int = tensor.untyped_storage()._cdata
    return number


def restride(tensor: torch.Tensor, geometry: Geometry) -> torch.Tensor:
    """Return a device tensor's storage seen through a geometry of the same dtype; nothing is recorded."""
    return torch.ops.aten.as_strided.default.redispatch(
        META, tensor, list(geometry[1]), list(geometry[2]), geometry[3]
    )


_PREFIX = "torch."


class UnstorableError(Exception):
    """A constant argument cannot be stored in a graph, so the operator cannot be recorded."""


@functools.cache
def dtype_name(dtype: torch.dtype) -> str:
    """Return float32 for torch.float32."""
    return str(dtype).removeprefix(_PREFIX)


def view_from(slot: int, geometry: Geometry) -> View:
    """Return a geometry on a slot in the graph's terms."""
    dtype, shape, strides, offset = geometry
    return View(slot, dtype_name(dtype), shape, strides, offset)


def geometry_from(view: View) -> Geometry:
    """Return the geometry of a view."""
    return (getattr(torch, view.dtype), view.shape, view.strides, view.offset)


def store_constant(value: Any) -> Arg:
    """Return a constant argument as a graph value.

    Raises:
        UnstorableError: the graph has no such value.
    """
    match value:
        case None | bool() | int() | float() | str():
            return value
        case torch.dtype():
            return Symbol("dtype", dtype_name(value))
        case torch.memory_format():
            return Symbol("memory_format", str(value).removeprefix(_PREFIX))
        case torch.layout():
            return Symbol("layout", str(value).removeprefix(_PREFIX))
        case list() | tuple():
            return tuple(store_constant(item) for item in value)
    raise UnstorableError(type(value).__name__)


def load_symbol(symbol: Symbol) -> Any:
    """Return the torch object that a symbol names."""
    if symbol.kind == "device":
        return torch.device(symbol.name)
    return getattr(torch, symbol.name)
