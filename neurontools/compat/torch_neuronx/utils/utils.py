"""torch_neuronx.utils.utils: kinds of machines."""

from __future__ import annotations

from typing import NoReturn

from neurontools.compat.missing import missing_name
from neurontools.compat.platform_target import SUPPORTED_TYPES, get_platform_target

__all__ = ["SUPPORTED_TYPES", "get_platform_target"]


def __getattr__(name: str) -> NoReturn:
    missing_name(__name__, name)
