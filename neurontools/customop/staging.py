"""Copies of tensors for one worker: those that do not lie in the machine's memory, or that the kernel may write to."""

from __future__ import annotations

from ctypes import memmove, memset
from typing import TYPE_CHECKING

from neurontools.customop import abi

if TYPE_CHECKING:
    from neurontools.customop.arena import Arena, Block


class Staging:
    """A block per argument and one for the output; they grow and are used again by the next call.

    Args:
        arena: where the blocks come from.
        fresh_memory: what the output holds before a kernel runs: a byte, None for whatever was there.
    """

    def __init__(self, arena: Arena, fresh_memory: int | None) -> None:
        self._arena = arena
        self._fresh_memory = fresh_memory
        self._blocks: list[Block | None] = [None] * abi.SLOTS
        self.copied_in = 0  # calls of `write`, so that a test can tell that nothing was copied

    def block(self, slot: int, nbytes: int) -> Block:
        """Return a slot's block, large enough for so many bytes.

        Raises:
            CustomOpLibraryError: there is no room.
        """
        block = self._blocks[slot]
        if block is None or block.nbytes < nbytes:
            self._blocks[slot] = block = None  # gives the old one back first
            self._blocks[slot] = block = self._arena.allocate(nbytes)
        return block

    def write(self, slot: int, address: int, nbytes: int) -> Block:
        """Copy bytes of this process to the end of a slot's block, and return it."""
        block = self._blocks[slot]
        if block is None or block.nbytes < nbytes:
            block = self.block(slot, nbytes)
        memmove(block.address + block.nbytes - nbytes, address, nbytes)
        self.copied_in += 1
        return block

    def output(self, nbytes: int) -> Block:
        """Return the block for an output of so many bytes."""
        block = self.block(abi.OUTPUT_SLOT, nbytes)
        self.freshen(block, nbytes)
        return block

    def freshen(self, block: Block, nbytes: int) -> None:
        """Let the end of a block hold what fresh memory holds."""
        if self._fresh_memory is not None:
            memset(block.address + block.nbytes - nbytes, self._fresh_memory, nbytes)

    def read(self, slot: int, address: int, nbytes: int) -> None:
        """Copy the end of a slot's block to an address of this process."""
        block = self.block(slot, nbytes)
        memmove(address, block.address + block.nbytes - nbytes, nbytes)

    def close(self) -> None:
        """Give all blocks back."""
        self._blocks = [None] * abi.SLOTS
