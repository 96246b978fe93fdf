"""Datasets: MNIST only."""

from neurontools.compat.mnist import MNIST

__all__ = ["MNIST"]
