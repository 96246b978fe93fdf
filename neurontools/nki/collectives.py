"""Collectives in kernels (nki.collectives): ranks of one simulation, or the workers of a torch.distributed group.

Source: AWS Neuron documentation 2.32, "nki.collectives".
"""

from __future__ import annotations

import pickle
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from neurontools.nki.context import Core, running
from neurontools.nki.dtypes import to_float32
from neurontools.nki.instructions.operands import need_operator, reads, refuse
from neurontools.nki.memory import ON_CHIP
from neurontools.nki.objects import NKIObject, VirtualRegister

if TYPE_CHECKING:
    from neurontools.nki.tensor import NkiTensor

_OF_KERNELS = "kernels "
"""The mark of the group of workers: kernels exchange data in an order of their own."""
_REDUCTIONS = frozenset({"add", "minimum", "maximum"})


class ReplicaGroup(NKIObject):
    """Groups of ranks; a rank talks to those of its own list.

    Args:
        replica_groups: lists of ranks that have no rank in common.
    """

    def __init__(self, replica_groups: Any) -> None:
        self.replica_groups = [list(group) for group in replica_groups]

    @property
    def groups(self) -> list[list[int]]:
        """The lists of ranks."""
        return self.replica_groups

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ReplicaGroup) and other.replica_groups == self.replica_groups

    def __hash__(self) -> int:
        return hash(str(self.replica_groups))


def world() -> tuple[int, int]:
    """Return this rank and the number of ranks."""
    core = running()
    if core.launch.world_size > 1:
        return core.launch.rank, core.launch.world_size
    workers = _device_workers()
    if workers is not None:
        return workers.rank, workers.size
    group = _torch_group()
    return (group.get_rank(), group.get_world_size()) if group else (0, 1)


def _device_workers() -> Any:
    """Return the communicator of a worker of several that has a device, else None."""
    module = sys.modules.get("neurontools.xla.distributed.worker_group")
    communicator = None if module is None else module.current()
    return communicator if communicator is not None and communicator.size > 1 else None


def _torch_group() -> Any:
    """Return torch.distributed where the process is a worker of a group."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed
    return None


def _gather(core: Core, opcode: str, payload: Any) -> list[Any]:
    """Return what all ranks pass in the same call, by rank."""
    if core.launch.world_size > 1:
        return core.exchange.gather(core, opcode, payload)
    _, size = world()
    if size == 1 or not core.launch.checks:
        return [payload] * size
    workers = _device_workers()
    if workers is not None:
        sent = workers.group(workers.world, _OF_KERNELS).gather_bytes(pickle.dumps(payload))
        return [pickle.loads(part) for part in sent]  # noqa: S301  of workers of the same run
    received: list[Any] = [None] * size
    _torch_group().all_gather_object(received, payload)
    return received


def _members(opcode: str, replica_group: Any) -> tuple[list[int], int]:
    rank, size = world()
    groups = (
        replica_group.replica_groups
        if isinstance(replica_group, ReplicaGroup)
        else [list(g) for g in replica_group]
    )
    for group in groups:
        if rank in group:
            if max(group) >= size:
                refuse(
                    opcode,
                    f"rank {max(group)} of the replica group does not exist, the job has {size} ranks",
                    "start the workers with torchrun --nproc_per_node",
                )
            return group, group.index(rank)
    return refuse(opcode, f"rank {rank} is in no list of the replica group {groups}")


def _check(opcode: str, srcs: Any, dsts: Any, *, same_size: bool = True) -> None:
    if len(srcs) != len(dsts):
        refuse(opcode, f"{len(srcs)} sources and {len(dsts)} destinations")
    on_chip = {tensor.buffer in ON_CHIP for tensor in (*srcs, *dsts)}
    if len(on_chip) > 1:
        refuse(opcode, "tensors are in SBUF and in HBM, all must be in one of them", "", *srcs, *dsts)
    if on_chip == {True} and len(srcs) > 1:
        refuse(opcode, f"{len(srcs)} tensors in SBUF, coalescing needs HBM", "", *srcs)
    for src, dst in zip(srcs, dsts, strict=True):
        if same_size and src.size != dst.size:
            refuse(opcode, f"src has {src.size} elements, dst has {dst.size}", "", src, dst)


def _issue(opcode: str, srcs: Any, dsts: Any, ranks: int, name: str | None) -> None:
    running().issue(opcode, "cc", reads(*srcs), reads(*dsts), name, ranks=ranks, barrier=True)


def _exchange(opcode: str, srcs: Any, replica_group: Any) -> tuple[list[list[np.ndarray]], int]:
    """Return the sources of each member of the group in its order, and this rank's place in it."""
    group, place = _members(opcode, replica_group)
    received = _gather(running(), opcode, [np.array(src.read("srcs")) for src in srcs])
    return [received[member] for member in group], place


def _joined(operator: Any, opcode: str, parts: list[np.ndarray]) -> np.ndarray:
    chosen = need_operator(opcode, operator)
    if chosen.name not in _REDUCTIONS:
        refuse(opcode, f"op is {chosen.name}, must be add, minimum or maximum")
    total = to_float32(parts[0])
    for part in parts[1:]:
        total = chosen.compute(total, to_float32(part))
    return np.asarray(total)


def all_reduce(
    srcs: Any, dsts: Any, replica_group: Any, op: Any, priority: int | None = None, name: str | None = None
) -> None:
    """Reduce tensors over the ranks."""
    del priority
    _check("all_reduce", srcs, dsts)
    members, _ = _exchange("all_reduce", srcs, replica_group)
    for number, dst in enumerate(dsts):
        dst.write(_joined(op, "all_reduce", [sources[number] for sources in members]))
    _issue("all_reduce", srcs, dsts, len(members), name)


def all_gather(
    srcs: Any,
    dsts: Any,
    replica_group: Any,
    collective_dim: int,
    priority: int | None = None,
    name: str | None = None,
) -> None:
    """Concatenate the tensors of all ranks along a dimension."""
    del priority
    _check("all_gather", srcs, dsts, same_size=False)
    members, _ = _exchange("all_gather", srcs, replica_group)
    for number, dst in enumerate(dsts):
        whole = np.concatenate([sources[number] for sources in members], axis=collective_dim)
        if whole.size != dst.size:
            refuse(
                "all_gather", f"dst has {dst.size} elements, {len(members)} ranks send {whole.size}", "", dst
            )
        dst.write(whole)
    _issue("all_gather", srcs, dsts, len(members), name)


def reduce_scatter(
    srcs: Any,
    dsts: Any,
    replica_group: Any,
    collective_dim: int,
    op: Any,
    priority: int | None = None,
    name: str | None = None,
) -> None:
    """Reduce tensors over the ranks and give each a part."""
    del priority
    _check("reduce_scatter", srcs, dsts, same_size=False)
    members, place = _exchange("reduce_scatter", srcs, replica_group)
    for number, dst in enumerate(dsts):
        total = _joined(op, "reduce_scatter", [sources[number] for sources in members])
        if total.shape[collective_dim] % len(members):
            refuse(
                "reduce_scatter",
                f"dimension {collective_dim} of {total.shape} has no {len(members)} equal parts",
                "",
                dst,
            )
        dst.write(np.split(total, len(members), axis=collective_dim)[place])
    _issue("reduce_scatter", srcs, dsts, len(members), name)


def all_to_all(
    srcs: Any,
    dsts: Any,
    replica_group: Any,
    collective_dim: int,
    priority: int | None = None,
    name: str | None = None,
) -> None:
    """Send each rank a part of the tensor and join the parts received."""
    del priority
    _check("all_to_all", srcs, dsts)
    members, place = _exchange("all_to_all", srcs, replica_group)
    for number, dst in enumerate(dsts):
        parts = [np.split(sources[number], len(members), axis=collective_dim)[place] for sources in members]
        dst.write(np.concatenate(parts, axis=collective_dim))
    _issue("all_to_all", srcs, dsts, len(members), name)


def _variable(
    opcode: str,
    srcs: Any,
    dsts: Any,
    replica_group: Any,
    metadata: NkiTensor,
    options: tuple[bool, bool],
    *,
    to_all: bool,
) -> None:
    counts_known, has_displacements = options
    if len(srcs) != 1 or len(dsts) != 1:
        refuse(opcode, f"{len(srcs)} sources and {len(dsts)} destinations, exactly one each")
    group, place = _members(opcode, replica_group)
    table = np.array(metadata.read("metadata_tensor")).reshape(-1, len(group)).astype(np.int64)
    received = _gather(running(), opcode, (np.array(srcs[0].read("srcs")).reshape(-1), table))
    flat = np.array(dsts[0].array()).reshape(-1)
    slot = flat.size // len(group)
    for sender, member in enumerate(group):
        values, their = received[member]
        column = 0 if to_all else place
        count, start = int(their[0, column]), int(their[1, column])
        target = int(table[3, sender]) if has_displacements else sender * slot
        if target + count > flat.size or start + count > values.size:
            refuse(
                opcode,
                f"{count} elements from rank {member} do not fit",
                "check the counts and displacements of metadata_tensor",
                dsts[0],
            )
        flat[target : target + count] = values[start : start + count]
        table[2, sender] = count
    dsts[0].write(flat.reshape(dsts[0].shape))
    if not counts_known:
        metadata.write(table.reshape(metadata.shape))
    _issue(opcode, srcs, dsts, len(group), None)


def all_gather_v(
    srcs: Any,
    dsts: Any,
    replica_group: Any,
    metadata_tensor: Any,
    recv_counts_known: bool = False,
    has_rdispls: bool = False,
    priority: int | None = None,
    name: str | None = None,
) -> None:
    """Send all ranks one chunk whose size the metadata tensor holds."""
    del priority, name
    _variable(
        "all_gather_v",
        srcs,
        dsts,
        replica_group,
        metadata_tensor,
        (recv_counts_known, has_rdispls),
        to_all=True,
    )


def all_to_all_v(
    srcs: Any,
    dsts: Any,
    replica_group: Any,
    metadata_tensor: Any,
    recv_counts_known: bool = False,
    has_rdispls: bool = False,
    priority: int | None = None,
    name: str | None = None,
) -> None:
    """Send each rank a chunk of its own size."""
    del priority, name
    _variable(
        "all_to_all_v",
        srcs,
        dsts,
        replica_group,
        metadata_tensor,
        (recv_counts_known, has_rdispls),
        to_all=False,
    )


def collective_permute(
    srcs: Any, dsts: Any, source_target_pairs: Any, priority: int | None = None, name: str | None = None
) -> None:
    """Send tensors between pairs of ranks."""
    del priority
    _check("collective_permute", srcs, dsts)
    rank, size = world()
    received = _gather(running(), "collective_permute", [np.array(src.read("srcs")) for src in srcs])
    for source, target in source_target_pairs:
        if target == rank:
            for values, dst in zip(received[source], dsts, strict=True):
                dst.write(values)
    _issue("collective_permute", srcs, dsts, size, name)


def _ring(opcode: str, channels: list[np.ndarray], dsts: Any, replica_group: Any) -> int:
    group, place = _members(opcode, replica_group)
    received = _gather(running(), opcode, channels)
    before = received[group[place - 1]]
    for values, dst in zip(before, dsts, strict=True):
        dst.write(values)
    return len(group)


def collective_permute_implicit(
    srcs_by_channel: Any,
    dsts_by_channel: Any,
    replica_group: Any,
    channel_ids: Any = (0,),
    priority: int | None = None,
    name: str | None = None,
) -> None:
    """Send tensors to the next rank of a ring."""
    del priority, channel_ids
    srcs, dsts = [item[0] for item in srcs_by_channel], [item[0] for item in dsts_by_channel]
    ranks = _ring(
        "collective_permute_implicit", [np.array(src.read("srcs")) for src in srcs], dsts, replica_group
    )
    _issue("collective_permute_implicit", srcs, dsts, ranks, name)


def collective_permute_implicit_reduce(
    srcs0_by_channel: Any,
    srcs1_by_channel: Any,
    dsts_by_channel: Any,
    replica_group: Any,
    op: Any,
    channel_ids: Any = (0,),
    priority: int | None = None,
    name: str | None = None,
) -> None:
    """Reduce two tensors and send the result to the next rank of a ring."""
    del priority, channel_ids
    opcode = "collective_permute_implicit_reduce"
    pairs = [(one[0], other[0]) for one, other in zip(srcs0_by_channel, srcs1_by_channel, strict=True)]
    dsts = [item[0] for item in dsts_by_channel]
    joined = [
        _joined(op, opcode, [np.array(one.read("srcs0")), np.array(other.read("srcs1"))])
        for one, other in pairs
    ]
    ranks = _ring(opcode, joined, dsts, replica_group)
    _issue(opcode, [tensor for pair in pairs for tensor in pair], dsts, ranks, name)


def collective_permute_implicit_current_processing_rank_id(
    iteration_id: int, replica_group: Any, channel_id: int = 0, name: str | None = None
) -> VirtualRegister:
    """Return whose data a rank holds in an iteration of a ring."""
    del channel_id, name
    group, place = _members("collective_permute_implicit_current_processing_rank_id", replica_group)
    return VirtualRegister(group[(place - int(iteration_id)) % len(group)])


def rank_id(name: str | None = None) -> VirtualRegister:
    """Return this rank."""
    del name
    return VirtualRegister(world()[0])


COLLECTIVES = {
    function.__name__: function
    for function in (
        all_gather, all_gather_v, all_reduce, all_to_all, all_to_all_v, collective_permute, collective_permute_implicit,
        collective_permute_implicit_current_processing_rank_id, collective_permute_implicit_reduce, rank_id, reduce_scatter,
    )
}  # fmt: skip
"""The functions of nki.collectives by name."""
