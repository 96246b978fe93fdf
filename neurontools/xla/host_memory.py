"""Limit on this computer's memory for the contents of device tensors.

Device memory is accounting: a simulated machine may have far more of it than this computer has memory. The contents
that really exist are bounded, so that a model that is too large ends with an error message, not with the computer out of memory.
"""

from __future__ import annotations

import os

from neurontools import env
from neurontools.base.units import format_size, parse_size
from neurontools.errors import UsageError
from neurontools.xla.accelerator import DeviceError


class HostMemoryError(DeviceError):
    """The limit on host memory for device contents is reached; the simulated device memory may not be full."""


class HostBudget:
    """Bytes of device contents in this process, and their limit."""

    __slots__ = ("limit_bytes", "used_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0

    def take(self, nbytes: int) -> None:
        """Count contents that come to be.

        Raises:
            HostMemoryError: they do not fit.
        """
        if self.used_bytes + nbytes > self.limit_bytes:
            raise HostMemoryError(
                f"device tensors need {format_size(self.used_bytes + nbytes)} of host memory, "
                f"the limit is {format_size(self.limit_bytes)} (the simulated device memory is not full)",
                f"use a smaller model or batch, or raise {env.HOST_MEMORY}",
            )
        self.used_bytes += nbytes

    def give(self, nbytes: int) -> None:
        """Release contents; safe in finalizers."""
        self.used_bytes -= nbytes


def host_limit() -> int:
    """Return the limit in bytes: NEURONTOOLS_HOST_MEMORY as a size or a share of this computer's memory.

    Raises:
        UsageError: the variable is neither.
    """
    chosen = env.host_memory()
    if not chosen.endswith("%"):
        return parse_size(chosen)
    try:
        share = float(chosen[:-1]) / 100
    except ValueError as error:
        raise UsageError(
            f"invalid {env.HOST_MEMORY} {chosen!r}",
            "use a share of the memory or a size, for example 25% or 8GiB",
        ) from error
    return int(share * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
