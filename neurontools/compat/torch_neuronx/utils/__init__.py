"""torch_neuronx.utils: what kind of machine this is."""

from __future__ import annotations

from torch_neuronx.utils.utils import get_platform_target  # type: ignore[import-not-found, unused-ignore]

from neurontools.compat.unsupported import missing_names

__all__ = ["get_platform_target"]


__getattr__ = missing_names(__name__)
