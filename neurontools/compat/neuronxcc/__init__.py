"""`neuronxcc`: of the compiler, the first generation of the Neuron Kernel Interface and the version."""

from neurontools.compat.unsupported import missing_names
from neurontools.compiler.options import COMPILER_VERSION

__version__ = COMPILER_VERSION
__all__ = ["__version__"]
__getattr__ = missing_names(__name__)
