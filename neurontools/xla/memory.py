"""Device memory accounting of one core: batched, because a step frees and allocates many small buffers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from neurontools.runtime.memory import MemoryInfo
    from neurontools.xla.accelerator import Accelerator
    from neurontools.xla.host_memory import HostBudget


class MemoryAccount:
    """The device memory of the tensors of one device.

    Frees arrive from finalizers, at any time, even in the middle of a call into the accelerator: they are counted
    first and passed on when no call is running and no graph is open.
    """

    __slots__ = ("_accelerator", "_closed", "_freed_bytes", "_host", "_index", "_inside", "used_bytes")

    def __init__(self, accelerator: Accelerator, index: int, host: HostBudget) -> None:
        self._accelerator = accelerator
        self._index = index
        self._host = host
        self._freed_bytes = 0
        self._inside = False
        self._closed = False
        self.used_bytes = 0

    def charge(self, nbytes: int) -> None:
        """Take device memory.

        Raises:
            NrtError: the core's memory is full.
            HostMemoryError: this computer has no memory for the contents.
        """
        self.settle()
        self._host.take(nbytes)
        self._inside = True
        try:
            self._accelerator.allocate(self._index, nbytes)
            self.used_bytes += nbytes
        except BaseException:
            self._host.give(nbytes)
            raise
        finally:
            self._inside = False

    def release(self, nbytes: int, *, defer: bool) -> None:
        """Give device memory back, at once or with the next `settle`."""
        self.used_bytes -= nbytes
        self._host.give(nbytes)
        self._freed_bytes += nbytes
        if not defer and not self._inside:
            self.settle()

    def settle(self) -> None:
        """Pass on deferred frees."""
        if self._freed_bytes and not self._inside and not self._closed:
            self._inside = True
            try:
                freed_bytes, self._freed_bytes = self._freed_bytes, 0
                self._accelerator.free(self._index, freed_bytes)
            finally:
                self._inside = False

    def read(self) -> MemoryInfo:
        """Return the core's memory after settling."""
        self.settle()
        return self._accelerator.memory(self._index)

    def close(self) -> None:
        """Stop passing frees on: the machine is gone."""
        self._closed = True
