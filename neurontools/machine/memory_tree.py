"""Who uses which memory: sums by category, and the tree device - core - model - category. Every parent is the sum of its children.

Memory of a core that no model accounts for is listed as categories beside the models. Host memory belongs to
processes, not to cores, and is a tree of its own at the end; a core's host-side buffers stay with the core.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import reduce
from operator import add, attrgetter, sub
from typing import TYPE_CHECKING

from neurontools.machine.memory import MemoryCategory, MemoryUse

if TYPE_CHECKING:
    from collections.abc import Iterable

    from neurontools.machine.snapshot import DeviceState, ModelState, ProcessState, Snapshot

# The categories that exist only on the host come last.
ORDER = (
    MemoryCategory.TENSORS,
    MemoryCategory.CONSTANTS,
    MemoryCategory.MODEL_CODE,
    MemoryCategory.RUNTIME_MEMORY,
    MemoryCategory.MODEL_SHARED_SCRATCHPAD,
    MemoryCategory.DMA_BUFFERS,
    MemoryCategory.APPLICATION_MEMORY,
)
HOST_ONLY = frozenset({MemoryCategory.DMA_BUFFERS, MemoryCategory.APPLICATION_MEMORY})

NodeKey = tuple[str | int, ...]
_Amounts = tuple[int, ...]
_NAMES = tuple(category.value for category in ORDER)
_DEVICE_COUNT = len(ORDER) - len(HOST_ONLY)
_NOTHING: _Amounts = (0,) * len(ORDER)
_amounts = attrgetter(*_NAMES)


class NodeKind(StrEnum):
    """What a node of the memory tree stands for."""

    DEVICE = "device"
    CORE = "core"
    MODEL = "model"
    HOST = "host"
    PROCESS = "process"
    CATEGORY = "category"


@dataclass(frozen=True, slots=True)
class MemoryNode:
    """A node of the memory tree.

    `key` is the same in every snapshot; `number` is the device's index, the core's index inside its device, the
    model's id or the process's pid; `name` the model's name, the process's tag or the category. `cores` are the
    machine-wide ids of the cores that the node lies under.
    """

    key: NodeKey
    kind: NodeKind
    number: int
    name: str
    device_bytes: int
    host_bytes: int
    cores: tuple[int, ...]
    running: bool
    children: tuple[MemoryNode, ...]


def host_memory(snapshot: Snapshot) -> MemoryUse:
    """Return the host memory of all processes by category."""
    amounts = _sum(_amounts(process.host_memory) for process in snapshot.processes)
    on_cores = _sum(place.total for places in _places(snapshot).values() for place in places)
    return _memory(_add(amounts, (*_NOTHING[:_DEVICE_COUNT], *on_cores[_DEVICE_COUNT:])))


def device_memory(snapshot: Snapshot) -> MemoryUse:
    """Return the device memory of all processes by category."""
    on_cores = _sum(place.total for places in _places(snapshot).values() for place in places)
    return _memory((*on_cores[:_DEVICE_COUNT], *_NOTHING[_DEVICE_COUNT:]))


def memory_tree(snapshot: Snapshot, *, only_used: bool = False) -> tuple[MemoryNode, ...]:
    """Return the tree: a node for each device, then one for the host when a process has memory there.

    Args:
        snapshot: the machine.
        only_used: leave out devices and cores that no process of the snapshot uses.
    """
    places = _places(snapshot)
    devices = (_device(device, places, only_used=only_used) for device in snapshot.devices)
    nodes = [node for node in devices if node.children or not only_used]
    host = _host(snapshot)
    return (*nodes, host) if host.children else tuple(nodes)


@dataclass(frozen=True, slots=True)
class _Place:
    """A process on one core: its memory there, models included, and the models."""

    process: ProcessState
    total: _Amounts
    models: tuple[ModelState, ...]


def _places(snapshot: Snapshot) -> dict[int, list[_Place]]:
    places: dict[int, list[_Place]] = {core: [] for device in snapshot.devices for core in device.core_ids}
    for process in snapshot.processes:
        models: dict[int, list[ModelState]] = {}
        for model in process.models:
            models.setdefault(model.core, []).append(model)
        own = {use.core: _amounts(use.memory) for use in process.cores}
        for core in places.keys() & (own.keys() | models.keys()):
            there = tuple(models.get(core, ()))
            # A core's figure includes its models; a page read between two updates may show the model first.
            total = map(max, own.get(core, _NOTHING), _sum(_amounts(model.memory) for model in there))
            places[core].append(_Place(process, tuple(total), there))
    return places


def _device(device: DeviceState, places: dict[int, list[_Place]], *, only_used: bool) -> MemoryNode:
    key: NodeKey = ("device", device.index)
    cores = tuple(
        _core(key, index, core, places[core])
        for index, core in enumerate(sorted(device.core_ids))
        if places[core] or not only_used
    )
    return _parent(key, NodeKind.DEVICE, device.index, "", tuple(node.cores[0] for node in cores), cores)


def _core(parent: NodeKey, index: int, core: int, places: list[_Place]) -> MemoryNode:
    key = (*parent, "core", core)
    models = [_model(key, place.process, model) for place in places for model in place.models]
    everything = _sum(place.total for place in places)
    in_models = _sum(_amounts(model.memory) for place in places for model in place.models)
    rest = tuple(map(sub, everything, in_models))
    return _parent(key, NodeKind.CORE, index, "", (core,), (*models, *_leaves(key, rest, (core,))))


def _model(parent: NodeKey, process: ProcessState, model: ModelState) -> MemoryNode:
    key = (*parent, "model", process.pid, process.start_ticks, model.model_id)
    cores = (model.core,)
    leaves = _leaves(key, _amounts(model.memory), cores)
    return _parent(key, NodeKind.MODEL, model.model_id, model.name, cores, leaves, running=model.running)


def _host(snapshot: Snapshot) -> MemoryNode:
    processes = []
    for process in snapshot.processes:
        if process.host_memory.total_bytes:
            key = ("host", process.pid, process.start_ticks)
            leaves = _leaves(key, _amounts(process.host_memory), (), on_host=True)
            name = process.tag or str(process.pid)
            processes.append(_parent(key, NodeKind.PROCESS, process.pid, name, (), leaves))
    return _parent(("host",), NodeKind.HOST, 0, "", (), tuple(processes))


def _leaves(
    parent: NodeKey, amounts: _Amounts, cores: tuple[int, ...], *, on_host: bool = False
) -> tuple[MemoryNode, ...]:
    return tuple(
        MemoryNode(
            key=(*parent, name),
            kind=NodeKind.CATEGORY,
            number=0,
            name=name,
            device_bytes=0 if on_host or index >= _DEVICE_COUNT else size,
            host_bytes=size if on_host or index >= _DEVICE_COUNT else 0,
            cores=cores,
            running=True,
            children=(),
        )
        for index, (name, size) in enumerate(zip(_NAMES, amounts, strict=True))
        if size
    )


def _parent(
    key: NodeKey,
    kind: NodeKind,
    number: int,
    name: str,
    cores: tuple[int, ...],
    children: tuple[MemoryNode, ...],
    *,
    running: bool = True,
) -> MemoryNode:
    return MemoryNode(
        key=key,
        kind=kind,
        number=number,
        name=name,
        device_bytes=sum([child.device_bytes for child in children]),
        host_bytes=sum([child.host_bytes for child in children]),
        cores=cores,
        running=running,
        children=children,
    )


def _add(one: _Amounts, other: _Amounts) -> _Amounts:
    return tuple(map(add, one, other))


def _sum(amounts: Iterable[_Amounts]) -> _Amounts:
    return reduce(_add, amounts, _NOTHING)


def _memory(amounts: _Amounts) -> MemoryUse:
    return MemoryUse(**dict(zip(_NAMES, amounts, strict=True)))
