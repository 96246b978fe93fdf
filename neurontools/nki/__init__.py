"""NKI, the Neuron Kernel Interface: kernels of both generations run on simulated NeuronCores, instruction by instruction.

`neurontools.compat.nki` and `neurontools.compat.neuronxcc` have the vendor's module names; the code is here.
"""
