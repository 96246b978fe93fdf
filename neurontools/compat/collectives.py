"""The collectives of torch_xla.core.xla_model for runs of one process, whose group has one member.

Sources: PyTorch/XLA API reference, `torch_xla.core.xla_model`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import torch

from neurontools.compat import ranks

Groups = Sequence[Sequence[int]] | None
Tensors = TypeVar("Tensors", torch.Tensor, list[torch.Tensor])

REDUCE_SUM = "sum"
REDUCE_MUL = "mul"
REDUCE_MIN = "min"
REDUCE_MAX = "max"
REDUCE_AND = "and"
REDUCE_OR = "or"
_REDUCTIONS = frozenset({REDUCE_SUM, REDUCE_MUL, REDUCE_MIN, REDUCE_MAX, REDUCE_AND, REDUCE_OR})


def all_reduce(
    reduce_type: str, inputs: Tensors, scale: float = 1.0, groups: Groups = None, pin_layout: bool = True
) -> Tensors:
    """Reduce over the run: a tensor gives a new tensor, a list is reduced in place.

    In a run of one process nothing is reduced, and `scale` is ignored, as in PyTorch/XLA.
    """
    _check("all_reduce", groups, reduce_type)
    return inputs.clone() if isinstance(inputs, torch.Tensor) else inputs


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
    _check("all_gather", groups)
    if pin_layout and not isinstance(value, torch.Tensor):
        raise RuntimeError(
            "For xm.all_gather with list of tensors input, pin_layout=True is not yet supported."
        )
    return _result(value, output)


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
    _check("reduce_scatter", groups, reduce_type)
    _check_count("shard_count", shard_count)
    if isinstance(input, torch.Tensor):
        return _result(input * scale, output)
    return _result([tensor * scale for tensor in input], output)


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
    _check("all_to_all", groups)
    _check_count("split_count", split_count)
    return value.clone()


def collective_permute(value: torch.Tensor, pairs: Iterable[Sequence[int]]) -> torch.Tensor:
    """Send a tensor along (source, target) pairs; a process that receives nothing gets zeros.

    Raises:
        ValueError: a pair names a process that does not exist.
    """
    ranks.require_single("collective_permute")
    targets = []
    for source, target in pairs:
        if source != 0 or target != 0:
            raise ValueError(f"pair ({source}, {target}) names a process that does not exist: the run has 1")
        targets.append(target)
    return value.clone() if targets else torch.zeros_like(value)


def collective_broadcast(
    tensors: list[torch.Tensor], root_ordinal: int = 0, groups: Groups = None, pin_layout: bool = True
) -> None:
    """Copy the tensors of one process to all others, in place.

    Raises:
        ValueError: `root_ordinal` does not exist.
    """
    _check("collective_broadcast", groups)
    if root_ordinal != 0:
        raise ValueError(f"root_ordinal {root_ordinal} does not exist: the run has 1 process")


def fetch_gradients(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Return the gradients of an optimizer's parameters."""
    return [
        parameter.grad.data
        for group in optimizer.param_groups
        for parameter in group["params"]
        if isinstance(parameter, torch.Tensor) and parameter.grad is not None
    ]


def _check(operation: str, groups: Groups, reduce_type: str = REDUCE_SUM) -> None:
    ranks.require_single(operation)
    if reduce_type not in _REDUCTIONS:
        raise ValueError(f"Invalid reduce type: {reduce_type}")
    if groups and [list(group) for group in groups] != [[0]]:
        raise ValueError(f"groups {groups} name processes that do not exist: the run has 1")


def _check_count(name: str, count: int) -> None:
    if count != 1:
        raise ValueError(f"{name} is {count}, but the run has 1 process")


def _result(value: Tensors, output: Any) -> Tensors:
    if output is None:
        return value.clone() if isinstance(value, torch.Tensor) else [tensor.clone() for tensor in value]
    if isinstance(value, torch.Tensor):
        output.copy_(value)
        return output  # type: ignore[no-any-return]
    if not isinstance(output, list) or any(not isinstance(tensor, torch.Tensor) for tensor in output):
        raise TypeError(f"`output` needs to be a list of Tensors, but given {type(output)}.")
    if len(output) != len(value):
        raise ValueError(f"`output` length doesn't match `input` length: {len(output)} vs {len(value)}.")
    for target, source in zip(output, value, strict=True):
        target.copy_(source)
    return output
