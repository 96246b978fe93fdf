"""The part of torchvision that MNIST scripts use; found only where the real one is not installed."""

from torchvision import datasets, transforms  # type: ignore[import-not-found, unused-ignore]

__all__ = ["datasets", "transforms"]
__version__ = "0.0.0+neurontools"
