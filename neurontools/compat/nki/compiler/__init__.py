"""`nki.compiler`: kernels without a framework."""

from neurontools.compat.unsupported import missing_names

__all__: list[str] = []
__getattr__ = missing_names(__name__)
