"""`nki.tensor`: the tensor of kernels."""

from neurontools.nki.tensor import NkiTensor

__all__ = ["NkiTensor"]
