"""`nki.simulator`: what libraries call to run a kernel without a device."""

from neurontools.nki.launch import simulate_kernel

__all__ = ["simulate_kernel"]
