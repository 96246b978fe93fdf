"""`neuronxcc.nki.typing`: annotations of kernels' parameters."""

from neurontools.nki.annotations import mutable_tensor, scalar, tensor

__all__ = ["mutable_tensor", "scalar", "tensor"]
