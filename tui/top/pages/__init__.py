"""The pages of neuron-top and what they draw with."""
