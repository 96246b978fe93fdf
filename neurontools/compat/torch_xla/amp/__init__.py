"""torch_xla.amp: automatic mixed precision."""

from __future__ import annotations

from torch_xla.amp.autocast_mode import autocast  # type: ignore[import-not-found, unused-ignore]

from neurontools.compat.unsupported import missing_names

__all__ = ["autocast"]


__getattr__ = missing_names(__name__)
