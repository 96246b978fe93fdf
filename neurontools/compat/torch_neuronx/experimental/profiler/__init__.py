"""torch_neuronx.experimental.profiler: profiles of a part of a program."""

from __future__ import annotations

from typing import NoReturn

from neurontools.compat.profiling import profile
from neurontools.compat.unsupported import missing_name

__all__ = ["profile"]


def __getattr__(name: str) -> NoReturn:
    missing_name(__name__, name)
