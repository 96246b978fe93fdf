"""`nki`, the second generation of the Neuron Kernel Interface, on the simulated machine."""

from neurontools.compat.nki import dtype
from neurontools.compat.unsupported import missing_names
from neurontools.nki.diagnosis import explain_at_exit
from neurontools.nki.launch import Kernel, jit, simulate
from neurontools.nki.objects import NKIObject
from neurontools.nki.tensor import NkiTensor

__version__ = "0.6.0"
__all__ = ["Kernel", "NKIObject", "NkiTensor", "dtype", "jit", "simulate"]
__getattr__ = missing_names(__name__)
explain_at_exit()
