"""The border between the lazy device and its engine, the core that records operators and runs them as graphs.

Everything outside the engine's own modules (docs/explanation/xla-device.md lists them) uses these interfaces alone, so that
another core can take the place of the one in Python.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import torch

from neurontools.xla.accelerator import DeviceError
from neurontools.xla.device_guard import GUARD_REMEDY

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from neurontools.runtime.memory import MemoryInfo
    from neurontools.xla.accelerator import Accelerator
    from neurontools.xla.operators import Operator
    from neurontools.xla.recorded_trace import RecordedFunction

    Kernel = Callable[..., Any]
    Function = Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]


class CurrentDevice:
    """The device that `xla` without an index stands for in a thread; torch's guard keeps it."""

    @property
    def index(self) -> int:
        """Its position in this process."""
        index: int = torch.accelerator.current_device_index()
        return index

    def set(self, index: int) -> None:
        """Make a device the current one.

        Raises:
            DeviceError: there is no device guard in C++, and the one in Python knows xla:0 alone.
        """
        torch.accelerator.set_device_index(index)
        if self.index != index:
            raise DeviceError(
                "the current device cannot change without the device guard in C++", GUARD_REMEDY
            )


class TensorStore(Protocol):
    """The tensors of one device and their contents, which are tensors of the host."""

    device: torch.device

    @property
    def lock(self) -> AbstractContextManager[Any]:
        """Held while other threads must neither record nor execute on the device."""

    def adopt(self, host: torch.Tensor) -> torch.Tensor:
        """Return a device tensor whose contents are a host tensor; the caller gives up the host tensor."""

    def empty(self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return an uninitialised device tensor; nothing is allocated before something uses it."""

    def read(self, tensor: torch.Tensor, cause: str) -> torch.Tensor:
        """Return a device tensor's contents; a value that is only recorded is computed first, because of `cause`."""

    def replace(self, tensor: torch.Tensor, host: torch.Tensor) -> bool:
        """Replace the contents of a device tensor, if nothing is recorded on it and it views all of its storage."""

    def drawing(self) -> AbstractContextManager[None]:
        """Return a context in which torch's default generator continues the device's stream of random numbers."""


class TensorStores(Protocol):
    """The stores of all devices."""

    def store(self, device: Any) -> TensorStore:
        """Return the store of a torch device, given as a device or its name; without an index the current one's.

        Raises:
            DeviceError: this process has no such core.
        """

    def store_of(self, value: Any) -> TensorStore | None:
        """Return the store that a value is in, None for values that are not tensors of the lazy device."""


class DeviceEngine(TensorStores, Protocol):
    """Records operators per device and runs them at synchronizations. `index` is the position of a device."""

    current: CurrentDevice

    @property
    def accelerator(self) -> Accelerator:
        """The cores of this process; opens them."""

    def kernel(self, operator: Operator) -> Kernel:
        """Return the dispatcher kernel that records an operator, or runs it on the CPU if it cannot be recorded."""

    # Recordings

    def check_device(self, index: int) -> None:
        """Check that a device exists; opens it.

        Raises:
            DeviceError: this process has no such core.
        """

    def sync(self, index: int | None = None, cause: str = "mark_step") -> None:
        """Run what is recorded on one device, or on all."""

    @property
    def eager(self) -> bool:
        """Whether each operator runs at once, as a graph of its own."""

    def set_eager(self, enabled: bool) -> None:
        """Turn eager mode on or off; runs what is recorded first."""

    def pending(self, index: int) -> int:
        """Return the number of recorded operators that have not run."""

    def recording(self, index: int) -> object:
        """Return what identifies the recording of a device, None while nothing is recorded."""

    def record_function(
        self,
        index: int,
        function: Function,
        arguments: Sequence[torch.Tensor],
        weights: Sequence[torch.Tensor],
    ) -> RecordedFunction | None:
        """Record a function on a device and drop the recording; runs what is recorded before.

        Args:
            index: the device.
            function: takes device tensors and returns tensors.
            arguments: CPU tensors that it takes.
            weights: device tensors that it may read.

        Returns:
            What was recorded; None if the engine had to run the function to learn its operators: call it again.

        Raises:
            DeviceError: the function needs a value while it is recorded.
        """

    def memory(self, index: int) -> MemoryInfo:
        """Return the device memory of a core."""

    # Random numbers

    def seed(self, seed: int, index: int | None = None) -> None:
        """Seed the random numbers of one device, or of all: those drawn from here on, not those already recorded."""

    def initial_seed(self, index: int) -> int:
        """Return the seed of a device's random numbers; runs recorded draws first."""

    def rng_state(self, index: int) -> torch.Tensor:
        """Return the state of a device's random numbers at this point of the program, as bytes on the device."""

    def set_rng_state(self, index: int, state: torch.Tensor) -> None:
        """Continue a device's random numbers at a value of `rng_state`, from this point of the program on.

        Raises:
            RuntimeError: it is not a state.
        """

    def rng_value(self, index: int) -> int:
        """Return the state of a device's random numbers as 64 bits; runs recorded draws first."""

    def set_rng_value(self, index: int, value: int) -> None:
        """Continue a device's random numbers at a value of `rng_value`, or start them at a seed."""

    # Life

    def forget_programs(self) -> None:
        """Run what is recorded and forget all programs: custom operators are about to be replaced."""

    def shutdown(self) -> None:
        """Drop what is recorded and give the cores back. Tensors keep their values but take no device memory."""
