"""The random numbers of one device: a stream of its own, seeded by torch.manual_seed like every device's.

Graphs run on torch's CPU kernels, which draw from torch's default generator; a scope swaps in the device's state and
puts the host's back. Swapping costs about two microseconds and is done only for graphs that draw.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

_SEED_BITS = 64


class DeviceGenerator:
    """The stream of random numbers of one device. Starts with torch's initial seed."""

    def __init__(self) -> None:
        self._state: torch.Tensor = self._seeded(torch.initial_seed())

    def seed(self, seed: int) -> None:
        """Seed the stream."""
        self._state = self._seeded(seed)

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Use this device's stream in torch's default generator inside the block."""
        generator = torch.default_generator
        host_state = generator.get_state()
        generator.set_state(self._state)
        try:
            yield
        finally:
            self._state = generator.get_state()
            generator.set_state(host_state)

    def state_bytes(self) -> torch.Tensor:
        """Return the whole state as torch's generators do: a tensor of bytes."""
        return self._state.clone()

    def restore_bytes(self, state: torch.Tensor) -> None:
        """Continue at a value of `state_bytes`."""
        self._state = state.to("cpu", torch.uint8, copy=True)

    def state(self) -> int:
        """Return the whole state as one integer, as `xm.get_rng_state` does with its seed."""
        data = bytes(self._state.tolist())
        return int.from_bytes(data, "little") | 1 << len(data) * 8

    def restore(self, state: int) -> None:
        """Continue at a value of `state`, or start at a plain seed."""
        if state.bit_length() <= _SEED_BITS:
            self.seed(state)
            return
        data = state.to_bytes((state.bit_length() + 7) // 8, "little")[:-1]
        self._state = torch.frombuffer(bytearray(data), dtype=torch.uint8)

    @staticmethod
    def _seeded(seed: int) -> torch.Tensor:
        generator = torch.Generator()
        generator.manual_seed(seed)
        return generator.get_state()
