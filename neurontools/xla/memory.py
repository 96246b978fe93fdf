"""Memory accounting of the lazy device: simulated device memory, and this computer's memory for tensor contents.

Device memory is accounting: a simulated machine may have far more of it than this computer has memory. The contents
that really exist are bounded, so a model that is too large ends with an error, not with the computer out of memory.
"""

from __future__ import annotations

import ctypes
import os
import re
from contextlib import contextmanager
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from neurontools import env
from neurontools.base.interrupts import HOLD_S, InterruptHold, is_of_handler
from neurontools.base.units import format_size, parse_size
from neurontools.errors import UsageError
from neurontools.runtime.status import NrtError, NrtStatus
from neurontools.xla.accelerator import DeviceError
from neurontools.xla.buffers import ChargedBuffer, DeviceBuffer
from neurontools.xla.device_name import NEURON, device_name
from neurontools.xla.operators import Kind, Operator

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from neurontools.errors import NeuronToolsError
    from neurontools.runtime.memory import MemoryInfo
    from neurontools.xla.accelerator import Accelerator

_KEPT_BYTES = 1 << 20
# glibc, mallopt(3): up to which size freed memory at the end of the heap, and blocks, stay with the process.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_TRIM_BYTES, _MMAP_BYTES = 256 << 20, 32 << 20
_MALLOC_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES")
_ELEMENT_BYTES = 8
_ALLOCATOR = re.compile(r"DefaultCPUAllocator: .*you tried to allocate (\d+) bytes")


class MemoryAccount:
    """The device memory of the tensors of one device.

    Frees arrive from finalizers, at any time, even in the middle of a call into the accelerator: they are counted
    first and passed on when no call is running and no graph is open. Small tensors come and go in each step, so up to
    1 MiB of freed memory is kept for the next ones.
    """

    __slots__ = ("_accelerator", "_closed", "_freed_bytes", "_host", "_index", "_inside")

    def __init__(self, accelerator: Accelerator, index: int, host: HostBudget) -> None:
        self._accelerator = accelerator
        self._index = index
        self._host = host
        self._freed_bytes = 0
        self._inside = False
        self._closed = False

    def charge(self, nbytes: int) -> None:
        """Take device memory.

        Raises:
            DeviceMemoryError: the core's memory is full.
            HostMemoryError: this computer has no memory for the contents.
        """
        if not self._accelerator.faults_armed and nbytes <= self._freed_bytes:
            self._freed_bytes -= nbytes  # without a call in between, so that no finalizer comes first
            try:
                self._host.take(nbytes)
            except BaseException:
                self._freed_bytes += nbytes
                raise
            return
        self.settle()
        self._inside = True
        try:
            self._allocate(nbytes)
            try:
                self._host.take(nbytes)
            except HostMemoryError:
                self._accelerator.free(self._index, nbytes)
                raise
        finally:
            self._inside = False

    def charge_kept(self, buffer: DeviceBuffer) -> bool:
        """Give a buffer memory that is kept, and return whether there is enough: not while a fault may refuse it."""
        nbytes, host = buffer.nbytes, self._host
        if (
            self._accelerator.faults_armed
            or nbytes > self._freed_bytes
            or host.used_bytes + nbytes > host.limit_bytes
        ):
            return False
        # Without a call, so that nothing raises in between.
        self._freed_bytes -= nbytes
        host.used_bytes += nbytes
        buffer.__class__ = ChargedBuffer
        return True

    def check(self, nbytes: int) -> None:
        """Check that there is room for a tensor.

        Raises:
            DeviceMemoryError: the core's memory is too full.
            HostMemoryError: this computer has no memory for the contents.
        """
        self.settle()
        with InterruptHold(HOLD_S):
            self._allocate(nbytes)
            self._accelerator.free(self._index, nbytes)
        self._host.take(nbytes)
        self._host.give(nbytes)

    def host_room(self) -> int:
        """Return the bytes of contents that still fit into this computer's share."""
        return self._host.limit_bytes - self._host.used_bytes

    def release(self, buffer: DeviceBuffer) -> None:
        """Give the memory of a buffer back with the next `trim`."""
        # Without a call: of a buffer that is still charged nothing has been given back.
        self._host.used_bytes -= buffer.nbytes
        self._freed_bytes += buffer.nbytes
        buffer.__class__ = DeviceBuffer

    def trim(self) -> None:
        """Pass on deferred frees if they are large."""
        if self._freed_bytes > _KEPT_BYTES:
            self.settle()

    def settle(self) -> None:
        """Pass on deferred frees."""
        if self._freed_bytes and not self._inside and not self._closed:
            self._inside = True
            try:
                with InterruptHold(HOLD_S):
                    freed_bytes, self._freed_bytes = self._freed_bytes, 0
                    self._accelerator.free(self._index, freed_bytes)
            finally:
                self._inside = False

    def _allocate(self, nbytes: int) -> None:
        try:
            self._accelerator.allocate(self._index, nbytes)
        except NrtError as error:
            if error.status is not NrtStatus.NRT_RESOURCE:
                raise
            raise DeviceMemoryError(error) from error

    def read(self) -> MemoryInfo:
        """Return the core's memory after settling."""
        self.settle()
        return self._accelerator.memory(self._index)

    def close(self) -> None:
        """Stop passing frees on: the machine is gone."""
        self._closed = True


class DeviceMemoryError(NrtError, torch.OutOfMemoryError):  # type: ignore[misc]
    """The simulated device memory is full; the error of torch for that, too."""

    def __init__(self, error: NrtError) -> None:
        super().__init__(error.function, error.status, error.remedy, detail=error.detail)
        _name_condition(self)


class HostMemoryError(DeviceError, torch.OutOfMemoryError):  # type: ignore[misc]
    """The limit on host memory for device contents is reached; the simulated device memory may not be full."""

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message, remedy)
        _name_condition(self)


def _name_condition(error: NeuronToolsError) -> None:
    """Begin the message as torch's own devices do: libraries look for that, and try smaller batches."""
    if device_name() == NEURON:
        error.message = f"{NEURON} out of memory. {error.message}"
        error.args = (error.message,)


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


def keep_freed_memory() -> None:
    """Let glibc keep what a step frees for the next one, unless the user has chosen otherwise.

    It would return the memory to the kernel, and the page faults of the next step take a quarter of a small CNN's time.
    """
    if any(name in os.environ for name in _MALLOC_VARIABLES):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries have none
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)
        mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)


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


def may_be_larger(operator: Operator, args: Sequence[Any], kwargs: Mapping[str, Any], nbytes: int) -> bool:
    """Return whether a call's result may be larger than `nbytes`, by a rough and quick upper bound.

    The bound is the product of all different dimensions of the arguments and of the sizes that they name.
    """
    if operator.returns_parameter >= 0:
        return False
    values = (*args, *kwargs.values())
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    factor = _ELEMENT_BYTES
    for value in values:
        if isinstance(value, (list, tuple)) and value and isinstance(value[0], int):
            factor *= max(1, abs(prod(value)))
    if factor * prod(tensor.numel() for tensor in tensors) <= nbytes:
        return False
    counts: dict[int, int] = {}
    for tensor in tensors:
        shape = tensor.shape
        for dimension in shape:
            counts[dimension] = max(counts.get(dimension, 0), shape.count(dimension))
    return bool(factor * prod(dimension**count for dimension, count in counts.items()) > nbytes)


def to_meta(values: Any) -> Any:
    """Return arguments with meta tensors, which have no contents, in place of tensors."""

    def meta(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")

    return tree_map(meta, values)


def meta_results(operator: Operator, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the results of a call on host tensors as meta tensors; None if torch cannot tell."""
    meta_args, meta_kwargs = to_meta((list(args), dict(kwargs)))
    for parameter in operator.parameters:
        if parameter.kind is Kind.DEVICE:
            meta_kwargs[parameter.name] = torch.device("meta")
    try:
        return operator.overload(*meta_args, **meta_kwargs)
    except (RuntimeError, NotImplementedError, TypeError) as error:
        if is_of_handler(error):
            raise
        return None


def result_bytes(operator: Operator, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """Return the size of the results of a call on host tensors without computing them; 0 if torch cannot tell."""
    leaves = tree_leaves(meta_results(operator, args, kwargs))  # the call itself reports wrong arguments
    return sum(leaf.numel() * leaf.itemsize for leaf in leaves if isinstance(leaf, torch.Tensor))


@contextmanager
def host_allocation(account: MemoryAccount) -> Iterator[None]:
    """Report an allocation for which this computer has no memory as the device would.

    Raises:
        DeviceMemoryError: the device has no memory for it, either.
        HostMemoryError: only this computer has not.
    """
    try:
        yield
    except RuntimeError as error:
        found = _ALLOCATOR.search(str(error))
        if found is None:
            raise
        nbytes = int(found[1])
        account.check(nbytes)
        raise HostMemoryError(
            f"this computer has no memory for a device tensor of {format_size(nbytes)} "
            "(the simulated device memory is not full)",
            "use a smaller model or batch",
        ) from error
