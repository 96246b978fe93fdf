"""Geometries: how a tensor views its storage. Layouts: numbers for a geometry and the size of its storage."""

# ruff: noqa: SLF001
# Torch's private API.

from __future__ import annotations

import torch

META = torch._C.DispatchKeySet(torch._C.DispatchKey.Meta)
Geometry = tuple[torch.dtype, tuple[int, ...], tuple[int, ...], int]

is_dense = torch._C.TensorBase.is_contiguous
"""Whether the memory of a tensor is contiguous, whatever programs see of that."""

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
