"""torch_neuronx.experimental.profiler: profiles of a part of a program."""

from __future__ import annotations

from typing import NoReturn

from neurontools.compat.missing import missing_name
from neurontools.compat.profiling import profile

__all__ = ["profile"]


def __getattr__(name: str) -> NoReturn:
    missing_name(__name__, name)
