"""Random numbers of DTensors: a draw gives each shard numbers of its own, and replicas the same ones.

torch moves the offset in the state of a CUDA generator. The device's state has none; instead, a sharded draw takes a seed
from the device's stream, and each shard has the stream of that seed and its index. A replicated draw takes its numbers
from the device's stream itself, as one process would. Neither ends the recording.
"""

# ruff: noqa: SLF001
# Torch's private API.

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed._functional_collectives import _are_we_tracing
from torch.distributed.tensor import _random

from neurontools.native.selection import NEURON
from neurontools.xla.accelerator import DeviceError

if TYPE_CHECKING:
    from collections.abc import Iterator

_SEEDS = 1 << 62


def install() -> None:
    """Let DTensors on the device draw random numbers."""
    _random.OffsetBasedRNGTracker = ShardRandomTracker


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
            DeviceError: the draw is part of a graph of torch.compile, which would lose the change of streams.
        """
        if not self.distribute_region_enabled:
            yield
            return
        if _are_we_tracing():
            raise DeviceError(
                "torch.compile(backend='neuron') does not support random numbers of DTensors",
                "leave the call out of the compiled function with torch.compiler.disable",
            )
        coordinates = [spec.mesh._sym_get_coordinate(dim) for dim in range(spec.mesh.ndim)]
        positions, sizes = _random._calc_shard_info(coordinates, spec)
        with ExitStack() as streams:
            if generator is not None:
                streams.enter_context(_stream_of(generator))
            if any(size > 1 for size in sizes):
                streams.enter_context(_stream_of_shard(self._calc_shard_linear_idx(positions, sizes)))
            yield


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
