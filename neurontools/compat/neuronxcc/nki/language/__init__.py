"""`neuronxcc.nki.language`: data types, tensors, operators, loops and tiles."""

from neurontools.compat.unsupported import missing_names
from neurontools.nki.first.language import NAMES

globals().update(NAMES)
__all__ = [*NAMES]  # noqa: PLE0604
__getattr__ = missing_names(__name__)
