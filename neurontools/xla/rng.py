"""The random numbers of one device: a stream of its own, seeded by torch.manual_seed like every device's.

Graphs run on torch's CPU kernels, which draw from torch's default generator; a scope swaps in the device's state and
puts the host's back. Swapping costs about two microseconds and is done only for graphs that draw.

While draws are recorded, reading and setting the state are operators of the graph, too: they happen between the draws
that surround them in the program, cost no cut, and any seed runs the same graph.
"""

# ruff: noqa: SLF001
# Torch's private API.

from __future__ import annotations

import hashlib
import struct
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

import torch

from neurontools.xla.device_name import device_name

if TYPE_CHECKING:
    from collections.abc import Iterator

# The state of torch's CPU generator: seed, words left in the block, seeded, next word, the block of 624 words, and
# whether half of a pair of normal numbers is left, as double and as float.
_HEAD = struct.Struct("=QiiQ")
_BLOCK = slice(24, 5016)
_DOUBLE_LEFT, _FLOAT_LEFT = 5040, 5052
_BLOCK_WORDS = 624
_STATE_BYTES = 5056

# A state as 64 bits is a plain seed, or the mark, the words drawn since seeding and the 32 bits that the seed uses.
_MARK = 5
_MARK_SHIFT, _WORDS_SHIFT = 60, 32
_SEED_MASK = (1 << _WORDS_SHIFT) - 1
_WORDS_MASK = (1 << _MARK_SHIFT - _WORDS_SHIFT) - 1
_WORDS_LIMIT = 1 << 26  # about a second to find
_CHUNK = 1 << 20


class DeviceGenerator:
    """The stream of random numbers of one device. Starts with torch's initial seed."""

    def __init__(self) -> None:
        self._state: torch.Tensor = seeded_state(torch.initial_seed())

    def seed(self, seed: int) -> None:
        """Seed the stream."""
        self._state = seeded_state(seed)

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

    def state(self) -> torch.Tensor:
        """Return the whole state as torch's generators do: a tensor of bytes, on the host."""
        return self._state.clone()

    def restore(self, state: torch.Tensor) -> None:
        """Continue at a value of `state`."""
        self._state = state.clone()

    def initial_seed(self) -> int:
        """Return the seed that the stream started with."""
        return int(_HEAD.unpack_from(_bytes(self._state))[0])

    def value(self) -> int:
        """Return the state as 64 bits, as `xm.get_rng_state` does.

        A state that 64 bits cannot name (half of a pair of normal numbers is left, or more than 67 million words have
        been drawn) is replaced first: the stream continues from a seed that is computed from the state.
        """
        data = _bytes(self._state)
        seed = int(_HEAD.unpack_from(data)[0])
        words = _words_drawn(self._state)
        if words is None:
            seed, words = int.from_bytes(hashlib.sha256(data).digest()[:4], "little"), 0
            self.seed(seed)
        if words == 0:
            return seed if seed >> _MARK_SHIFT != _MARK else seed & _SEED_MASK
        return _MARK << _MARK_SHIFT | words << _WORDS_SHIFT | seed & _SEED_MASK


def seeded_state(seed: int) -> torch.Tensor:
    """Return the state of a stream that starts at a seed."""
    generator = torch.Generator()
    generator.manual_seed(seed)
    return generator.get_state()


def state_at(value: int) -> torch.Tensor:
    """Return the state that a value of `DeviceGenerator.value`, or a plain seed, stands for."""
    if value >> _MARK_SHIFT != _MARK:
        return seeded_state(value)
    generator = torch.Generator()
    generator.manual_seed(value & _SEED_MASK)
    words = value >> _WORDS_SHIFT & _WORDS_MASK
    while words:
        step = min(words, _CHUNK)
        torch.empty(step, dtype=torch.float32).uniform_(generator=generator)  # one word each
        words -= step
    return generator.get_state()


def checked_state(state: torch.Tensor) -> torch.Tensor:
    """Return a state on the host after a check.

    Raises:
        RuntimeError: it is not a generator's state.
        TypeError: it is not a tensor of bytes.
    """
    torch.Generator().set_state(state)
    return state


class GeneratorOfDevice(torch._C.Generator):  # type: ignore[misc]
    """A stream of its own for operators with a `generator` argument: torch's CPU generator, for tensors of the device."""

    def __new__(cls, device: torch.device) -> Self:  # noqa: D102
        made: Self = super().__new__(cls, "cpu")
        made._device = device
        return made

    @property
    def device(self) -> torch.device:
        """The device."""
        return self._device

    def clone_state(self) -> GeneratorOfDevice:
        """Return a generator of the same device with the same state."""
        clone = GeneratorOfDevice(self._device)
        clone.set_state(self.get_state())
        return clone


class _GeneratorType(type(torch._C.Generator)):  # type: ignore[misc]
    def __call__(cls, device: Any = "cpu") -> torch._C.Generator:
        chosen = torch.device(device)
        return GeneratorOfDevice(chosen) if chosen.type == device_name() else torch._C.Generator(chosen)

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, torch._C.Generator)


class Generator(torch._C.Generator, metaclass=_GeneratorType):  # type: ignore[misc]
    """`torch.Generator` that knows the device: torch asks devices in Python for none."""


def define_operators() -> Any:
    """Define the operators that read and set the state inside a graph, and return their library."""
    library = torch.library.Library("neurontools", "FRAGMENT")
    seeded = (torch.Tag.nondeterministic_seeded,)
    library.define("get_rng_state(*, Device? device=None) -> Tensor", tags=seeded)
    library.define("set_rng_state(Tensor state) -> ()", tags=seeded)
    library.define("shard_rng_state(Tensor seed, int shard) -> Tensor")
    library.impl("get_rng_state", _default_state, "CompositeExplicitAutograd")
    library.impl("set_rng_state", _set_default_state, "CPU")
    library.impl("shard_rng_state", _shard_state, "CPU")
    library.impl("shard_rng_state", lambda seed, _: seed.new_empty(_STATE_BYTES, dtype=torch.uint8), "Meta")
    return library


def _default_state(device: Any = None) -> torch.Tensor:  # noqa: ARG001  # of the schema
    return torch.default_generator.get_state()


def _set_default_state(state: torch.Tensor) -> None:
    torch.default_generator.set_state(state)


def _shard_state(seed: torch.Tensor, shard: int) -> torch.Tensor:
    return seeded_state(int(seed.item()) + shard)


def _bytes(state: torch.Tensor) -> bytes:
    return bytes(state.numpy().tobytes())


def _words_drawn(state: torch.Tensor) -> int | None:
    """Return the words drawn since seeding, None if there is no such number or it is too large to look for."""
    data = _bytes(state)
    seed, _, _, next_word = _HEAD.unpack_from(data)
    if data[_DOUBLE_LEFT] or data[_FLOAT_LEFT]:
        return None
    generator = torch.Generator()
    generator.manual_seed(seed)
    block = state[_BLOCK]
    buffer = torch.empty(_BLOCK_WORDS, dtype=torch.float32)
    for words in range(-_BLOCK_WORDS, _WORDS_LIMIT, _BLOCK_WORDS):
        if generator.get_state()[_BLOCK].equal(block):
            return max(0, words + int(next_word))
        buffer.uniform_(generator=generator)
    return None
