"""torch_neuronx.utils: what kind of machine this is."""

from __future__ import annotations

from typing import NoReturn

from neurontools.compat.missing import missing_name
from neurontools.compat.platform_target import get_platform_target

__all__ = ["get_platform_target"]


def __getattr__(name: str) -> NoReturn:
    missing_name(__name__, name)
