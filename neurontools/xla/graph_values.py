"""Values of torch in the graph's terms, and back: data types, geometries, constants."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

from neurontools.compiler.graph import Arg, Symbol, View

if TYPE_CHECKING:
    from neurontools.xla.geometry import Geometry

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
