"""The arithmetic of a NeuronCore on host tensors: NEURONTOOLS_NUMERICS=device."""
