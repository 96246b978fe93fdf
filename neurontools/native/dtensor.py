"""Random numbers and attention of DTensors.

torch moves the offset in the state of a CUDA generator. The device's state has none; instead, a sharded draw takes a seed
from the device's stream, and each shard has the stream of that seed and its index. A replicated draw takes its numbers
from the device's stream itself, as one process would. Neither ends the recording. A graph of torch.compile would lose the
change of streams: a sharded draw is one operator there, which torch has for CUDA.

Attention is sharded by batch or heads as it is, and by the sequence in torch's ring of context parallelism. torch has the
rules for the attention kernels of CUDA; the device's kernel is that of the CPU, which has none.
"""

# ruff: noqa: SLF001
# Torch's private API.

from __future__ import annotations

import functools
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch._prims.rng_prims import run_dtensor_rng_op
from torch.distributed._functional_collectives import _are_we_tracing
from torch.distributed.tensor import DTensor, Replicate, Shard, _random
from torch.distributed.tensor._op_schema import OpSchema, RuntimeSchemaInfo
from torch.distributed.tensor._ops.utils import expand_to_full_mesh_op_strategy
from torch.distributed.tensor.experimental._context_parallel import _attention
from torch.utils._python_dispatch import TorchDispatchMode

from neurontools.native.patches import register_on_device
from neurontools.native.selection import NEURON
from neurontools.xla.accelerator import DeviceError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_SEEDS = 1 << 62
_aten = torch.ops.aten
_FORWARD = _aten._scaled_dot_product_flash_attention_for_cpu
_BACKWARD = _aten._scaled_dot_product_flash_attention_for_cpu_backward
_BATCH, _HEADS, _SEQUENCE = range(3)


@functools.cache
def install() -> None:
    """Let DTensors on the device draw random numbers, in compiled code too, and compute attention."""
    _random.OffsetBasedRNGTracker = ShardRandomTracker
    register_on_device(run_dtensor_rng_op, _draw_of_shard)
    # So that a checkpoint in compiled code draws the same numbers again.
    run_dtensor_rng_op.tags = (torch.Tag.nondeterministic_seeded,)
    about = RuntimeSchemaInfo(static_argnum=3, static_kwargkey=["attn_mask", "scale"])
    for operator, results, tensors in ((_FORWARD.default, 2, 3), (_BACKWARD.default, 3, 6)):
        choose = functools.partial(_shardings, results, tensors)
        DTensor._op_dispatcher.sharding_propagator.register_op_strategy(operator, choose, about)
    _attention.custom_ops[_FORWARD.default] = _compute_ring
    _attention.custom_ops[_BACKWARD.default] = _compute_ring_backward


class ShardRandomTracker(_random.OffsetBasedRNGTracker):  # type: ignore[misc]
    """What DTensor asks for a shard's random numbers."""

    def _get_device_state(self) -> torch.Tensor:
        """Return the state on the host, where torch compares it with the first worker's byte by byte."""
        return torch.neuron.get_rng_state().cpu()

    @contextmanager
    def _distribute_region(self, spec: Any, generator: torch.Generator | None = None) -> Iterator[None]:
        """Draw the numbers of this worker's shard inside the block.

        Args:
            spec: the shape of the DTensor and its placements on a mesh.
            generator: replaces the device's stream.

        Raises:
            DeviceError: a draw in compiled code has a generator.
        """
        if not self.distribute_region_enabled:
            yield
            return
        coordinates = [spec.mesh._sym_get_coordinate(dim) for dim in range(spec.mesh.ndim)]
        positions, sizes = _random._calc_shard_info(coordinates, spec)
        shard = self._calc_shard_linear_idx(positions, sizes) if any(size > 1 for size in sizes) else None
        with ExitStack() as streams:
            if _are_we_tracing():
                if generator is not None:
                    raise DeviceError(
                        "torch.compile(backend='neuron') does not support generators for random numbers of DTensors",
                        "use torch.manual_seed, or leave the call out with torch.compiler.disable",
                    )
                if shard is not None:
                    streams.enter_context(_ShardDraws(shard))
            else:
                if generator is not None:
                    streams.enter_context(_stream_of(generator))
                if shard is not None:
                    streams.enter_context(_stream_of_shard(shard))
            yield


class _ShardDraws(TorchDispatchMode):  # type: ignore[misc]
    """Makes one operator of each draw that is traced: torch's, whose first number is the shard's index here."""

    def __init__(self, shard: int) -> None:
        super().__init__()
        self._shard = shard

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in operator.tags:
            return operator(*args, **kwargs)
        if not operator._schema.is_mutable:
            return run_dtensor_rng_op(self._shard, 0, operator, *args, **kwargs)
        drawn = run_dtensor_rng_op(self._shard, 0, operator, args[0].clone(), *args[1:], **kwargs)
        return args[0].copy_(drawn)


def _draw_of_shard(index: int, shard: int, _: int, operator: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ARG001
    with _stream_of_shard(shard):
        return operator(*args, **kwargs)


@contextmanager
def _stream_of(generator: torch.Generator) -> Iterator[None]:
    before = torch.neuron.get_rng_state()
    try:
        torch.neuron.set_rng_state(generator.get_state())
        yield
        generator.set_state(torch.neuron.get_rng_state().cpu())
    finally:
        torch.neuron.set_rng_state(before)


@contextmanager
def _stream_of_shard(shard: int) -> Iterator[None]:
    seed = torch.randint(_SEEDS, (), device=NEURON)
    after = torch.neuron.get_rng_state()
    try:
        torch.neuron.set_rng_state(torch.ops.neurontools.shard_rng_state(seed, shard))
        yield
    finally:
        torch.neuron.set_rng_state(after)


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
