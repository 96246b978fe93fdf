"""The collectives of torch_xla.core.xla_model, over the workers of a run.

Sources: PyTorch/XLA API reference, `torch_xla.core.xla_model`.
"""

from __future__ import annotations

import io
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from neurontools.compat import structures
from neurontools.xla import api
from neurontools.xla.distributed import collectives, worker_group
from neurontools.xla.distributed.collectives import Groups, group_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

T = TypeVar("T")
Tensors = TypeVar("Tensors", torch.Tensor, list[torch.Tensor])

REDUCE_SUM = "sum"
REDUCE_MUL = "mul"
REDUCE_MIN = "min"
REDUCE_MAX = "max"
REDUCE_AND = "and"
REDUCE_OR = "or"


def all_reduce(
    reduce_type: str, inputs: Tensors, scale: float = 1.0, groups: Groups = None, pin_layout: bool = True
) -> Tensors:
    """Reduce over the run: a tensor gives a new tensor, a list is reduced in place.

    In a group of one process nothing is reduced, and `scale` is ignored, as in PyTorch/XLA.

    Raises:
        ValueError: an unknown `reduce_type`, or groups that the run does not have.
    """
    scale = scale if group_size(groups) > 1 else 1.0
    if not isinstance(inputs, torch.Tensor):
        collectives.all_reduce_(inputs, reduce_type, scale, groups)
        return inputs
    with torch.no_grad():
        result = inputs.clone()
    collectives.all_reduce_([result], reduce_type, scale, groups)
    return result  # type: ignore[no-any-return]


def all_gather(
    value: Tensors,
    dim: int = 0,
    groups: Groups = None,
    output: Tensors | None = None,
    pin_layout: bool = True,
    channel_id: int | None = None,
    use_global_device_ids: bool | None = None,
) -> Tensors:
    """Concatenate the tensors of all processes along a dimension; a list is gathered tensor by tensor."""
    if pin_layout and not isinstance(value, torch.Tensor):
        raise RuntimeError(
            "For xm.all_gather with list of tensors input, pin_layout=True is not yet supported."
        )
    return _apply(lambda tensor: collectives.all_gather(tensor, dim, groups), value, output)


def all_gather_bucketized(
    input_list: list[torch.Tensor],
    dim: int = 0,
    groups: Groups = None,
    output: list[torch.Tensor] | None = None,
    pin_layout: bool = False,
    bucket_cap_mb: int = 160,
) -> list[torch.Tensor]:
    """Gather a list of tensors, in buckets of `bucket_cap_mb` MiB."""
    return all_gather(input_list, dim, groups, output, pin_layout)


def reduce_scatter(
    reduce_type: str,
    input: Tensors,
    scale: float,
    scatter_dim: int,
    shard_count: int,
    groups: Groups = None,
    output: Tensors | None = None,
    pin_layout: bool = True,
    channel_id: int | None = None,
    use_global_device_ids: bool | None = None,
) -> Tensors:
    """Reduce over the run, scale, and return this process's shard along a dimension.

    Raises:
        ValueError: `shard_count` is not the number of processes.
    """
    _check_count("shard_count", shard_count, groups)

    def scatter(tensor: torch.Tensor) -> torch.Tensor:
        return collectives.reduce_scatter(tensor, reduce_type, scale, scatter_dim, groups)

    return _apply(scatter, input, output)


def reduce_scatter_bucketized(
    reduce_type: str,
    input_list: list[torch.Tensor],
    scale: float,
    scatter_dim: int,
    shard_count: int,
    groups: Groups = None,
    output: list[torch.Tensor] | None = None,
    pin_layout: bool = False,
    bucket_cap_mb: int = 160,
) -> list[torch.Tensor]:
    """Reduce and scatter a list of tensors, in buckets of `bucket_cap_mb` MiB."""
    return reduce_scatter(
        reduce_type, input_list, scale, scatter_dim, shard_count, groups, output, pin_layout
    )


def all_to_all(
    value: torch.Tensor,
    split_dimension: int,
    concat_dimension: int,
    split_count: int,
    groups: Groups = None,
    pin_layout: bool = True,
) -> torch.Tensor:
    """Split a tensor over the processes and concatenate the received parts.

    Raises:
        ValueError: `split_count` is not the number of processes.
    """
    _check_count("split_count", split_count, groups)
    return collectives.all_to_all(value, split_dimension, concat_dimension, groups)


def collective_permute(value: torch.Tensor, pairs: Iterable[Sequence[int]]) -> torch.Tensor:
    """Send a tensor along (source, target) pairs; a process that receives nothing gets zeros.

    Raises:
        ValueError: a pair names a process that does not exist.
    """
    chosen = [tuple(pair) for pair in pairs]
    return collectives.collective_permute(value, chosen)


def collective_broadcast(
    tensors: list[torch.Tensor], root_ordinal: int = 0, groups: Groups = None, pin_layout: bool = True
) -> None:
    """Copy the tensors of one process to all others, in place.

    Raises:
        ValueError: `root_ordinal` does not exist.
    """
    collectives.broadcast_(tensors, root_ordinal, groups)


def broadcast_master_param(model: torch.nn.Module) -> None:
    """Copy parameters and buffers of the first process to all others."""
    collective_broadcast(list(chain(model.parameters(), model.buffers())))
    api.mark_step()


def reduce_gradients(
    optimizer: torch.optim.Optimizer, groups: Groups = None, pin_layout: bool = True
) -> None:
    """Average the gradients over the processes, in buckets of ALLREDUCE_GRADIENTS_BUCKET_SIZE_MB (50)."""
    all_reduce_bucketized_gradients(fetch_gradients(optimizer), 1.0 / group_size(groups), groups, pin_layout)


def all_reduce_bucketized_gradients(
    gradients: Iterable[torch.Tensor],
    scale: float,
    groups: Groups = None,
    pin_layout: bool = True,
    bucket_cap_mb: int = 0,
) -> None:
    """Reduce gradients over the processes in buckets of `bucket_cap_mb` MiB, the last layers first, in place."""
    for bucket in collectives.buckets(list(gradients)[::-1], bucket_cap_mb):
        all_reduce(REDUCE_SUM, bucket, scale, groups, pin_layout)


def rendezvous(tag: str, payload: bytes = b"", replicas: Iterable[int] = ()) -> list[bytes]:
    """Run the recorded operators, wait for the other processes and return the payload of each.

    Raises:
        TypeError: the payload is not bytes.
    """
    if not isinstance(payload, bytes):
        raise TypeError(f"`payload` must be bytes, not {type(payload)}")
    api.mark_step()
    own = worker_group.current()
    return own.group(tuple(replicas) or own.world).gather_bytes(payload)


def mesh_reduce(tag: str, data: Any, reduce_fn: Callable[[list[Any]], T]) -> T:
    """Gather a value from every process and reduce the list."""
    buffer = io.BytesIO()
    torch.save(structures.to_cpu(data), buffer)
    gathered = rendezvous(tag, buffer.getvalue())
    return reduce_fn([torch.load(io.BytesIO(payload), weights_only=False) for payload in gathered])


def fetch_gradients(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Return the gradients of an optimizer's parameters."""
    return [
        gradient.data
        for group in optimizer.param_groups
        for parameter in group["params"]
        if isinstance(parameter, torch.Tensor) and (gradient := parameter.grad) is not None
    ]


def _check_count(name: str, count: int, groups: Groups) -> None:
    size = group_size(groups)
    if count != size:
        raise ValueError(f"{name} is {count}, but the group has {size} process{'es' if size > 1 else ''}")


def _apply(operation: Callable[[torch.Tensor], torch.Tensor], value: Tensors, output: Any) -> Tensors:
    if isinstance(value, torch.Tensor):
        return _into(output, operation(value))  # type: ignore[no-any-return]
    if output is None:
        return [operation(tensor) for tensor in value]
    if not isinstance(output, list) or any(not isinstance(tensor, torch.Tensor) for tensor in output):
        raise TypeError(f"`output` needs to be a list of Tensors, but given {type(output)}.")
    if len(output) != len(value):
        raise ValueError(f"`output` length doesn't match `input` length: {len(output)} vs {len(value)}.")
    return [_into(target, operation(tensor)) for target, tensor in zip(output, value, strict=True)]


def _into(output: torch.Tensor | None, result: torch.Tensor) -> torch.Tensor:
    if output is None:
        return result
    with torch.no_grad():
        copied: torch.Tensor = output.copy_(result)
    return copied


def clip_norm_(
    gradients: Sequence[torch.Tensor], max_norm: float, divisions: Sequence[Groups]
) -> torch.Tensor:
    """Scale this worker's gradients so that the norm over all workers is at most `max_norm`; return the norm before.

    Args:
        gradients: the parts that this worker keeps.
        max_norm: the bound.
        divisions: groups of ranks to sum over, one division after the other.
    """
    with torch.no_grad():
        total = torch.stack([(gradient * gradient).sum() for gradient in gradients]).sum()
        for groups in divisions:
            collectives.all_reduce_([total], "sum", 1.0, groups)
        norm: torch.Tensor = total.sqrt()
        factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
        for gradient in gradients:
            gradient.mul_(factor)
    return norm
