"""Datasets: MNIST only."""

from __future__ import annotations

from typing import NoReturn

from neurontools.compat.torchvision.datasets.mnist import MNIST
from neurontools.compat.unsupported import missing_name

__all__ = ["MNIST"]


def __getattr__(name: str) -> NoReturn:
    missing_name(__name__, name)
