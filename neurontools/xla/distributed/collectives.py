"""Collectives of the lazy device: recorded in the graph like any operator, executed between workers on host buffers.

Each is an operator `neurontools::...` with a CPU kernel; the device records it by its schema. Replica groups are part of
the graph, as in HLO, so that all workers have the same graph. In a group of one worker, a collective is not recorded.
"""

# ruff: noqa: PLW0603
# Operators are defined once per process.

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from neurontools import env
from neurontools.collectives.operations import Ranks, format_groups, parse_groups
from neurontools.runtime.host_activity import HostEvent, observers
from neurontools.xla.distributed import worker_group
from neurontools.xla.distributed.shared_exchange import write_back
from neurontools.xla.distributed.worker_group import REDUCTIONS
from neurontools.xla.host_events import Observed
from neurontools.xla.operators import call_directly

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from datetime import timedelta

    from neurontools.xla.distributed.worker_group import WorkerGroup

Groups: TypeAlias = "Sequence[Sequence[int]] | None"
_BUCKET_MB = "ALLREDUCE_GRADIENTS_BUCKET_SIZE_MB"
_DEFAULT_BUCKET_MB = 50
# gloo or torch's operators cannot reduce these types, so they are widened first.
_WIDER = {
    torch.int16: torch.int32,
    torch.uint16: torch.int32,
    torch.float8_e4m3fn: torch.float32,
    torch.float8_e5m2: torch.float32,
}
_SCHEMAS = (
    "all_reduce_(Tensor(a!)[] tensors, str reduce_type, float scale, str replica_groups) -> ()",
    "broadcast_(Tensor(a!)[] tensors, int root, str replica_groups) -> ()",
    "all_gather(Tensor input, str replica_groups) -> Tensor",
    "reduce_scatter(Tensor input, str reduce_type, float scale, str replica_groups) -> Tensor",
    "all_to_all(Tensor input, str replica_groups) -> Tensor",
    "all_to_all_uneven_(Tensor(a!) output, Tensor input, int[] output_sizes, int[] input_sizes, str replica_groups) -> ()",
    "collective_permute(Tensor input, str pairs) -> Tensor",
    "send(Tensor input, int target, int tag) -> ()",
    "recv_(Tensor(a!) output, int source, int tag) -> ()",
)
_PAIRWISE = frozenset({"collective_permute", "send", "receive"})  # between two workers, not in a group
_PAIR = 2
_PERMUTE_TAG, _UNEVEN_TAG, _UNEVEN_TAG_OF_HOST = -1, -2, -3  # programs have tags from 0
_library: Any = None


def define() -> None:
    """Define the operators; once per process, further calls have no effect."""
    global _library
    if _library is not None:
        return
    _library = torch.library.Library("neurontools", "FRAGMENT")
    kernels: dict[str, Callable[..., Any]] = {
        "all_reduce_": _all_reduce,
        "broadcast_": _broadcast,
        "all_gather": _all_gather,
        "reduce_scatter": _reduce_scatter,
        "all_to_all": _all_to_all,
        "all_to_all_uneven_": _all_to_all_uneven,
        "collective_permute": _collective_permute,
        "send": _send,
        "recv_": _receive,
    }
    for schema in _SCHEMAS:
        _library.define(schema)
    for name, kernel in kernels.items():
        run = _reported(kernel)
        _library.impl(name, run, "CPU")
        _library.impl(name, _results_of(name), "Meta")
        call_directly(f"neurontools::{name}", run)


# The functions that programs call. Tensors are on the device or on the CPU.


def all_reduce_(
    tensors: Sequence[torch.Tensor], reduce_type: str, scale: float = 1.0, groups: Groups = None
) -> None:
    """Reduce tensors over the workers in place, then multiply them by `scale`.

    Args:
        tensors: of the same shapes on all workers.
        reduce_type: sum, mul, min, max, and, or.
        scale: applied to the result.
        groups: lists of ranks that reduce among themselves; None for all workers.

    Raises:
        ValueError: an unknown `reduce_type`, or this worker is in no group.
        NrtError: a worker has ended or does not answer.
    """
    _check_reduction(reduce_type)
    text, size = _replica_groups(groups, tensors)
    with torch.no_grad():
        if size > 1 and tensors:
            torch.ops.neurontools.all_reduce_(list(tensors), reduce_type, float(scale), text)
        elif scale != 1.0:
            for tensor in tensors:
                tensor.mul_(scale)


def broadcast_(tensors: Sequence[torch.Tensor], root: int, groups: Groups = None) -> None:
    """Copy tensors from the worker with the rank `root` to the others of its group.

    Raises:
        ValueError: there is no such worker, or the groups do not fit the run.
    """
    own = worker_group.current()
    if not 0 <= root < own.size:
        raise ValueError(f"root_ordinal {root} does not exist: the run has {own.size} process(es)")
    text, size = _replica_groups(groups, tensors)
    if size > 1 and tensors:
        with torch.no_grad():
            torch.ops.neurontools.broadcast_(list(tensors), root, text)


def all_gather(tensor: torch.Tensor, dim: int = 0, groups: Groups = None) -> torch.Tensor:
    """Return the tensors of all workers, concatenated along a dimension."""
    text, size = _replica_groups(groups, [tensor])
    with torch.no_grad():
        if size == 1:
            return tensor.clone()
        if dim % max(tensor.dim(), 1) == 0:
            gathered: torch.Tensor = torch.ops.neurontools.all_gather(tensor, text)
            return gathered
        moved: torch.Tensor = torch.ops.neurontools.all_gather(tensor.movedim(dim, 0), text)
        return moved.movedim(0, dim).contiguous()


def reduce_scatter(
    tensor: torch.Tensor, reduce_type: str, scale: float = 1.0, dim: int = 0, groups: Groups = None
) -> torch.Tensor:
    """Reduce a tensor over the workers and return this worker's part of it along a dimension.

    Raises:
        ValueError: the dimension cannot be divided evenly.
    """
    _check_reduction(reduce_type)
    text, size = _replica_groups(groups, [tensor])
    _check_divisible(tensor, dim, size)
    with torch.no_grad():
        if size == 1:
            return tensor.clone() if scale == 1.0 else tensor * scale
        part: torch.Tensor = torch.ops.neurontools.reduce_scatter(
            tensor.movedim(dim, 0), reduce_type, float(scale), text
        )
        return part.movedim(0, dim).contiguous() if dim else part


def all_to_all(
    tensor: torch.Tensor, split_dim: int = 0, concat_dim: int = 0, groups: Groups = None
) -> torch.Tensor:
    """Send the i-th part along `split_dim` to the i-th worker; return the received parts joined along `concat_dim`.

    Raises:
        ValueError: the dimension cannot be divided evenly.
    """
    text, size = _replica_groups(groups, [tensor])
    _check_divisible(tensor, split_dim, size)
    with torch.no_grad():
        if size == 1:
            return tensor.clone()
        stacked = torch.stack(tensor.chunk(size, split_dim))
        received = torch.ops.neurontools.all_to_all(stacked, text)
        return torch.cat(received.unbind(0), concat_dim)


def all_to_all_uneven_(
    output: torch.Tensor,
    tensor: torch.Tensor,
    output_sizes: Sequence[int],
    input_sizes: Sequence[int],
    groups: Groups = None,
) -> None:
    """Send the i-th part of the first dimension to the i-th worker, and receive the i-th part of `output` from it.

    Args:
        output: receives the parts.
        tensor: what is sent.
        output_sizes: number of rows that each worker sends to this one.
        input_sizes: number of rows that this worker sends to each.
        groups: lists of ranks that exchange among themselves; None for all workers.
    """
    text, _ = _replica_groups(groups, [tensor])
    with torch.no_grad():
        torch.ops.neurontools.all_to_all_uneven_(output, tensor, list(output_sizes), list(input_sizes), text)


def collective_permute(tensor: torch.Tensor, pairs: Sequence[Sequence[int]]) -> torch.Tensor:
    """Return the tensor from this worker's source in `pairs` of (source, target); zeros if it has no source.

    Raises:
        ValueError: a pair names a worker that does not exist.
    """
    size = worker_group.current().size
    for source, target in pairs:
        if not (0 <= source < size and 0 <= target < size):
            raise ValueError(
                f"pair ({source}, {target}) names a process that does not exist: the run has {size}"
            )
    with torch.no_grad():
        permuted: torch.Tensor = torch.ops.neurontools.collective_permute(tensor, format_groups(pairs))
        return permuted


def send(tensor: torch.Tensor, target: int, tag: int = 0) -> None:
    """Send a tensor to the worker with a rank; does not wait until it is received."""
    with torch.no_grad():
        torch.ops.neurontools.send(tensor, target, tag)


def receive_(output: torch.Tensor, source: int, tag: int = 0) -> None:
    """Receive a tensor from the worker with a rank."""
    with torch.no_grad():
        torch.ops.neurontools.recv_(output, source, tag)


def buckets(tensors: Sequence[torch.Tensor], limit_mb: int = 0) -> Iterator[list[torch.Tensor]]:
    """Divide tensors into lists up to `limit_mb`; 0 for ALLREDUCE_GRADIENTS_BUCKET_SIZE_MB, which is 50 by default."""
    text = os.environ[_BUCKET_MB] if env.is_set(_BUCKET_MB.encode()) else ""
    limit = (limit_mb or (int(text) if text.isdecimal() else 0) or _DEFAULT_BUCKET_MB) * 2**20
    bucket: list[torch.Tensor] = []
    nbytes = 0
    for tensor in tensors:
        size = tensor.nbytes
        if bucket and nbytes + size > limit:
            yield bucket
            bucket, nbytes = [], 0
        bucket.append(tensor)
        nbytes += size
    if bucket:
        yield bucket


def _check_reduction(reduce_type: str) -> None:
    if reduce_type not in REDUCTIONS:
        raise ValueError(f"Invalid reduce type: {reduce_type}; use one of {', '.join(REDUCTIONS)}")


def _check_divisible(tensor: torch.Tensor, dim: int, size: int) -> None:
    if tensor.size(dim) % size:
        raise ValueError(f"dimension {dim} of size {tensor.size(dim)} cannot be divided by {size} workers")


def group_size(groups: Groups = None) -> int:
    """Return the number of members of this worker's group.

    Raises:
        ValueError: the groups do not fit the run.
    """
    return _replica_groups(groups)[1]


def _replica_groups(groups: Groups, tensors: Sequence[torch.Tensor] = ()) -> tuple[str, int]:
    """Return the groups in the form used in graphs, and the size of this worker's group.

    Host tensors have groups of their own, so that a thread may exchange them while another one runs graphs.
    """
    own = worker_group.current()
    mark = worker_group.OF_HOST if tensors and tensors[0].device.type == "cpu" else ""
    if not groups:
        return mark + own.world_groups, own.size
    chosen = [tuple(group) for group in groups]
    if any(not 0 <= rank < own.size for group in chosen for rank in group):
        raise ValueError(f"groups {groups} name processes that do not exist: the run has {own.size}")
    size = next((len(group) for group in chosen if own.rank in group), 0)
    if not size:
        raise ValueError(f"rank {own.rank} is in none of the groups {chosen}")
    return mark + format_groups(chosen), size


# Kernels: on host tensors, when the graph is executed.


def _reported(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Return a kernel that tells profilers its name, its bytes and the size of its group."""
    name = kernel.__name__.strip("_")

    @functools.wraps(kernel)
    def run(tensors: Any, *arguments: Any) -> Any:
        if not observers:
            return kernel(tensors, *arguments)
        several = tensors if isinstance(tensors, list) else [tensors]
        nbytes = sum(tensor.numel() * tensor.itemsize for tensor in several)
        size = _PAIR if name in _PAIRWISE else worker_group.current().group_in(arguments[-1]).size
        with Observed(HostEvent.COLLECTIVE, name, nbytes=nbytes, number=size):
            return kernel(tensors, *arguments)

    return run


def _results_of(name: str) -> Callable[..., Any]:
    """Return the meta kernel of a collective: its results, or a ValueError for workers that this run does not have."""

    def make(tensors: Any, *arguments: Any) -> torch.Tensor | None:
        match name:
            case "send" | "recv_":
                _check_workers(arguments[:1])
                return None
            case "collective_permute":
                _check_workers(rank for pair in parse_groups(arguments[0]) for rank in pair)
                return torch.empty(tensors.shape, dtype=tensors.dtype, device="meta")
        size = len(_members(arguments[-1]))
        if name not in {"all_gather", "reduce_scatter", "all_to_all"}:
            return None
        rows, *others = tensors.shape or (1,)
        if name != "all_gather" and rows % size:
            raise ValueError(f"{rows} rows cannot be divided among {size} workers")
        made = {"all_gather": rows * size, "reduce_scatter": rows // size}.get(name, rows)
        return torch.empty((made, *others), dtype=tensors.dtype, device="meta")

    return make


def _members(groups: str) -> Ranks:
    """Return this worker's group in some replica groups."""
    own = worker_group.current().rank
    for ranks in parse_groups(groups.removeprefix(worker_group.OF_HOST)):
        if own in ranks:
            _check_workers(ranks)
            return ranks
    raise ValueError(f"rank {own} is in none of the replica groups {groups}")


def _check_workers(ranks: Iterable[int]) -> None:
    size = worker_group.current().size
    for rank in ranks:
        if not 0 <= rank < size:
            raise ValueError(f"there is no worker {rank}: this run has {size}")


def _group(groups: str) -> WorkerGroup:
    return worker_group.current().group_in(groups)


def _all_reduce(tensors: list[torch.Tensor], reduce_type: str, scale: float, replica_groups: str) -> None:
    group = _group(replica_groups)
    for same_type in _by_dtype(tensors):
        wider = _WIDER.get(same_type[0].dtype)
        reducible = same_type if wider is None else [tensor.to(wider) for tensor in same_type]
        group.all_reduce(reducible, reduce_type, scale)
        if wider is not None:
            torch._foreach_copy_(same_type, reducible)


def _broadcast(tensors: list[torch.Tensor], root: int, replica_groups: str) -> None:
    group = _group(replica_groups)
    for same_type in _by_dtype(tensors):
        flat = [_bytes(tensor) for tensor in same_type]
        group.broadcast(flat, group.ranks.index(root))
        write_back([part.view(same_type[0].dtype) for part in flat], same_type)


def _all_gather(tensor: torch.Tensor, replica_groups: str) -> torch.Tensor:
    gathered = _group(replica_groups).all_gather(_bytes(tensor)).view(tensor.dtype)
    rows, *others = tensor.shape or (1,)
    return gathered.view(gathered.size(0) * rows, *others)


def _reduce_scatter(
    tensor: torch.Tensor, reduce_type: str, scale: float, replica_groups: str
) -> torch.Tensor:
    group = _group(replica_groups)
    rows, *others = tensor.shape
    matrix = tensor.to(_WIDER.get(tensor.dtype, tensor.dtype)).contiguous().view(group.size, -1)
    reduced = group.reduce_scatter(matrix, reduce_type, scale)
    return reduced.to(tensor.dtype).view(rows // group.size, *others)


def _all_to_all(tensor: torch.Tensor, replica_groups: str) -> torch.Tensor:
    group = _group(replica_groups)
    received = group.all_to_all(_bytes(tensor).view(group.size, -1))
    return received.view(-1).view(tensor.dtype).view(tensor.shape)


def _all_to_all_uneven(
    output: torch.Tensor,
    tensor: torch.Tensor,
    output_sizes: list[int],
    input_sizes: list[int],
    replica_groups: str,
) -> None:
    own, group = worker_group.current().rank, _group(replica_groups)
    tag = _UNEVEN_TAG_OF_HOST if replica_groups.startswith(worker_group.OF_HOST) else _UNEVEN_TAG
    sent = dict(zip(group.ranks, tensor.split(input_sizes), strict=True))
    for rank, part in sent.items():
        if rank != own:
            _send(part, rank, tag)
    for rank, part in zip(group.ranks, output.split(output_sizes), strict=True):
        if rank == own:
            part.copy_(sent[own])
        else:
            _receive(part, rank, tag, group.timeout)


def _collective_permute(tensor: torch.Tensor, pairs: str) -> torch.Tensor:
    own, messages = worker_group.current().rank, worker_group.current().messages
    sent, received = _bytes(tensor), torch.zeros_like(_bytes(tensor))
    sources = [source for source, target in parse_groups(pairs) if target == own]
    for source, target in parse_groups(pairs):
        if source == own == target:
            received.copy_(sent)
        elif source == own:
            messages.send(sent, target, _PERMUTE_TAG)
    for source in sources:
        if source != own:
            messages.receive(received, source, _PERMUTE_TAG)
    return received.view(tensor.dtype).view(tensor.shape)


def _send(tensor: torch.Tensor, target: int, tag: int) -> None:
    worker_group.current().messages.send(_bytes(tensor), target, tag)


def _receive(output: torch.Tensor, source: int, tag: int, timeout: timedelta | None = None) -> None:
    received = torch.empty_like(_bytes(output))
    worker_group.current().messages.receive(received, source, tag, timeout)
    output.copy_(received.view(output.dtype).view(output.shape))


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return a dense tensor's contents as flat bytes, which gloo can move for any data type."""
    return tensor.contiguous().view(-1).view(torch.uint8)


def _by_dtype(tensors: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    by_dtype: dict[torch.dtype, list[torch.Tensor]] = {}
    for tensor in tensors:
        by_dtype.setdefault(tensor.dtype, []).append(tensor)
    yield from by_dtype.values()
