"""`neuronxcc.nki.language.constants`: sizes of types."""

from neurontools.compat.unsupported import missing_names
from neurontools.nki.first.language import sizeinbytes

__all__ = ["sizeinbytes"]
__getattr__ = missing_names(__name__)
