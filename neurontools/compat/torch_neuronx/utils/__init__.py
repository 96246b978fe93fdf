"""torch_neuronx.utils: what kind of machine this is."""

from __future__ import annotations

from typing import NoReturn

from neurontools.compat.torch_neuronx.utils.utils import get_platform_target
from neurontools.compat.unsupported import missing_name

__all__ = ["get_platform_target"]


def __getattr__(name: str) -> NoReturn:
    missing_name(__name__, name)
