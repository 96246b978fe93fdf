"""Random numbers of DTensors: a draw gives each shard numbers of its own, and replicas the same ones.

torch moves the offset in the state of a CUDA generator. The device's state has none; instead, a sharded draw takes a seed
from the device's stream, and each shard has the stream of that seed and its index. A replicated draw takes its numbers
from the device's stream itself, as one process would. Neither ends the recording. A graph of torch.compile would lose the
change of streams: a sharded draw is one operator there, which torch has for CUDA.
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
from torch.distributed.tensor import _random
from torch.utils._python_dispatch import TorchDispatchMode

from neurontools.native.replayed_random import on_device
from neurontools.native.selection import NEURON
from neurontools.xla.accelerator import DeviceError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_SEEDS = 1 << 62


@functools.cache
def install() -> None:
    """Let DTensors on the device draw random numbers, in compiled code too."""
    _random.OffsetBasedRNGTracker = ShardRandomTracker
    on_device(run_dtensor_rng_op, _draw_of_shard)
    # So that a checkpoint in compiled code draws the same numbers again.
    run_dtensor_rng_op.tags = (torch.Tag.nondeterministic_seeded,)


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
    torch.neuron.set_rng_state(generator.get_state())
    try:
        yield
    finally:
        generator.set_state(torch.neuron.get_rng_state().cpu())
        torch.neuron.set_rng_state(before)


@contextmanager
def _stream_of_shard(shard: int) -> Iterator[None]:
    seed = torch.randint(_SEEDS, (), device=NEURON)
    after = torch.neuron.get_rng_state()
    torch.neuron.set_rng_state(torch.ops.neurontools.shard_rng_state(seed, shard))
    try:
        yield
    finally:
        torch.neuron.set_rng_state(after)
