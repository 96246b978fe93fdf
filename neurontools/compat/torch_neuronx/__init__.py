"""torch_neuronx as scripts of custom operators see it."""

from __future__ import annotations

from typing import NoReturn

from neurontools.compat.dependency import torch
from neurontools.compat.missing import missing_name
from neurontools.xla import api

__all__ = ["torch"]
__version__ = "2.13.0"

api.activate()


def __getattr__(name: str) -> NoReturn:
    missing_name(__name__, name)
