"""`neuronxcc.nki.nccl`: collectives of kernels, none of which is simulated for this generation."""

from neurontools.compat.unsupported import missing_names

__all__: list[str] = []
__getattr__ = missing_names(__name__)
