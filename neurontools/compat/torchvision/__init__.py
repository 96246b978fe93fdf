"""The part of torchvision that MNIST scripts use; found only where the real one is not installed."""

from __future__ import annotations

from torchvision import datasets, transforms  # type: ignore[import-not-found, unused-ignore]

from neurontools.compat.unsupported import missing_names

__all__ = ["datasets", "transforms"]
__version__ = "0.0.0+neurontools"


__getattr__ = missing_names(__name__)
