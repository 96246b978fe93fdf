"""The part of torchvision that MNIST scripts use; found only where the real one is not installed."""

from __future__ import annotations

from typing import NoReturn

from torchvision import datasets, transforms  # type: ignore[import-not-found, unused-ignore]

from neurontools.compat.unsupported import missing_name

__all__ = ["datasets", "transforms"]
__version__ = "0.0.0+neurontools"


def __getattr__(name: str) -> NoReturn:
    missing_name(__name__, name)
