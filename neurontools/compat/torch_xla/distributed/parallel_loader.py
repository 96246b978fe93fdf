"""torch_xla.distributed.parallel_loader (`pl`): batches on the device, one graph per batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from neurontools.compat import structures
from neurontools.compat.unsupported import missing_names
from neurontools.xla import api
from neurontools.xla.host_events import timed_batches

__getattr__ = missing_names(__name__)


class MpDeviceLoader:
    """Iterates a data loader with its tensors on the device; runs the pending graph between batches and at the end.

    Args:
        loader: the data loader.
        device: the device of its batches.
        batches_per_execution: number of batches whose operators form one graph.
        loader_prefetch_size: accepted; batches are read when they are needed.
        device_prefetch_size: accepted.
        host_to_device_transfer_threads: accepted.
        input_sharding: a `spmd.ShardingSpec`; meshes have one device, so a batch stays whole.
    """

    def __init__(
        self,
        loader: Any,
        device: torch.device | str,
        *,
        batches_per_execution: int = 1,
        loader_prefetch_size: int = 16,
        device_prefetch_size: int = 8,
        host_to_device_transfer_threads: int = 1,
        input_sharding: Any = None,
    ) -> None:
        self._loader = loader
        self._device = device
        self._batches_per_execution = batches_per_execution

    def __iter__(self) -> Iterator[Any]:
        pending = 0
        for batch in timed_batches(self._loader):
            yield structures.to_device(batch, self._device)
            pending += 1
            if pending == self._batches_per_execution:
                api.mark_step()
                pending = 0
        if pending:
            api.mark_step()

    def __len__(self) -> int:
        return len(self._loader)

    @property
    def dataset(self) -> Any:
        """The dataset of the wrapped loader."""
        return self._loader.dataset


class ParallelLoader:
    """The older spelling of `MpDeviceLoader`, for several devices of a process; one device is supported.

    Raises:
        ValueError: there are several devices.
    """

    def __init__(self, cpu_loader: Any, devices: Sequence[torch.device | str], **options: Any) -> None:
        if len(devices) != 1:
            raise ValueError(f"ParallelLoader feeds 1 device per process here, not {len(devices)}")
        self._loader = cpu_loader
        self._options = options

    def per_device_loader(self, device: torch.device | str) -> MpDeviceLoader:
        """Return the loader of the device."""
        return MpDeviceLoader(self._loader, device, **self._options)

    def close(self) -> None:
        """End the loader; it holds no threads."""
