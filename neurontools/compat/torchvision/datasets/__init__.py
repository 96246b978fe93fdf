"""Datasets: MNIST only."""

from __future__ import annotations

from neurontools.compat.mnist import MNIST
from neurontools.compat.unsupported import missing_names

__all__ = ["MNIST"]


__getattr__ = missing_names(__name__)
