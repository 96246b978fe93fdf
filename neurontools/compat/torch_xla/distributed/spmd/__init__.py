"""torch_xla.distributed.spmd (`xs`): meshes of one device, on which every sharding is the whole tensor."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch

from neurontools.compat.unsupported import missing_names
from neurontools.errors import NeuronToolsError
from neurontools.xla import api
from neurontools.xla.distributed import workers

_global_mesh: list[Mesh] = []


__getattr__ = missing_names(__name__)


class MeshError(NeuronToolsError, ValueError):
    """A mesh has several devices."""


class Mesh:
    """Devices in a grid; one device is supported.

    Args:
        device_ids: numbers of the devices.
        mesh_shape: size of each axis.
        axis_names: names of the axes.

    Raises:
        MeshError: there are several devices.
        ValueError: the arguments do not fit together.
    """

    def __init__(
        self,
        device_ids: Sequence[int],
        mesh_shape: tuple[int, ...],
        axis_names: tuple[str, ...] | None = None,
    ) -> None:
        if len(device_ids) > 1:
            raise MeshError(
                f"a mesh of {len(device_ids)} devices is not simulated: one device per process",
                "set NEURON_RT_NUM_CORES=1, or start one process per core with torch_xla.launch",
            )
        if math.prod(mesh_shape) != len(device_ids):
            raise ValueError(
                f"Number of device IDs ({len(device_ids)}) must match mesh size ({math.prod(mesh_shape)})"
            )
        if axis_names is not None and (
            len(axis_names) != len(mesh_shape) or len(set(axis_names)) != len(axis_names)
        ):
            raise ValueError(f"axis names {axis_names} do not fit the mesh shape {mesh_shape}")
        self.device_ids = device_ids
        self.mesh_shape = mesh_shape
        self.axis_names = axis_names

    def size(self) -> int:
        """Return the number of devices."""
        return math.prod(self.mesh_shape)

    def shape(self) -> OrderedDict[Any, int]:
        """Return the size of each axis by its name, or by its position without names."""
        return OrderedDict(zip(self.axis_names or range(len(self.mesh_shape)), self.mesh_shape, strict=True))

    def get_axis_name_idx(self, name: str) -> int | None:
        """Return the position of an axis."""
        names = self.axis_names or ()
        return names.index(name) if name in names else None


def get_1d_mesh(axis_name: str | None = None) -> Mesh:
    """Return the mesh of all devices of the run.

    Raises:
        MeshError: there are several.
    """
    count = api.device_count() * workers.world_size()
    return Mesh(range(count), (count,), None if axis_name is None else (axis_name,))


def set_global_mesh(mesh: Mesh) -> None:
    """Set the mesh that `get_global_mesh` returns."""
    _global_mesh[:] = [mesh]


def get_global_mesh() -> Mesh | None:
    """Return the mesh that was set, None without one."""
    return _global_mesh[-1] if _global_mesh else None


def mark_sharding(t: torch.Tensor, mesh: Mesh, partition_spec: tuple[Any, ...]) -> torch.Tensor:
    """Divide a tensor over a mesh; on one device it stays whole.

    Raises:
        ValueError: the specification does not fit the tensor or the mesh.
    """
    _check(t, mesh, partition_spec)
    return t


def clear_sharding(t: torch.Tensor) -> torch.Tensor:
    """Return a tensor without its sharding."""
    return t


class ShardingSpec:
    """How the data of a loader is divided; on one device it stays whole.

    Args:
        mesh: the devices.
        partition_spec: the axis of each dimension, None for whole dimensions.
        minibatch: whether each process loads a part of the batch.
    """

    def __init__(self, mesh: Mesh, partition_spec: tuple[Any, ...], minibatch: bool = False) -> None:
        self.mesh = mesh
        self.partition_spec = partition_spec
        self.minibatch = minibatch

    def can_apply(self, t: torch.Tensor) -> bool:
        """Return whether a tensor has the dimensions that the specification names."""
        return bool(t.dim() == len(self.partition_spec))


def _check(t: torch.Tensor, mesh: Mesh, partition_spec: tuple[Any, ...]) -> None:
    if t.dim() != len(partition_spec):
        raise ValueError(
            f"Partition spec length ({len(partition_spec)}) is not equal to tensor rank ({t.dim()})"
        )
    known = {*range(len(mesh.mesh_shape)), *(mesh.axis_names or ())}
    for part in partition_spec:
        for axis in part if isinstance(part, tuple) else (part,):
            if axis is not None and axis not in known:
                raise ValueError(f"partition spec {partition_spec} names axis {axis!r}, which the mesh lacks")
