"""torch_xla.amp.autocast_mode: autocast on the device, in bfloat16 by default."""

from __future__ import annotations

from typing import Any

import torch

from neurontools.compat.unsupported import missing_names

__getattr__ = missing_names(__name__)


class autocast(torch.amp.autocast):  # type: ignore[misc] # noqa: N801
    """Run the operators of a block in a smaller data type.

    Args:
        device: a device of type xla.
        enabled: whether the block does so.
        dtype: torch.bfloat16 by default.
        cache_enabled: whether casts of parameters are kept within the block.

    Raises:
        RuntimeError: the device is not an XLA device.
    """

    def __init__(
        self,
        device: torch.device | str,
        enabled: bool = True,
        dtype: torch.dtype | None = None,
        cache_enabled: bool | None = None,
    ) -> None:
        if torch.device(device).type != "xla":
            raise RuntimeError(f"torch_xla.amp.autocast needs an XLA device, not {str(device)!r}")
        super().__init__("xla", dtype or torch.bfloat16, enabled, cache_enabled)

    def __call__(self, func: Any) -> Any:
        """Return a function that runs in the block."""
        return torch.amp.autocast_mode.autocast_decorator(self, func)
