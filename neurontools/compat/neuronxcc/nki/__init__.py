"""`neuronxcc.nki`, the first generation of the Neuron Kernel Interface, on the simulated machine."""

from neurontools.compat.unsupported import missing_names
from neurontools.nki.diagnosis import explain_at_exit
from neurontools.nki.first.launch import baremetal, benchmark, jit, profile, simulate_kernel, trace
from neurontools.nki.first.tile import Tile as tensor  # noqa: N813

from neuronxcc.nki import compiler, isa, language, nccl, typing  # isort: skip

__all__ = [
    "baremetal",
    "benchmark",
    "compiler",
    "isa",
    "jit",
    "language",
    "nccl",
    "profile",
    "simulate_kernel",
    "tensor",
    "trace",
    "typing",
]
__getattr__ = missing_names(__name__)
explain_at_exit()
