"""`nki.language`: tensors, operators, loops and wrappers of instructions."""

from neurontools.compat.unsupported import missing_names
from neurontools.nki.language import NAMES
from neurontools.nki.memory import MemoryRegion
from neurontools.nki.objects import NKIObject
from neurontools.nki.tensor import NkiTensor

globals().update(NAMES)
__all__ = ["MemoryRegion", "NKIObject", "NkiTensor", *NAMES]  # noqa: PLE0604  names of a table
__getattr__ = missing_names(__name__)
