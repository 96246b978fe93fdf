"""Several machines in neuron-top."""
