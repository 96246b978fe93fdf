"""torch_xla.distributed.parallel_loader (`pl`): batches on the device, one graph per batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_map

from neurontools.xla import api


class MpDeviceLoader:
    """Iterates a data loader with its tensors on the device; runs the pending graph after every batch and at the end."""

    def __init__(self, loader: Any, device: torch.device | str, **options: Any) -> None:
        self._loader = loader
        self._device = device

    def __iter__(self) -> Iterator[Any]:
        for batch in self._loader:
            yield tree_map(
                lambda leaf: leaf.to(self._device) if isinstance(leaf, torch.Tensor) else leaf, batch
            )
            api.mark_step()

    def __len__(self) -> int:
        return len(self._loader)

    @property
    def dataset(self) -> Any:
        """The dataset of the wrapped loader."""
        return self._loader.dataset


class ParallelLoader:
    """The older spelling of `MpDeviceLoader`."""

    def __init__(self, loader: Any, devices: list[torch.device], **options: Any) -> None:
        self._loader = loader

    def per_device_loader(self, device: torch.device) -> MpDeviceLoader:
        """Return the loader of one device."""
        return MpDeviceLoader(self._loader, device)
