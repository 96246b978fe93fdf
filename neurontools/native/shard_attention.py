"""Attention of DTensors: sharded by batch or heads as it is, and by the sequence in torch's ring of context parallelism.

torch has the rules for the attention kernels of CUDA. The device's kernel is that of the CPU, which has none.
"""

# ruff: noqa: SLF001
# Torch's private API.

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor._op_schema import OpSchema, RuntimeSchemaInfo
from torch.distributed.tensor._ops.utils import expand_to_full_mesh_op_strategy
from torch.distributed.tensor.experimental._context_parallel import _attention

_aten = torch.ops.aten
_FORWARD = _aten._scaled_dot_product_flash_attention_for_cpu
_BACKWARD = _aten._scaled_dot_product_flash_attention_for_cpu_backward
_BATCH, _HEADS, _SEQUENCE = range(3)


@functools.cache
def install() -> None:
    """Let DTensors on the device compute attention."""
    about = RuntimeSchemaInfo(static_argnum=3, static_kwargkey=["attn_mask", "scale"])
    for operator, results, tensors in ((_FORWARD.default, 2, 3), (_BACKWARD.default, 3, 6)):
        choose = functools.partial(_shardings, results, tensors)
        DTensor._op_dispatcher.sharding_propagator.register_op_strategy(operator, choose, about)
    _attention.custom_ops[_FORWARD.default] = _compute_ring
    _attention.custom_ops[_BACKWARD.default] = _compute_ring_backward


def _shardings(results: int, tensors: int, call: OpSchema) -> Any:
    """Return the ways to shard a call that need no communication: whole, by batch, by heads.

    Args:
        results: number of results.
        tensors: number of tensors before the other arguments.
        call: the call. Its mask stays as it is, because torch moves no keyword arguments.
    """
    mask: Any = call.kwargs_schema.get("attn_mask")
    options = [
        [*[placement] * (results + tensors), *([] if mask is None else [_of_mask(mask, placement)])]
        for placement in (Replicate(), Shard(_BATCH), Shard(_HEADS))
    ]
    return expand_to_full_mesh_op_strategy(
        call.get_mesh_from_args(),
        call,
        options,
        input_index=results,
        is_valid_strategy_cb=lambda inputs, _: (
            mask is None or inputs[-1].placements == mask.strategies[0].output_spec.placements
        ),
    )


def _of_mask(mask: Any, placement: Any) -> Any:
    """Return the placement of a mask: one for all batches or heads is whole in every shard."""
    dimension = getattr(placement, "dim", None)
    whole = dimension is None or len(mask.shape) < 4 or mask.shape[dimension] == 1
    return Replicate() if whole else placement


def _compute_ring(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Compute attention of shards of the sequence; what torch calls within `context_parallel`."""
    taken = _bind(operator, args, kwargs)
    results = _attention._templated_ring_attention(
        taken["query"].device_mesh.get_group(), _SEQUENCE, _FORWARD, **_local(taken)
    )
    return _wrap(results, taken["query"])


def _compute_ring_backward(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    taken = _bind(operator, args, kwargs)
    results = _attention._templated_ring_attention_backward(
        taken["query"].device_mesh.get_group(),
        _SEQUENCE,
        _BACKWARD,
        grad_out_name="grad_out",
        **_local(taken),
    )
    return _wrap(results, taken["query"])


def _bind(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by name, defaults included.

    Raises:
        NotImplementedError: there is a mask, which torch's ring does not take.
    """
    taken = {argument.name: argument.default_value for argument in operator._schema.arguments}
    taken |= dict(zip(taken, args, strict=False)) | kwargs
    if taken.pop("attn_mask") is not None:
        raise NotImplementedError("context_parallel does not support attn_mask: use is_causal=True")
    return taken


def _local(taken: dict[str, Any]) -> dict[str, Any]:
    return {name: value.to_local() if isinstance(value, DTensor) else value for name, value in taken.items()}


def _wrap(results: tuple[torch.Tensor, ...], like: Any) -> tuple[Any, ...]:
    return tuple(DTensor.from_local(part, like.device_mesh, like.placements) for part in results)
