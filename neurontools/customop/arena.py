"""Memory that the host shares with one worker: a slot per argument and one for the output, in a memfd.

A tensor lies at the end of its slot, so that the worker meets a guard page right behind it. The file is sparse: slots
have fixed places far apart, and only pages that were touched take memory. The host keeps all bookkeeping; a worker
can spoil the tensors' bytes, nothing else.
"""

from __future__ import annotations

import ctypes
import mmap
import os

from neurontools.customop.abi import SLOTS
from neurontools.customop.errors import CustomOpLibraryError

SLOT_STRIDE = 1 << 36
_SHARE_OF_RAM = 0.25


class Arena:
    """The slots of one worker.

    Raises:
        CustomOpLibraryError: the system refuses the memory file.
    """

    def __init__(self) -> None:
        self.fd = os.memfd_create("neuron-customop-arena", os.MFD_CLOEXEC)
        try:
            os.ftruncate(self.fd, SLOT_STRIDE * SLOTS)
        except OSError as error:
            os.close(self.fd)
            raise CustomOpLibraryError(
                f"cannot reserve memory for a custom operator: {error.strerror}", "raise ulimit -f"
            ) from error
        self._maps: list[mmap.mmap | None] = [None] * SLOTS
        self._addresses = [0] * SLOTS
        self._limit_bytes = memory_limit_bytes()

    def fit(self, slot: int, nbytes: int) -> int:
        """Make a slot large enough and return its size in bytes.

        Raises:
            CustomOpLibraryError: all slots together would take more than a quarter of this computer's memory.
        """
        current = self._maps[slot]
        if current is not None and nbytes <= len(current):
            return len(current)
        size = _slot_size(nbytes)
        total = size + sum(len(other) for index, other in enumerate(self._maps) if other and index != slot)
        if total > self._limit_bytes:
            raise CustomOpLibraryError(
                f"the tensors of a custom operator need {total} bytes here, more than a quarter of this "
                f"computer's memory ({self._limit_bytes})",
                "use smaller tensors",
            )
        self._unmap(slot)
        fresh = mmap.mmap(self.fd, size, offset=SLOT_STRIDE * slot)
        self._maps[slot] = fresh
        anchor = ctypes.c_char.from_buffer(fresh)
        self._addresses[slot] = ctypes.addressof(anchor)
        del anchor
        return size

    def write(self, slot: int, address: int, nbytes: int) -> None:
        """Copy bytes from this process into a slot that fits them."""
        ctypes.memmove(self._place(slot, nbytes), address, nbytes)

    def read(self, slot: int, address: int, nbytes: int) -> None:
        """Copy bytes from a slot to an address of this process."""
        ctypes.memmove(address, self._place(slot, nbytes), nbytes)

    def fill(self, slot: int, nbytes: int, value: int) -> None:
        """Set bytes of a slot that fits them to one value."""
        ctypes.memset(self._place(slot, nbytes), value, nbytes)

    def close(self) -> None:
        """Give everything back."""
        for slot in range(SLOTS):
            self._unmap(slot)
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def _place(self, slot: int, nbytes: int) -> int:
        current = self._maps[slot]
        assert current is not None
        return self._addresses[slot] + len(current) - nbytes

    def _unmap(self, slot: int) -> None:
        current = self._maps[slot]
        if current is not None:
            current.close()
            self._maps[slot] = None
            self._addresses[slot] = 0


def memory_limit_bytes() -> int:
    """Return how much of this computer's memory the tensors of a custom operator may take: a quarter."""
    return int(_SHARE_OF_RAM * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))


def _slot_size(nbytes: int) -> int:
    """Round up so that growing tensors do not make a new mapping each: powers of two, then multiples of 16 MiB."""
    size = mmap.PAGESIZE
    step = 16 << 20
    while size < nbytes and size < step:
        size *= 2
    return size if nbytes <= size else (nbytes + step - 1) // step * step
