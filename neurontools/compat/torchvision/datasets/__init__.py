"""Datasets: MNIST only."""

from __future__ import annotations

from typing import NoReturn

from neurontools.compat.missing import missing_name
from neurontools.compat.mnist import MNIST

__all__ = ["MNIST"]


def __getattr__(name: str) -> NoReturn:
    missing_name(__name__, name)
