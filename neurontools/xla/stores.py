"""What kernels and recordings use of the engine: the tensors of its devices, and synchronizations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import torch

    from neurontools.xla.fusion import Fusion
    from neurontools.xla.operators import Kernel, Operator


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

    def kernel(self, operator: Operator) -> Kernel:
        """Return the dispatcher kernel that records an operator, or runs it on the CPU if it cannot be recorded."""

    def sync(self, index: int | None = None, cause: str = "mark_step") -> None:
        """Run the recorded operators of one device, or of all."""

    @property
    def eager(self) -> bool:
        """Whether each operator runs at once, as a graph of its own."""

    def set_eager(self, enabled: bool) -> None:
        """Turn eager mode on or off; runs the recorded operators first."""

    def set_fusion(self, fusion: Fusion) -> Fusion:
        """Choose where recordings end that are not synchronized, and return the choice before."""
