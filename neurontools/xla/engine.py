"""The interfaces between the lazy device and its engine, which records operators and runs them as graphs.

Code outside the engine's own modules (docs/explanation/xla-device.md lists them) uses only these interfaces, so that
another engine can replace the one in Python.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import torch

from neurontools.xla.accelerator import DeviceError
from neurontools.xla.device_guard import GUARD_REMEDY

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from neurontools.compiler.graph import Graph, Node
    from neurontools.runtime.memory import MemoryInfo
    from neurontools.xla.accelerator import Accelerator
    from neurontools.xla.operators import Operator
    from neurontools.xla.recorded_trace import RecordedFunction

    Kernel = Callable[..., Any]
    Function = Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]


class CurrentDevice:
    """The device that `xla` without an index means in a thread; torch's device guard stores it."""

    @property
    def index(self) -> int:
        """The position of the current device in this process."""
        index: int = torch.accelerator.current_device_index()
        return index

    def set(self, index: int) -> None:
        """Make a device the current one.

        Raises:
            DeviceError: there is no device guard in C++, and the one in Python supports only xla:0.
        """
        torch.accelerator.set_device_index(index)
        if self.index != index:
            raise DeviceError(
                "the current device cannot change without the device guard in C++", GUARD_REMEDY
            )


class TensorStore(Protocol):
    """The tensors of one device and their contents, which are host tensors."""

    device: torch.device

    @property
    def lock(self) -> AbstractContextManager[Any]:
        """Return a lock that keeps other threads from recording and executing on the device."""

    def adopt(self, host: torch.Tensor) -> torch.Tensor:
        """Return a device tensor whose contents are a host tensor; the caller gives up the host tensor."""

    def empty(self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return an uninitialised device tensor; memory is allocated at its first use."""

    def read(self, tensor: torch.Tensor, cause: str) -> torch.Tensor:
        """Return a device tensor's contents; a recorded value is computed first, with `cause` as the reason."""

    def replace(self, tensor: torch.Tensor, host: torch.Tensor) -> bool:
        """Replace the contents of a device tensor, if nothing is recorded on it and it views all of its storage."""

    def drawing(self) -> AbstractContextManager[None]:
        """Return a context in which torch's default generator continues the device's stream of random numbers."""


class TensorStores(Protocol):
    """The stores of all devices."""

    def store(self, device: Any) -> TensorStore:
        """Return the store of a torch device, given as a device or its name; without an index, the current device.

        Raises:
            DeviceError: this process has no such core.
        """

    def store_of(self, value: Any) -> TensorStore | None:
        """Return the store that a value is in, None for values that are not tensors of the lazy device."""


class Fusion(Protocol):
    """Decides where a recording ends that the program does not synchronize.

    Args:
        limit: number of operators from which on `is_complete` is asked.
        counts_recorded: whether tensors take device memory as soon as the program has them, as without fusion.
    """

    limit: int
    counts_recorded: bool

    def is_complete(self, operators: Sequence[Node]) -> bool:
        """Return whether the recorded operators are to run before the next one is recorded."""

    def runs_on_host(self, call: Node) -> bool:
        """Return whether a call with a data type that the compiler may lack runs on the CPU instead."""


class DeviceEngine(TensorStores, Protocol):
    """Records operators per device and runs them at synchronizations. `index` is the position of a device."""

    current: CurrentDevice

    @property
    def accelerator(self) -> Accelerator:
        """The cores of this process; opens them at the first use."""

    @property
    def is_open(self) -> bool:
        """Whether the cores are open."""

    def kernel(self, operator: Operator) -> Kernel:
        """Return the dispatcher kernel that records an operator, or runs it on the CPU if it cannot be recorded."""

    # Recordings

    local_rank: int | None
    """This worker's rank on its machine, if programs may name its first device by it."""

    def position_of(self, index: int) -> int:
        """Return the position of a device: 0 for `local_rank` where this process has no such core."""

    def check_device(self, index: int) -> None:
        """Check that a device exists; opens it.

        Raises:
            DeviceError: this process has no such core.
        """

    def sync(self, index: int | None = None, cause: str = "mark_step") -> None:
        """Run the recorded operators of one device, or of all."""

    @property
    def eager(self) -> bool:
        """Whether each operator runs at once, as a graph of its own."""

    def set_eager(self, enabled: bool) -> None:
        """Turn eager mode on or off; runs the recorded operators first."""

    def set_fusion(self, fusion: Fusion) -> Fusion:
        """Choose where recordings end that are not synchronized, and return the choice before."""

    def pending(self, index: int) -> int:
        """Return the number of recorded operators that have not run."""

    def recording(self, index: int) -> object:
        """Return an identity of the device's recording, None while nothing is recorded."""

    def recorded_graph(self, tensors: Sequence[torch.Tensor]) -> tuple[Graph, list[torch.Tensor]]:
        """Return the recording of tensors of one device, as a graph, and the tensors without one."""

    def record_function(
        self,
        index: int,
        function: Function,
        arguments: Sequence[torch.Tensor],
        weights: Sequence[torch.Tensor],
    ) -> RecordedFunction | None:
        """Record a function on a device, then drop the recording; runs previously recorded operators first.

        Args:
            index: the device.
            function: takes device tensors and returns tensors.
            arguments: its arguments, as CPU tensors.
            weights: device tensors that it may read.

        Returns:
            The recording; None if the engine had to run the function to learn its operators: call this again.

        Raises:
            DeviceError: the function needs a value while it is recorded.
        """

    def as_graph(
        self,
        function: Callable[..., Any],
        before: str,
        cause: str,
        *,
        repeatable: bool,
        on_host: Sequence[int] = (),
    ) -> Callable[[list[Any]], Any]:
        """Return a function that takes the arguments of another one as a list, which it may clear, and runs it as one graph.

        Args:
            function: takes tensors, and returns a list or tuple of tensors.
            before: why an open recording ends when it is called.
            cause: why its graph ends.
            repeatable: whether its operators follow from the layouts of its arguments: then it is not called again.
            on_host: the positions of arguments that are on the CPU: it gets copies on the device.
        """

    def memory(self, index: int) -> MemoryInfo:
        """Return the device memory of a core."""

    def reset_peak_memory(self, index: int) -> None:
        """Let the peak of a core's device memory start again at what is in use."""

    # Random numbers

    def seed(self, seed: int, index: int | None = None) -> None:
        """Seed the random numbers of one device, or of all; draws that are already recorded keep the old seed."""

    def initial_seed(self, index: int) -> int:
        """Return the seed of a device's random numbers; runs recorded draws first."""

    def rng_state(self, index: int, *, recorded: bool = False) -> torch.Tensor:
        """Return the state of a device's random numbers at this point of the program, as bytes on the device.

        `recorded` makes it part of the graph even where its value is known.
        """

    def set_rng_state(self, index: int, state: torch.Tensor, *, recorded: bool = False) -> None:
        """Continue a device's random numbers from a state that `rng_state` returned, from this point of the program on.

        `recorded` makes it part of the graph even where no numbers have been drawn in it.

        Raises:
            RuntimeError: `state` is not a valid state.
        """

    def rng_value(self, index: int) -> int:
        """Return the state of a device's random numbers as 64 bits; runs recorded draws first."""

    def set_rng_value(self, index: int, value: int) -> None:
        """Continue a device's random numbers from a value that `rng_value` returned, or start them from a seed."""

    # Lifecycle

    def forget_programs(self) -> None:
        """Run the recorded operators and forget all programs, before custom operators are replaced."""

    def shutdown(self) -> None:
        """Drop the recorded operators and release the cores. Tensors keep their values but take no device memory."""
