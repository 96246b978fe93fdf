"""torchvision.datasets.mnist."""

from neurontools.compat.mnist import MNIST

__all__ = ["MNIST"]
