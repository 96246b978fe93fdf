"""Who uses which memory: sums by category, and the tree device - core - model - category.

Every parent is the sum of its children. Memory of a core that no model accounts for is listed as categories beside the
models. Host memory belongs to processes, not to cores, and is a tree of its own at the end; a core's host-side buffers
stay with the core.
"""

from __future__ import annotations

from enum import StrEnum
from operator import add, attrgetter, sub
from typing import TYPE_CHECKING

from msgspec import Struct

from neurontools.machine.snapshot import MemoryCategory, MemoryUse

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Sequence

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


class MemoryNode(Struct, frozen=True):
    """A node of the memory tree.

    `key` is the same in every snapshot; `number` is the device's index, the core's index inside its device, the
    model's id or the process's pid; `name` the model's name, the process's tag or the category. `cores` are the
    machine-wide ids of the cores that the node lies under. `children` is empty when the node is closed; whether
    there are any says `expandable`.
    """

    key: NodeKey
    kind: NodeKind
    number: int
    name: str
    device_bytes: int
    host_bytes: int
    cores: tuple[int, ...]
    running: bool
    expandable: bool
    children: tuple[MemoryNode, ...]


class MemoryMap:
    """Who uses which memory in a snapshot.

    Args:
        snapshot: the machine.
        only_used: leave out of the tree devices and cores that no process of the snapshot uses.
        former: that of an earlier snapshot of the machine; its sums are reused where no memory has changed.
    """

    def __init__(
        self, snapshot: Snapshot, *, only_used: bool = False, former: MemoryMap | None = None
    ) -> None:
        self.snapshot = snapshot
        self.only_used = only_used
        same = former is not None and _same_memory(former.snapshot, snapshot)
        self.sums: _Sums = former.sums if same and former is not None else _Sums(snapshot)
        self.host = self.sums.host
        """Host memory of all processes by category."""
        self.device = self.sums.device
        """Device memory of all processes by category."""

    def has_same_tree(self, other: MemoryMap) -> bool:
        """Return True only if both have the same tree; False may also mean that the comparison would take long."""
        snapshot, other_snapshot = self.snapshot, other.snapshot
        return (
            self.sums is other.sums
            and self.only_used == other.only_used
            and snapshot.processes is other_snapshot.processes
            and snapshot.devices is other_snapshot.devices
        )

    def tree(self, opened: Container[NodeKey] | None = None) -> tuple[MemoryNode, ...]:
        """Return the tree: a node for each device, then one for the host when a process has memory there.

        Args:
            opened: keys of the nodes whose children are wanted, None for all; a closed node costs next to nothing.
        """
        tree = _Tree(opened, self.sums, self.snapshot.processes)
        nodes = []
        for device in self.snapshot.devices:
            cores = [
                core for core in sorted(device.core_ids) if not self.only_used or self.sums.processes_on[core]
            ]
            if cores or not self.only_used:
                nodes.append(tree.device(device, cores))
        hosted = [process for process in self.snapshot.processes if process.host_memory.total_bytes]
        return (*nodes, tree.host(hosted)) if hosted else tuple(nodes)


class _Sums:
    """Memory of every core and of every device, models included; who uses a core, by position in the snapshot."""

    def __init__(self, snapshot: Snapshot) -> None:
        parts: dict[int, list[_Amounts]] = {
            core: [] for device in snapshot.devices for core in device.core_ids
        }
        self.processes_on: dict[int, list[int]] = {core: [] for core in parts}
        for position, process in enumerate(snapshot.processes):
            in_models: dict[int, list[_Amounts]] = {}
            for model in process.models:
                in_models.setdefault(model.core, []).append(_amounts(model.memory))
            own = {use.core: _amounts(use.memory) for use in process.cores}
            for core in own.keys() | in_models.keys():
                if core not in parts:
                    continue
                total = own.get(core, _NOTHING)
                if core in in_models:
                    # A core's figure includes its models; a page read between two updates may show the model first.
                    total = tuple(map(max, total, _sum(in_models[core])))
                parts[core].append(total)
                self.processes_on[core].append(position)
        self.cores = {core: _sum(amounts) for core, amounts in parts.items()}
        self.devices = {
            device.index: _sum([self.cores[core] for core in device.core_ids]) for device in snapshot.devices
        }
        on_cores = _sum(self.devices.values())
        on_host = _sum(_amounts(process.host_memory) for process in snapshot.processes)
        self.host = _memory(_add(on_host, (*_NOTHING[:_DEVICE_COUNT], *on_cores[_DEVICE_COUNT:])))
        self.device = _memory((*on_cores[:_DEVICE_COUNT], *_NOTHING[_DEVICE_COUNT:]))


def _same_memory(before: Snapshot, after: Snapshot) -> bool:
    """Return whether sums over memory are the same; False where comparing would take as long as adding."""
    if len(before.processes) != len(after.processes) or before.devices is not after.devices:
        return False
    for old, new in zip(before.processes, after.processes, strict=True):
        if old is new:
            continue
        if (
            old.pid != new.pid
            or old.host_memory is not new.host_memory
            or len(old.cores) != len(new.cores)
            or len(old.models) != len(new.models)
        ):
            return False
        for use, later in zip(old.cores, new.cores, strict=True):
            if use.memory is not later.memory or use.core != later.core:
                return False
        if old.models is not new.models:
            for model, moved in zip(old.models, new.models, strict=True):
                if model.memory is not moved.memory or model.core != moved.core:
                    return False
    return True


class _Tree:
    """Makes nodes; their children only where they are wanted."""

    def __init__(
        self, opened: Container[NodeKey] | None, sums: _Sums, processes: Sequence[ProcessState]
    ) -> None:
        self._opened = opened
        self._sums = sums
        self._processes = processes

    def device(self, device: DeviceState, cores: list[int]) -> MemoryNode:
        key: NodeKey = ("device", device.index)
        ids = sorted(device.core_ids)
        children = (self.core(key, ids.index(core), core) for core in cores)
        total = self._sums.devices[device.index]
        return self._branch(key, NodeKind.DEVICE, device.index, "", tuple(cores), total, children)

    def core(self, parent: NodeKey, index: int, core: int) -> MemoryNode:
        key = (*parent, "core", core)
        total = self._sums.cores[core]
        return self._branch(key, NodeKind.CORE, index, "", (core,), total, self._on_core(key, core, total))

    def host(self, processes: list[ProcessState]) -> MemoryNode:
        key: NodeKey = ("host",)
        totals = [_amounts(process.host_memory) for process in processes]
        children = (
            self._branch(
                own := (*key, process.pid, process.start_ticks),
                NodeKind.PROCESS,
                process.pid,
                process.tag or str(process.pid),
                (),
                total,
                _leaves(own, total, (), on_host=True),
                on_host=True,
            )
            for process, total in zip(processes, totals, strict=True)
        )
        return self._branch(key, NodeKind.HOST, 0, "", (), _sum(totals), children, on_host=True)

    def _on_core(self, key: NodeKey, core: int, total: _Amounts) -> Iterator[MemoryNode]:
        in_models = _NOTHING
        for position in self._sums.processes_on[core]:
            process = self._processes[position]
            for model in process.models:
                if model.core == core:
                    amounts = _amounts(model.memory)
                    in_models = _add(in_models, amounts)
                    yield self._model(key, process, model, amounts)
        yield from _leaves(key, tuple(map(sub, total, in_models)), (core,))

    def _model(
        self, parent: NodeKey, process: ProcessState, model: ModelState, amounts: _Amounts
    ) -> MemoryNode:
        key = (*parent, "model", process.pid, process.start_ticks, model.model_id)
        cores = (model.core,)
        leaves = _leaves(key, amounts, cores)
        return self._branch(
            key, NodeKind.MODEL, model.model_id, model.name, cores, amounts, leaves, running=model.running
        )

    def _branch(
        self,
        key: NodeKey,
        kind: NodeKind,
        number: int,
        name: str,
        cores: tuple[int, ...],
        total: _Amounts,
        children: Iterator[MemoryNode],
        *,
        running: bool = True,
        on_host: bool = False,
    ) -> MemoryNode:
        everything = sum(total)
        on_device = 0 if on_host else sum(total[:_DEVICE_COUNT])
        # Without memory, only the cores of a device and their models can be children.
        first = None
        if self._opened is None or key in self._opened or not everything:
            first = next(children, None)
        is_open = first is not None and (self._opened is None or key in self._opened)
        return MemoryNode(
            key=key,
            kind=kind,
            number=number,
            name=name,
            device_bytes=on_device,
            host_bytes=everything - on_device,
            cores=cores,
            running=running,
            expandable=first is not None or everything > 0,
            children=(first, *children) if is_open and first is not None else (),
        )


def _leaves(
    parent: NodeKey, amounts: _Amounts, cores: tuple[int, ...], *, on_host: bool = False
) -> Iterator[MemoryNode]:
    for index, (name, size) in enumerate(zip(_NAMES, amounts, strict=True)):
        if size:
            host = on_host or index >= _DEVICE_COUNT
            yield MemoryNode(
                key=(*parent, name),
                kind=NodeKind.CATEGORY,
                number=0,
                name=name,
                device_bytes=0 if host else size,
                host_bytes=size if host else 0,
                cores=cores,
                running=True,
                expandable=False,
                children=(),
            )


def _add(left: _Amounts, right: _Amounts) -> _Amounts:
    return tuple(map(add, left, right))


def _sum(amounts: Iterable[_Amounts]) -> _Amounts:
    rows = tuple(amounts)
    if len(rows) == 1:
        return rows[0]
    return tuple(map(sum, zip(_NOTHING, *rows, strict=True)))


def _memory(amounts: _Amounts) -> MemoryUse:
    return MemoryUse(**dict(zip(_NAMES, amounts, strict=True)))
