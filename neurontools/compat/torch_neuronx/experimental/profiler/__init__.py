"""torch_neuronx.experimental.profiler: profiles of a part of a program."""

from __future__ import annotations

from neurontools.compat.profiling import profile
from neurontools.compat.unsupported import missing_names

__all__ = ["profile"]


__getattr__ = missing_names(__name__)
